"""The share coordinator: keeps the delivery state of share partitions for the brokers that lead them.

One shard per partition of `__share_group_state`. It does not deliver anything: the window of a group on a
partition lives with the partition's leader (`share_delivery`), which reads its state here when it begins, and
writes what changes. Two epochs keep others out, as in Kafka:

    leader epoch   of the partition. A leader of an older epoch is refused with FENCED_LEADER_EPOCH; a read
                   under a newer one is written down before it is answered.
    state epoch    rises when the state is set anew, such as by AlterShareGroupOffsets. A leader that still
                   has the window of before is refused with FENCED_STATE_EPOCH and has to read again.

A new state takes an epoch no lower than the end of the shard's log, which only grows. So a state that was
deleted and made again has another epoch than before, though nothing of the old one is kept.

A state is its last snapshot and the changes after it, as bytes: nothing is decoded here, unless a leader
sends more changes without a snapshot than there are slots for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from braidmq.broker.internal_partition import InternalPartition, KeyValue
from braidmq.broker.share_records import (
    DELTAS_MAX,
    SharePartitionKey,
    StoredWindow,
    StoredWindows,
    delta_key,
    snapshot_key,
    stored_value,
    tombstones,
)
from braidmq.delivery import window_codec
from braidmq.delivery.status import SETTLED, DeliveryLimits
from braidmq.delivery.window import DeliveryWindow
from braidmq.delivery.window_codec import BadState
from braidmq.wire.errors import ApiError, ErrorCode

log = logging.getLogger("braid.share")

TOPIC_OPTIONS = {"cleanup.policy": "compact", "segment.bytes": "16777216"}
FIRST_EPOCH = 0
"""With this epoch a state is made only where there is none."""
EPOCH_MAX = 2**31 - 1
_UNLIMITED = DeliveryLimits(in_flight_max=2**31 - 1, deliveries_max=2**31 - 1)


class NewState(NamedTuple):
    """A state to begin with."""

    state_epoch: int
    start_offset: int


class StateChange(NamedTuple):
    """What has changed in a window, or all of it, in the form of `window_codec`."""

    state_epoch: int
    leader_epoch: int
    content: bytes
    is_whole: bool


class StateSummary(NamedTuple):
    """Where a group is on a partition."""

    state_epoch: int
    leader_epoch: int
    start_offset: int
    settled: int
    """Offsets at or after the start that are done with."""


class Taken(NamedTuple):
    """What became of changes: those refused, and the offset at which the others are durable."""

    refused: dict[SharePartitionKey, ApiError]
    durable_at: int | None


class ShareCoordinator:
    """The delivery states of one shard."""

    def __init__(self, partition: InternalPartition, was_deleted: Callable[[bytes], bool]) -> None:
        self._partition = partition
        self._was_deleted = was_deleted
        self._states: dict[SharePartitionKey, StoredWindow] = {}
        self._end = 0
        """The offset at which everything that shows here is durable."""

    # -- a shard's life -------------------------------------------------------------------------

    async def load(self) -> None:
        found = StoredWindows()
        await self._partition.read_records(found.record)
        if found.unreadable:
            log.warning("%s: cannot read %d records; they are skipped", self._partition, found.unreadable)
        self._states = found.windows
        # The broker went down between the deletion of a topic and forgetting what was kept for it.
        gone = dict.fromkeys(key.topic_id for key in self._states if self._was_deleted(key.topic_id))
        for topic_id in gone:
            self.forget_topic(topic_id)

    def resign(self) -> None:
        self._states = {}

    def stop(self) -> None:
        """There is nothing that would begin by itself."""

    # -- looking --------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[SharePartitionKey]:
        return iter(self._states)

    def of_group(self, group_id: str) -> list[SharePartitionKey]:
        return [key for key in self._states if key.group_id == group_id]

    async def read(
        self, asked: Mapping[SharePartitionKey, int]
    ) -> dict[SharePartitionKey, StoredWindow | ApiError | None]:
        """The states, for leaders of these epochs; None where there is none. What is answered is durable."""
        found: dict[SharePartitionKey, StoredWindow | ApiError | None] = {}
        raised: dict[SharePartitionKey, StateChange] = {}
        for key, leader_epoch in asked.items():
            state = self._states.get(key)
            if state is not None and leader_epoch < state.leader_epoch:
                found[key] = _fenced_leader(key, leader_epoch, state)
                continue
            if state is not None and leader_epoch > state.leader_epoch:
                nothing = window_codec.encode(state.start_offset, ())
                raised[key] = StateChange(state.state_epoch, leader_epoch, nothing, is_whole=False)
            found[key] = state
        if raised:
            self.write(raised)
        copied = {
            key: StoredWindow(one.state_epoch, one.leader_epoch, one.snapshot, list(one.deltas))
            if isinstance(one, StoredWindow)
            else one
            for key, one in found.items()
        }
        await self.settled()
        return copied

    async def summarize(
        self, keys: Iterable[SharePartitionKey]
    ) -> dict[SharePartitionKey, StateSummary | None]:
        found = {
            key: _summary(state) if (state := self._states.get(key)) is not None else None for key in keys
        }
        await self.settled()
        return found

    # -- changing -------------------------------------------------------------------------------

    def initialize(self, asked: Mapping[SharePartitionKey, NewState]) -> Taken:
        """Makes states, in place of those of lower epochs. ApiError if nothing can be written."""
        refused: dict[SharePartitionKey, ApiError] = {}
        made: dict[SharePartitionKey, StoredWindow] = {}
        least_epoch = self._partition.replica.end_offset & EPOCH_MAX
        for key, (state_epoch, start_offset) in asked.items():
            before = self._states.get(key)
            if self._was_deleted(key.topic_id):
                refused[key] = ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "the topic was deleted")
            elif before is not None and state_epoch <= before.state_epoch:
                refused[key] = ApiError(
                    ErrorCode.FENCED_STATE_EPOCH, f"the state has epoch {before.state_epoch} already"
                )
            else:
                leader_epoch = 0 if before is None else before.leader_epoch
                content = window_codec.encode(start_offset, ())
                made[key] = StoredWindow(max(state_epoch, least_epoch), leader_epoch, content)
        if not made:
            return Taken(refused, None)
        self._append([_snapshot_record(key, state) for key, state in made.items()])
        self._states.update(made)
        return Taken(refused, self._end)

    def write(self, asked: Mapping[SharePartitionKey, StateChange]) -> Taken:
        """Takes changes, all of them in one write. ApiError if nothing can be written."""
        refused: dict[SharePartitionKey, ApiError] = {}
        records: list[KeyValue] = []
        changed: list[tuple[StoredWindow, StateChange]] = []
        for key, change in asked.items():
            try:
                state = self._fenced(key, change)
                if not change.is_whole and len(state.deltas) >= DELTAS_MAX:
                    whole = _restored(state, [change.content]).snapshot()
                    change = change._replace(content=whole, is_whole=True)
            except ApiError as error:
                refused[key] = error
                continue
            record_key = snapshot_key(key) if change.is_whole else delta_key(key, len(state.deltas))
            records.append(
                (record_key, stored_value(change.state_epoch, change.leader_epoch, change.content))
            )
            changed.append((state, change))
        if not records:
            return Taken(refused, None)
        self._append(records)
        for state, change in changed:
            state.leader_epoch = change.leader_epoch
            if change.is_whole:
                state.snapshot, state.deltas = change.content, []
            else:
                state.deltas.append(change.content)
        return Taken(refused, self._end)

    def _fenced(self, key: SharePartitionKey, change: StateChange) -> StoredWindow:
        """The state, unless the writer has none or an old one, or leads no longer."""
        state = self._states.get(key)
        if state is None:
            raise ApiError(ErrorCode.FENCED_STATE_EPOCH, "the state was deleted")
        if change.leader_epoch < state.leader_epoch:
            raise _fenced_leader(key, change.leader_epoch, state)
        if change.state_epoch != state.state_epoch:
            raise ApiError(
                ErrorCode.FENCED_STATE_EPOCH,
                f"the state has epoch {state.state_epoch}, not {change.state_epoch}",
            )
        return state

    def delete(self, keys: Iterable[SharePartitionKey]) -> Taken:
        """Forgets states; those that are not there are forgotten already."""
        gone = [key for key in keys if key in self._states]
        if not gone:
            return Taken({}, None)
        self._append([record for key in gone for record in tombstones(key)])
        for key in gone:
            del self._states[key]
        return Taken({}, self._end)

    def forget_topic(self, topic_id: bytes) -> None:
        """Forgets what is kept for a topic that was deleted."""
        self.delete([key for key in self._states if key.topic_id == topic_id])

    def _append(self, records: list[KeyValue]) -> None:
        self._end = self._partition.append(records)

    # -- waiting --------------------------------------------------------------------------------

    async def settled(self) -> None:
        """Returns when everything that shows here is durable. ApiError when it never will be."""
        if self._end and not self._partition.is_durable(self._end):
            await self._partition.durable(self._end)

    async def durable(self, offset: int) -> None:
        """Returns when everything below `offset` is on disk. ApiError when it never will be."""
        await self._partition.durable(offset)


def _snapshot_record(key: SharePartitionKey, state: StoredWindow) -> KeyValue:
    return snapshot_key(key), stored_value(state.state_epoch, state.leader_epoch, state.snapshot)


def _restored(state: StoredWindow, more: Iterable[bytes] = ()) -> DeliveryWindow:
    try:
        return DeliveryWindow.restore(state.snapshot, [*state.deltas, *more], _UNLIMITED, 0)
    except BadState as error:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"this is no change of the state: {error}") from None


def _summary(state: StoredWindow) -> StateSummary:
    try:
        window = _restored(state)
    except ApiError as error:
        log.error("cannot read a delivery state, saying only where it begins: %s", error)
        return StateSummary(state.state_epoch, state.leader_epoch, state.start_offset, 0)
    settled = sum(last - first + 1 for first, last, status in window.runs() if status.state in SETTLED)
    return StateSummary(state.state_epoch, state.leader_epoch, window.start_offset, settled)


def _fenced_leader(key: SharePartitionKey, leader_epoch: int, state: StoredWindow) -> ApiError:
    return ApiError(
        ErrorCode.FENCED_LEADER_EPOCH,
        f"partition {key.partition} has a leader of epoch {state.leader_epoch}, not {leader_epoch}",
    )
