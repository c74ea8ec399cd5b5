"""Bugs that one broker can have, planted into it. The judge must find each of them with some seed."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest import mock

from braidmq.broker import topics
from braidmq.broker.internal_partition import InternalPartition
from braidmq.broker.replica import Replica
from braidmq.broker.topic_directories import DirectorySurvey
from braidmq.cluster import journal
from braidmq.cluster.file_store import FileStore
from braidmq.group.offsets import Committed, OffsetTable
from braidmq.log import scan
from braidmq.log.producer_state import ProducerState
from braidmq.log.transactions import PartitionTransactions
from braidmq.platform.disk import Disk
from braidmq.wire.errors import ErrorCode
from braidmq.wire.records import fault

Planted = AbstractContextManager[Any]


def _answers_too_early(self: Any, offset: int, callback: Any) -> None:
    """In the place of `when_committed`: the sync is begun, and not waited for."""
    _when_committed(self if isinstance(self, Replica) else self.replica, offset, lambda _: None)
    callback(ErrorCode.NONE)


_when_committed = Replica.when_committed
_read = Replica.read


def _reads_ahead(self: Replica, *wanted: Any) -> Any:
    syncs, self.syncs = self.syncs, False
    try:
        return _read(self, *wanted)
    finally:
        self.syncs = syncs


def _serves_what_is_torn(view: Any, at: int, filled: int) -> str | None:
    found = fault(view, at, filled)
    return None if found is not None and "CRC" in found else found


def _deletes_the_unknown(disk: Disk, root: Path, found: DirectorySurvey) -> list[str]:
    for name in found.unknown:
        disk.remove_tree(root / name)
    return []


def _commits_at_once(
    self: OffsetTable, _producer_id: int, topic: str, partition: int, committed: Committed
) -> None:
    self._committed[topic, partition] = committed


def _appends_without_sync(self: FileStore, entry: journal.Change) -> None:
    assert self._file is not None
    self._file.write(journal.encode(entry, self._file.size()))


BUGS: dict[str, tuple[Any, str, Any]] = {
    "an ack before the sync": (Replica, "when_committed", _answers_too_early),
    "a position answered before it is durable": (InternalPartition, "when_durable", _answers_too_early),
    "records served before they are durable": (Replica, "read", _reads_ahead),
    "a torn tail is served": (scan, "fault", _serves_what_is_torn),
    "the last stable offset is ignored": (
        PartitionTransactions,
        "last_stable_offset",
        lambda _self, high_watermark: high_watermark,
    ),
    "readers are not told of aborts": (
        PartitionTransactions,
        "aborted_between",
        lambda _self, _low, _high: [],
    ),
    "positions count before the decision": (OffsetTable, "commit_undecided", _commits_at_once),
    "producers are forgotten in a restart": (ProducerState, "replay", lambda *_: None),
    "metadata is not synced": (FileStore, "_append", _appends_without_sync),
    "unknown directories are deleted": (topics, "set_right", _deletes_the_unknown),
}


FOUND_BEFORE = {"records served before they are durable": 19, "a torn tail is served": 13}
"""Seeds that have shown a bug, to be tried first."""


def seeds(bug: str, below: int) -> list[int]:
    return [*([FOUND_BEFORE[bug]] if bug in FOUND_BEFORE else []), *range(below)]


def planted(bug: str) -> Planted:
    """A broker that is made meanwhile has this bug."""
    where, name, what = BUGS[bug]
    return mock.patch.object(where, name, what)
