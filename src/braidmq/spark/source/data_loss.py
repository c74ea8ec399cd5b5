"""Records that a query should read and that no longer exist: the message, and whether the query fails."""

from __future__ import annotations

import logging

from braidmq.client.cluster import TopicPartition
from braidmq.spark.errors import UserError

log = logging.getLogger("braidmq.spark")

ADVICE = (
    "To continue with what is left, set failOnDataLoss=false; to lose nothing, keep records longer"
    " (retention.ms) or run the query more often"
)
ADVICE_RECREATED = (
    "To read the new topic from its first record on, set failOnDataLoss=false or use a new checkpoint"
)


class RecordsLost(UserError):
    """Offsets from `first` to `end` (excluded) no longer exist."""

    def __init__(
        self,
        at: TopicPartition,
        first: int,
        end: int,
        begins: int | None = None,
        ends: int | None = None,
        recreated: bool = False,
    ) -> None:
        """`begins` and `ends` are the partition's bounds now, where they explain the loss."""
        why, advice = "The topic was deleted and recreated", ADVICE_RECREATED
        if not recreated:
            why, advice = "Retention removed them, or the topic was deleted and recreated", ADVICE
        where = f"; the partition now begins at {begins}" if begins is not None else ""
        where += f"; the partition now ends at {ends}" if ends is not None else ""
        super().__init__(f"{at}: records from offset {first} on are gone{where}. {why}. {advice}")
        self.at = at
        self.first = first
        self.end = end
        self.begins = begins
        self.ends = ends
        self.recreated = recreated

    def __reduce__(self) -> tuple[type[RecordsLost], tuple[object, ...]]:
        return RecordsLost, (self.at, self.first, self.end, self.begins, self.ends, self.recreated)


def report_loss(lost: RecordsLost, fail: bool) -> None:
    """Raises, or only logs if the user set failOnDataLoss=false."""
    if fail:
        raise lost
    log.warning("%s", lost)
