"""The share coordinator: what is kept of a window, and who may change it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest

from braidmq.broker.internal_partition import InternalPartition, KeyValue
from braidmq.broker.share_coordinator import NewState, ShareCoordinator, StateChange
from braidmq.broker.share_records import DELTAS_MAX, SharePartitionKey, StoredWindow
from braidmq.delivery import window_codec
from braidmq.delivery.status import DeliveryState
from braidmq.delivery.window_codec import StoredRun
from braidmq.wire.errors import ApiError, ErrorCode

KEY = SharePartitionKey("workers", b"t" * 16, 3)


class Written:
    """A partition in memory; what is appended is durable."""

    def __init__(self) -> None:
        self.records: list[KeyValue] = []
        self.fails = False

    @property
    def replica(self) -> SimpleNamespace:
        return SimpleNamespace(end_offset=len(self.records))

    def append(self, records: list[KeyValue]) -> int:
        if self.fails:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "no space")
        self.records += records
        return len(self.records)

    def is_durable(self, offset: int) -> bool:
        return offset <= len(self.records)

    async def read_records(self, take: object) -> None:
        for key, value in self.records:
            take(key, value)  # type: ignore[operator]


def shard(on: Written, *deleted: bytes) -> ShareCoordinator:
    made = ShareCoordinator(cast(InternalPartition, on), lambda topic_id: topic_id in deleted)
    asyncio.run(made.load())
    return made


def acked(start: int, first: int, last: int) -> bytes:
    runs = [StoredRun(first, last, DeliveryState.ACKED, 1)]
    return window_codec.encode(start, runs)


def begun(start: int = 10) -> tuple[Written, ShareCoordinator, int]:
    """A shard with one state, and the epoch of that."""
    on = Written()
    made = shard(on)
    assert made.initialize({KEY: NewState(0, start)}).refused == {}
    return on, made, read(made).state_epoch


def read(made: ShareCoordinator, leader_epoch: int = 0) -> StoredWindow:
    found = asyncio.run(made.read({KEY: leader_epoch}))[KEY]
    assert isinstance(found, StoredWindow), found
    return found


def write(
    made: ShareCoordinator, state_epoch: int, content: bytes, leader_epoch: int = 0, whole: bool = False
) -> ErrorCode:
    change = StateChange(state_epoch, leader_epoch, content, whole)
    refusal = made.write({KEY: change}).refused.get(KEY)
    return ErrorCode.NONE if refusal is None else refusal.code


def test_a_leader_of_before_can_neither_read_nor_write() -> None:
    """N4 C1: the newest leader that has read or written fences all before it, also after a reload."""
    on, made, epoch = begun()
    assert write(made, epoch, acked(10, 10, 12), leader_epoch=4) is ErrorCode.NONE
    assert write(made, epoch, acked(10, 13, 13), leader_epoch=3) is ErrorCode.FENCED_LEADER_EPOCH
    assert read(made, leader_epoch=6).leader_epoch == 6
    for one in (made, shard(on)):
        assert write(one, epoch, acked(10, 13, 13), leader_epoch=5) is ErrorCode.FENCED_LEADER_EPOCH
        refused = asyncio.run(one.read({KEY: 5}))[KEY]
        assert isinstance(refused, ApiError)
        assert refused.code is ErrorCode.FENCED_LEADER_EPOCH
        assert read(one, leader_epoch=6).deltas[0] == acked(10, 10, 12)


def test_a_state_that_was_set_anew_fences_the_window_of_before() -> None:
    """N4 C1: whoever has the window of the old epoch reads again before it writes."""
    on, made, epoch = begun()
    refused = made.initialize({KEY: NewState(epoch, 50)}).refused[KEY]
    assert refused.code is ErrorCode.FENCED_STATE_EPOCH
    assert made.initialize({KEY: NewState(epoch + 1, 50)}).refused == {}
    for one in (made, shard(on)):
        found = read(one)
        assert (found.start_offset, found.deltas) == (50, [])
        assert found.state_epoch > epoch
        assert write(one, epoch, acked(10, 10, 12)) is ErrorCode.FENCED_STATE_EPOCH
        assert write(one, found.state_epoch, acked(50, 51, 52)) is ErrorCode.NONE


def test_a_state_that_was_deleted_and_made_again_is_another_one() -> None:
    """N4 C1: nothing is kept of a deleted state, and yet its last leader is fenced."""
    on, made, epoch = begun()
    made.delete([KEY])
    assert write(made, epoch, acked(10, 10, 12)) is ErrorCode.FENCED_STATE_EPOCH
    made = shard(on)
    assert list(made) == []
    assert made.initialize({KEY: NewState(0, 10)}).refused == {}
    assert read(made).state_epoch > epoch
    assert write(made, epoch, acked(10, 10, 12)) is ErrorCode.FENCED_STATE_EPOCH


def test_only_the_first_of_two_beginnings_counts() -> None:
    """N4 C1: a leader that begins a group does not undo what an administrator has set meanwhile."""
    _, made, _ = begun(start=100)
    assert made.initialize({KEY: NewState(0, 7)}).refused[KEY].code is ErrorCode.FENCED_STATE_EPOCH
    assert read(made).start_offset == 100


def test_changes_without_a_snapshot_are_merged_when_their_slots_are_used_up() -> None:
    """N4 C1 L9: what a window leaves in the topic is bounded, whatever its leader sends."""
    on, made, epoch = begun(start=0)
    count = 2 * DELTAS_MAX + 5
    for offset in range(1, 2 * count, 2):
        content = window_codec.encode(
            0,
            [
                StoredRun(offset - 1, offset - 1, DeliveryState.AVAILABLE, 1),
                StoredRun(offset, offset, DeliveryState.ACKED, 1),
            ],
        )
        assert write(made, epoch, content) is ErrorCode.NONE
    assert len({key for key, _ in on.records}) <= 1 + DELTAS_MAX
    for one in (made, shard(on)):
        summary = asyncio.run(one.summarize([KEY]))[KEY]
        assert summary is not None
        assert (summary.start_offset, summary.settled) == (0, count)


def test_what_could_not_be_written_does_not_show() -> None:
    """N4 C1: a reader never sees a change that its writer heard was refused."""
    on, made, epoch = begun()
    on.fails = True
    with pytest.raises(ApiError):
        made.write({KEY: StateChange(epoch, 0, acked(10, 10, 12), False)})
    with pytest.raises(ApiError):
        made.initialize({KEY: NewState(epoch + 1, 90)})
    with pytest.raises(ApiError):
        made.delete([KEY])
    found = read(made)
    assert (found.start_offset, found.deltas, found.state_epoch) == (10, [], epoch)


def test_a_deleted_topic_is_forgotten_also_by_a_shard_that_was_not_there() -> None:
    """N4 C1: states of topics whose deletion is recorded go when the shard is loaded, and none is made."""
    on, _, _ = begun()
    made = shard(on, KEY.topic_id)
    assert list(made) == []
    refused = made.initialize({KEY: NewState(0, 0)}).refused[KEY]
    assert refused.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert list(shard(on)) == []


def test_states_of_before_there_were_epochs_are_read() -> None:
    """N4 C1: a broker that is brought up to date knows where its groups were."""
    from braidmq.broker.share_records import delta_key, snapshot_key

    on = Written()
    on.append([(snapshot_key(KEY), window_codec.encode(5, ())), (delta_key(KEY, 0), acked(5, 6, 6))])
    found = read(shard(on))
    assert (found.state_epoch, found.start_offset, len(found.deltas)) == (0, 5, 1)
    made = shard(on)
    assert made.initialize({KEY: NewState(0, 99)}).refused[KEY].code is ErrorCode.FENCED_STATE_EPOCH
    assert write(made, 0, acked(5, 7, 7)) is ErrorCode.NONE
