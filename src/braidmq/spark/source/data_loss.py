"""Records that a query was to read and that are no longer there: what is said, and what is done about it."""

from __future__ import annotations

import logging

from braidmq.client.cluster import TopicPartition
from braidmq.spark.errors import UserError

log = logging.getLogger("braidmq.spark")

ADVICE = (
    "To go on with what is left, set failOnDataLoss=false; to lose nothing, keep records longer"
    " (retention.ms) or run the query more often"
)
ADVICE_MADE_ANEW = (
    "To read the new topic from its first record on, set failOnDataLoss=false, or begin with a new checkpoint"
)


class RecordsLost(UserError):
    """Offsets from `first` on, and before `end`, cannot be read any more."""

    def __init__(
        self,
        at: TopicPartition,
        first: int,
        end: int,
        begins: int | None = None,
        ends: int | None = None,
        made_anew: bool = False,
    ) -> None:
        """`begins` and `ends` are the partition's now, where they say what happened."""
        why, advice = "The topic was deleted and made again", ADVICE_MADE_ANEW
        if not made_anew:
            why, advice = "Retention has removed them, or the topic was deleted and made again", ADVICE
        where = f"; the partition now begins at {begins}" if begins is not None else ""
        where += f"; the partition now ends at {ends}" if ends is not None else ""
        super().__init__(
            f"{at}: records from offset {first} on were to be read and are gone{where}. {why}. {advice}"
        )
        self.at = at
        self.first = first
        self.end = end
        self.begins = begins
        self.ends = ends
        self.made_anew = made_anew

    def __reduce__(self) -> tuple[type[RecordsLost], tuple[object, ...]]:
        return RecordsLost, (self.at, self.first, self.end, self.begins, self.ends, self.made_anew)


def report_loss(lost: RecordsLost, fail: bool) -> None:
    """Raises, or logs where the user has said that a loss is no failure."""
    if fail:
        raise lost
    log.warning("%s", lost)
