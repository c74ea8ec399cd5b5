"""A broker with a bug planted into it: `python -m tests.chaos.sabotage BUG serve …`.

What the exactly-once run promises to notice in a broker, it is seen to notice here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from braidmq.cli import main
from braidmq.group.offsets import Committed, OffsetTable
from braidmq.log.transactions import Aborted, PartitionTransactions


def readers_pass_open_transactions() -> None:
    """The last stable offset is the high watermark."""

    def last_stable_offset(self: PartitionTransactions, high_watermark: int) -> int:  # noqa: ARG001
        return high_watermark

    PartitionTransactions.last_stable_offset = last_stable_offset  # type: ignore[method-assign]


def readers_are_not_told_of_aborts() -> None:
    """Fetches leave out the list of aborted transactions."""

    def aborted_between(self: PartitionTransactions, low: int, high: int) -> list[Aborted]:  # noqa: ARG001
        return []

    PartitionTransactions.aborted_between = aborted_between  # type: ignore[method-assign]


def positions_count_before_the_decision() -> None:
    """Offsets of a transaction are committed at once."""

    def commit(
        self: OffsetTable,
        producer_id: int,  # noqa: ARG001
        topic: str,
        partition: int,
        committed: Committed,
    ) -> None:
        self._committed[topic, partition] = committed

    OffsetTable.commit_undecided = commit  # type: ignore[method-assign]


def undecided_positions_are_told() -> None:
    """Who asks for a stable position is not told to wait."""

    def is_undecided(self: OffsetTable, topic: str, partition: int) -> bool:  # noqa: ARG001
        return False

    OffsetTable.is_undecided = is_undecided  # type: ignore[method-assign]


BUGS: dict[str, Callable[[], None]] = {
    bug.__name__: bug
    for bug in (
        readers_pass_open_transactions,
        readers_are_not_told_of_aborts,
        positions_count_before_the_decision,
        undecided_positions_are_told,
    )
}


if __name__ == "__main__":
    BUGS[sys.argv.pop(1)]()
    main()
