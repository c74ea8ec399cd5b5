"""Bugs that a cluster can have, planted into it. The judge must find each of them with some seed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from tests.sim.store import StoreEnd

from braidmq.broker import topics
from braidmq.broker.internal_partition import InternalPartition
from braidmq.broker.shards import Shards
from braidmq.broker.topic_directories import DirectorySurvey
from braidmq.cluster import changes, records
from braidmq.cluster.changes import Changes
from braidmq.cluster.image import Delta
from braidmq.cluster.kv import KeyValues
from braidmq.cluster.metadata_store import (
    Change,
    Compare,
    Conflict,
    MetadataStore,
    Put,
    Unknown,
    Watch,
)
from braidmq.cluster.records import NextProducerId, decode, encode
from braidmq.log.transactions import EndMarker, PartitionTransactions
from braidmq.platform.disk import Disk
from braidmq.wire.errors import ApiError, ErrorCode

NEWEST = 1 << 30


async def _puts_blindly(
    self: Changes, values: Mapping[str, bytes], deletes: Sequence[str] = (), _seen: object = None
) -> int:
    puts = [Put(self._image.key(key), value) for key, value in values.items()]
    return await self._store.commit((), puts, [self._image.key(key) for key in deletes])


async def _takes_unknown_for_failure(
    store: MetadataStore,
    _seen: int,
    compares: Sequence[Compare],
    puts: Sequence[Put],
    deletes: Sequence[str] = (),
) -> int:
    try:
        return await store.commit(compares, puts, deletes)
    except Unknown as error:
        raise Conflict(str(error)) from error


_watch = StoreEnd.watch


def _watches_from_now(self: StoreEnd, prefix: str, after_revision: int) -> Watch:
    return _watch(self, prefix, max(after_revision, self._store.kv.revision))


_change_after = KeyValues.change_after


def _jumps_over_what_is_compacted(
    self: KeyValues, revision: int, prefix: str, until: int
) -> tuple[int, Change | None]:
    return _change_after(self, max(revision, self.compact_revision), prefix, until)


async def _reserves_without_compare(self: Changes, least: int, count: int) -> int:
    key = self._image.key(records.PRODUCER_IDS)
    item = await self._store.get(key)
    record = NextProducerId(next=0) if item is None else decode(NextProducerId, key, item.value)
    start = max(record.next, least)
    value = encode(replace(record, next=start + count), self._writer.sign())
    await self._store.commit((), [Put(key, value)])
    return start


def _deletes_the_unknown(disk: Disk, root: Path, found: DirectorySurvey) -> list[str]:
    for name in found.unknown:
        disk.remove_tree(root / name)
    return []


def _serves_what_is_not_loaded(self: Shards[Any], key: str) -> Any:
    led = self._led.get(self.index_of(key))
    if led is None:
        raise ApiError(ErrorCode.NOT_COORDINATOR, "another broker coordinates it")
    return led.shard


def _does_not_follow_leaders(self: Shards[Any], delta: Delta) -> None:
    if self.shown is not None and self.shown.id in delta.topics:
        self._compare()


_check_marker = PartitionTransactions.check_marker


def _fences_no_marker(self: PartitionTransactions, marker: EndMarker, transaction_version: int) -> bool:
    return _check_marker(self, marker._replace(coordinator_epoch=NEWEST), transaction_version)


Patch = tuple[Any, str, Any]

BUGS: dict[str, tuple[Patch, ...]] = {
    "a blind put": ((Changes, "_commit_values", _puts_blindly),),
    "unknown taken for failure": ((changes, "commit_settled", _takes_unknown_for_failure),),
    "a watch resumed at now": ((StoreEnd, "watch", _watches_from_now),),
    "compaction ignored": ((KeyValues, "change_after", _jumps_over_what_is_compacted),),
    "producer ids without compare": ((Changes, "reserve_producer_ids", _reserves_without_compare),),
    "a shard serves too early": ((Shards, "of", _serves_what_is_not_loaded),),
    "a shard writes under an old epoch": (
        (Shards, "follow", _does_not_follow_leaders),
        (InternalPartition, "_check_epoch", lambda _: None),
    ),
    "a marker is not fenced": ((PartitionTransactions, "check_marker", _fences_no_marker),),
    "an unknown directory deleted": ((topics, "set_right", _deletes_the_unknown),),
}


FOUND_BEFORE = {"a shard serves too early": 6, "a marker is not fenced": 16}
"""Seeds that have shown a bug, to be tried first."""


def seeds(bug: str, below: int) -> list[int]:
    """Those of runs with coordinators for a bug of theirs, and of the shorter ones without for any other."""
    first = [FOUND_BEFORE[bug]] if bug in FOUND_BEFORE else []
    return [*first, *range(0 if "shard" in bug or "marker" in bug else 1, below, 2)]


@contextmanager
def planted(bug: str) -> Iterator[None]:
    """Brokers that are made meanwhile have this bug."""
    with ExitStack() as stack:
        for where, name, what in BUGS[bug]:
            stack.enter_context(mock.patch.object(where, name, what))
        yield
