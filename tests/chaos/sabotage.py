"""A broker with a bug planted into it: `python -m tests.chaos.sabotage BUG serve …`.

What the runs promise to notice in a broker, they are seen to notice here. As a plugin of pytest
(`-p tests.chaos.sabotage`, with the bug's name in BRAID_SABOTAGE) it plants the bug under single tests.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from braidmq.broker import closing, topics
from braidmq.broker.group_coordinator import GroupCoordinator
from braidmq.broker.topic_directories import DirectorySurvey
from braidmq.cli import main
from braidmq.config import TopicConfig
from braidmq.group.offsets import Committed, OffsetTable
from braidmq.log.compaction import CompactionJob, Compactor
from braidmq.log.log import FlushJob, Log
from braidmq.log.transactions import Aborted, PartitionTransactions
from braidmq.platform.disk import Disk

VARIABLE = "BRAID_SABOTAGE"


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


def compaction_knows_the_aborts_of_its_segments_only() -> None:
    """A transaction whose abort marker lies in a later segment counts as committed."""
    begin = Compactor.begin

    def begin_with_less(
        self: Compactor, now_ms: int, limit_offset: int, config: TopicConfig
    ) -> CompactionJob | None:
        job = begin(self, now_ms, limit_offset, config)
        transactions = self._log.producers.transactions
        if job is not None and transactions is not None:
            end_offset = job._task.sources[-1].end_offset
            job._task = job._task._replace(aborted=transactions.aborted.packed(end_offset))
        return job

    Compactor.begin = begin_with_less  # type: ignore[method-assign]


def a_start_removes_what_the_metadata_does_not_know() -> None:
    """A directory that belongs to no topic of the journal is taken for one that was deleted."""

    def set_right(disk: Disk, root: Path, found: DirectorySurvey) -> list[str]:
        for name in found.unknown:
            disk.remove_tree(root / name)
        return []

    topics.set_right = set_right  # type: ignore[attr-defined]


def a_close_joins_a_new_offset_with_an_old_position() -> None:
    """The checkpoint of a clean stop has the offset of the last sync and the position of the one before."""
    begin, done = Log.checkpoint_begin, Log.flush_done
    before: dict[int, int] = {}

    def flush_done(self: Log, job: FlushJob) -> None:
        before[id(self)] = self._durable_position
        done(self, job)

    def checkpoint(self: closing._Closing) -> None:
        self._log._durable_position = before.get(id(self._log), self._log._durable_position)
        job = begin(self._log)
        if job is not None:
            self._run, self._done = job.run, partial(self._log.checkpoint_done, job)

    Log.flush_done = flush_done  # type: ignore[method-assign]
    closing._Closing.checkpoint = checkpoint  # type: ignore[method-assign]


def what_expires_is_decided_for_all_groups_at_once() -> None:
    """A group that commits while another one's tombstones are written is expired all the same."""

    async def expire(self: GroupCoordinator) -> None:
        for expired in list(self.groups.expired(self.now_ms(), self._clock.wall_ms())):
            await self._write(expired.records)
            self.groups.forget(expired)

    GroupCoordinator.expire = expire  # type: ignore[method-assign]


BUGS: dict[str, Callable[[], None]] = {
    bug.__name__: bug
    for bug in (
        readers_pass_open_transactions,
        readers_are_not_told_of_aborts,
        positions_count_before_the_decision,
        undecided_positions_are_told,
        compaction_knows_the_aborts_of_its_segments_only,
        a_start_removes_what_the_metadata_does_not_know,
        a_close_joins_a_new_offset_with_an_old_position,
        what_expires_is_decided_for_all_groups_at_once,
    )
}


def pytest_configure() -> None:
    """Plants the bug that the environment names."""
    BUGS[os.environ[VARIABLE]]()


if __name__ == "__main__":
    BUGS[sys.argv.pop(1)]()
    main()
