"""Shards: which partition coordinates a key, and when the coordinator is there."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from braidmq.broker import shards as shards_module
from braidmq.broker.broker import Broker
from braidmq.broker.internal_partition import InternalPartition
from braidmq.broker.shards import NOBODY, Shards, java_hash, kept_partition_of, partition_of
from braidmq.cluster import records
from braidmq.cluster.image import Delta, Move, PartitionId
from braidmq.wire.errors import ApiError, ErrorCode
from unit.embedded import embedded

NAME = "__kept"
OPTIONS = {"cleanup.policy": "compact", "flush": "sync"}


class Ledger:
    """A shard that knows the keys of its partition."""

    def __init__(self, partition: InternalPartition) -> None:
        self.partition = partition
        self.keys: list[bytes] = []
        self.ended: list[str] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def load(self) -> None:
        await self.gate.wait()
        await self.partition.read_records(lambda key, _: self.keys.append(key))

    def resign(self) -> None:
        self.ended.append("resigned")

    def stop(self) -> None:
        self.ended.append("stopped")


def made(broker: Broker, count: int = 4, node_id: int = 1) -> Shards[Ledger]:
    image = broker.metadata.image
    found = Shards(image, broker.topics, node_id, NAME, lambda: count, OPTIONS, Ledger, broker.clock)
    broker.metadata.feed.listen(found.follow)
    found.start()
    return found


@pytest.mark.parametrize(
    ("key", "hashed"),
    [
        ("", 0),
        ("a", 97),
        ("hello world", 1794106052),
        ("polygenelubricants", -(2**31)),
        ("\U0001f600", 1772899),
    ],
)
def test_a_key_is_hashed_as_java_does(key: str, hashed: int) -> None:
    """N4: clients of Kafka and its tools find the same partition."""
    assert java_hash(key) == hashed


def test_the_hash_without_an_absolute_value_is_partition_0() -> None:
    """N4: as in Kafka's Utils.abs."""
    assert partition_of("polygenelubricants", 50) == 0
    assert partition_of("hello world", 50) == 1794106052 % 50


def test_a_long_key_is_hashed_quickly_and_not_kept() -> None:
    """N3: what strangers send as a key costs neither much time of the loop nor memory."""
    for key in ("ab\u00e9" * 11_000, "x" * 256, "x" * 257, "y" * 255 + "\U0001f600" * 300):
        slow = 0
        units = key.encode("utf-16-be")
        for at in range(0, len(units), 2):
            slow = (31 * slow + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
        assert java_hash(key) & 0xFFFFFFFF == slow
        assert partition_of(key, 50) == abs(java_hash(key)) % 50
    kept_partition_of.cache_clear()
    partition_of("x" * 30_000, 50)
    assert kept_partition_of.cache_info().currsize == 0


def test_the_first_who_comes_makes_the_topic_and_finds_its_shard_loaded(tmp_path: Path) -> None:
    """N4: an internal topic comes when it is needed, with as many partitions as are asked for."""

    async def story() -> None:
        async with embedded(tmp_path) as broker:
            found = made(broker)
            assert not found.exists
            assert found.leader_of("k") == NOBODY
            with pytest.raises(ApiError) as missing:
                found.of("k")
            assert missing.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
            both = await asyncio.gather(found.reach("k"), found.reach("k"))
            assert both[0] is both[1]
            assert found.of("k").partition.index == partition_of("k", 4)
            assert [shard.partition.index for shard in found] == [0, 1, 2, 3]
            assert found.leader_of("k") == 1
            found.stop()
            assert {tuple(shard.ended) for shard in found} == {("stopped",)}

    asyncio.run(story())


def test_a_shard_that_is_being_read_says_so(tmp_path: Path) -> None:
    """N4: clients ask again until everything that was written is known."""

    async def story() -> None:
        async with embedded(tmp_path) as broker:
            topic = await broker.topics.create_own(NAME, OPTIONS)
            first = InternalPartition(topic.held[0], broker.clock)
            await first.written([(b"one", b"v")])
            found = made(broker)
            with pytest.raises(ApiError) as loading:
                found.of("k")
            assert loading.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            assert list(found) == []
            await found.loaded()
            assert found.of("k").keys == [b"one"]

    asyncio.run(story())


def test_another_brokers_partition_is_not_coordinated_here(tmp_path: Path) -> None:
    """N4: the client is sent away, and asks for the coordinator again."""

    async def story() -> None:
        async with embedded(tmp_path) as broker:
            await broker.topics.create_own(NAME, OPTIONS)
            found = made(broker, node_id=2)
            with pytest.raises(ApiError) as elsewhere:
                found.of("k")
            assert elsewhere.value.code is ErrorCode.NOT_COORDINATOR

    asyncio.run(story())


def moved(broker: Broker, leader: int, epoch: int) -> Delta:
    """Another leader in the image, and what the feed would say of it."""
    shown = broker.metadata.image.find(NAME)
    assert shown is not None
    before = shown.partitions[0]
    assert before is not None
    after = before._replace(record=replace(before.record, leader=leader, epoch=epoch))
    shown.partitions[0] = after
    return Delta(1, partitions={PartitionId(shown.id, 0): Move(before, after)})


def test_a_shard_goes_with_its_leadership_and_comes_back_with_a_new_epoch(tmp_path: Path) -> None:
    """N4: what an old leader believed is read anew."""

    async def story() -> None:
        async with embedded(tmp_path) as broker:
            found = made(broker, count=1)
            old = await found.reach("k")
            away = moved(broker, leader=2, epoch=1)
            broker.topics.follow(away)
            found.follow(away)
            assert old.ended == ["resigned"]
            with pytest.raises(ApiError):
                old.partition.append([(b"late", b"v")])
            with pytest.raises(ApiError):
                found.of("k")
            back = moved(broker, leader=1, epoch=2)
            broker.topics.follow(back)
            found.follow(back)
            await found.loaded()
            new = found.of("k")
            assert new is not old
            new.partition.append([(b"early", b"v")])
            assert (old.partition.epoch, new.partition.epoch) == (0, 2)

    asyncio.run(story())


def test_a_write_whose_fate_is_unknown_has_the_shard_read_again(tmp_path: Path) -> None:
    """N4: it counts if it is in the log."""

    async def story() -> None:
        async with embedded(tmp_path) as broker:
            found = made(broker, count=1)
            old = await found.reach("k")
            await old.partition.written([(b"one", b"v")])
            assert old.keys == []
            old.partition.lost(ErrorCode.REQUEST_TIMED_OUT)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            await found.loaded()
            assert old.ended == ["resigned"]
            assert found.of("k").keys == [b"one"]

    asyncio.run(story())


def test_loading_that_fails_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """N4: a coordinator that cannot be read now is read later."""
    monkeypatch.setattr(shards_module, "RETRY_FIRST_S", 0.001)
    left = [OSError("no disk"), ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "no disk"), RuntimeError("a mistake")]
    plain = InternalPartition.read_records

    async def failing(partition: InternalPartition, take: object) -> None:
        if left:
            raise left.pop()
        await plain(partition, take)  # type: ignore[arg-type]

    monkeypatch.setattr(InternalPartition, "read_records", failing)

    async def story() -> None:
        async with embedded(tmp_path) as broker:
            found = made(broker, count=1)
            with pytest.raises(ApiError) as refused:
                await found.reach("k")
            assert refused.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            while found.is_loading:
                await asyncio.sleep(0.001)
            assert not left
            assert found.of("k")

    asyncio.run(story())


def test_the_internal_topic_of_a_deleted_name_is_let_go(tmp_path: Path) -> None:
    """N4: an image that shows no topic has no shards."""

    async def story() -> None:
        async with embedded(tmp_path) as broker:
            found = made(broker, count=1)
            old = await found.reach("k")
            await broker.topics.delete(NAME)
            assert old.ended == ["resigned"]
            assert broker.metadata.image.mod_revision(records.name_key(NAME)) == 0
            assert list(found) == []

    asyncio.run(story())


def test_nothing_is_loaded_before_the_start(tmp_path: Path) -> None:
    """N4: a change of the topic while a broker recovers what a crash left must not open its log as well."""

    async def story() -> None:
        async with embedded(tmp_path) as broker:
            image = broker.metadata.image
            found = Shards(image, broker.topics, 1, NAME, lambda: 2, OPTIONS, Ledger, broker.clock)
            broker.metadata.feed.listen(found.follow)
            topic = await broker.topics.create_own(NAME, OPTIONS, 2)
            await broker.topics.reconfigure(NAME, {**OPTIONS, "segment.bytes": "1048576"})
            await asyncio.sleep(0.05)
            assert not any(replica.is_open for replica in topic.held.values())
            found.start()
            await found.loaded()
            assert len(list(found)) == 2
            found.stop()

    asyncio.run(story())
