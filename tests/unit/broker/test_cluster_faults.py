"""What happens to a broker whose place is taken, whose clock is wrong, or whose store loses answers, history
or room: each time a defined outcome, and words that say what to do."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.cluster import Cluster, cluster

from braidmq.broker.broker import Broker
from braidmq.cluster import records
from braidmq.cluster.membership import JoinRefused
from braidmq.cluster.metadata_store import (
    Change,
    Compare,
    MetadataStore,
    Put,
    StoreFull,
    Unknown,
    Watch,
)
from braidmq.cluster.records import Format, encode
from braidmq.platform.clock import SystemClock
from braidmq.platform.host import Host
from braidmq.testing.process import BrokerFailed, BrokerProcess
from braidmq.wire.errors import ApiError, ErrorCode
from unit.embedded import append

HOUR_MS = 3_600_000
FULL = "etcd is full; raise its quota, then run etcdctl alarm disarm"


def tell(data: Path, story: Callable[[Cluster], Awaitable[None]], count: int = 2, **options: object) -> None:
    async def run() -> None:
        async with cluster(data, count, **options) as found:
            await asyncio.wait_for(story(found), 60)

    asyncio.run(run())


class FaultyStore:
    """A broker's own connection to the store: it loses answers, its watch, or has no room, as a test says."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self.loses_answers = False
        self.is_full = False
        self.lost = 0
        self.watching = asyncio.Event()
        self.watching.set()
        self._watches: list[FaultyWatch] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def commit(
        self, compares: Sequence[Compare] = (), puts: Sequence[Put] = (), deletes: Sequence[str] = ()
    ) -> int:
        if self.is_full:
            raise StoreFull(FULL)
        revision = await self._store.commit(compares, puts, deletes)
        if self.loses_answers:
            self.lost += 1
            raise Unknown("the answer was lost")
        return revision

    def watch(self, prefix: str, after_revision: int) -> Watch:
        watch = FaultyWatch(self, prefix, after_revision)
        self._watches.append(watch)
        return watch

    async def cut_watches(self) -> None:
        """Ends the watches as if their connection had broken; new ones are not opened until `watching`."""
        self.watching.clear()
        for watch in self._watches:
            watch.cut.set()


class FaultyWatch:
    """A watch that can be cut, and is then opened where it was."""

    def __init__(self, store: FaultyStore, prefix: str, after_revision: int) -> None:
        self._store = store
        self._prefix = prefix
        self._after = after_revision
        self._inner: Watch | None = None
        self.cut = asyncio.Event()

    def __aiter__(self) -> FaultyWatch:
        return self

    async def __anext__(self) -> Change:
        while True:
            await self._store.watching.wait()
            if self._inner is None:
                self._inner = self._store._store.watch(self._prefix, self._after)
            found = asyncio.ensure_future(anext(self._inner))
            cut = asyncio.ensure_future(self.cut.wait())
            try:
                await asyncio.wait([found, cut], return_when=asyncio.FIRST_COMPLETED)
                if found.done():
                    change = await found
                    self._after = change.revision
                    return change
            finally:
                found.cancel()
                cut.cancel()
                await asyncio.gather(found, cut, return_exceptions=True)
            self.cut.clear()
            await self._inner.close()
            self._inner = None

    async def close(self) -> None:
        if self._inner is not None:
            await self._inner.close()


async def started_through(found: Cluster, node_id: int) -> FaultyStore:
    """Starts a broker over a store that can fail."""
    stores: list[FaultyStore] = []

    def through(store: MetadataStore) -> FaultyStore:
        stores.append(FaultyStore(store))
        return stores[0]

    await found.start(node_id, through=through)
    await found.complete(node_id)
    return stores[0]


def test_a_copy_of_a_running_brokers_directory_is_refused(tmp_path: Path) -> None:
    """N4: the broker that runs keeps its place, and does not notice."""

    async def story(found: Cluster) -> None:
        topic = await found[1].broker.topics.create("t", 2, {}, [[1], [2]])
        await found.shown(topic.id)
        epoch = found[2].broker.metadata.epoch
        shutil.copytree(tmp_path / "2", tmp_path / "copy")
        where = rf"node id 2 is running at 127\.0\.0\.1:{found[2].port}; stop it, .* delete the copy"
        other = Cluster(tmp_path, Path(found.store.removeprefix("unix:")), {"cluster.lease.ms": 2000})
        with pytest.raises(JoinRefused, match=where):
            await other.start(2, data=tmp_path / "copy")
        assert found[2].broker.metadata.epoch == epoch
        assert not found[2].broker.metadata.membership.isolated

    tell(tmp_path, story, cluster_lease_ms=2000)


def test_a_directory_that_was_moved_waits_for_the_lease_of_its_last_run(tmp_path: Path) -> None:
    """N4: it may be a copy; three seconds later it is known not to be."""

    async def story(found: Cluster) -> None:
        await found.stop(2)
        (tmp_path / "2").rename(tmp_path / "moved")
        await found.start(2, data=tmp_path / "moved")
        await found.complete(2)

    tell(tmp_path, story, cluster_lease_ms=2000)


def test_a_newer_format_is_refused_and_running_brokers_go_on(tmp_path: Path) -> None:
    """N4: with which version to install; also as the words of `braid serve`."""

    async def story(found: Cluster) -> None:
        broker = found[1].broker
        store = broker.metadata.store
        await store.commit(
            puts=[Put(records.prefix("braid") + records.FORMAT, encode(Format(level=99), "me"))]
        )
        with pytest.raises(
            JoinRefused, match=r"format 99, this version .* reads up to 1; install the version"
        ):
            await found.start(2)
        process = BrokerProcess(tmp_path / "process", {"node.id": 3, "store": found.store})
        (tmp_path / "process").mkdir()
        with pytest.raises(BrokerFailed, match="install the version that the other brokers run"):
            await asyncio.to_thread(process.start)
        assert "Traceback" not in process.stderr
        await broker.topics.create("t", 1, {})

    tell(tmp_path, story, 1)


def test_lost_answers_change_nothing_about_what_was_changed(tmp_path: Path) -> None:
    """N4: topics are created, grown, changed and deleted once, and the client hears that they are."""

    async def story(found: Cluster) -> None:
        store = await started_through(found, 3)
        topics = found[3].broker.topics
        store.loses_answers = True
        topic = await topics.create("t", 3, {"retention.ms": "1000"})
        with pytest.raises(ApiError) as twice:
            await topics.create("t", 3, {})
        assert twice.value.code is ErrorCode.TOPIC_ALREADY_EXISTS
        await topics.grow("t", 5)
        await topics.reconfigure("t", {"retention.ms": "2000"})
        await found.shown(topic.id)
        await found.until(lambda broker: broker.topics.get("t").partition_count == 5)
        await found.until(lambda broker: broker.topics.get("t").config.retention_ms == 2000)
        ids = [await node.broker.producer_ids.take() for node in found for _ in range(3)]
        assert len(set(ids)) == 9
        assert store.lost >= 4
        await found[3].broker.delete_topic("t")
        await found.until(lambda broker: broker.topics.find("t") is None)

    tell(tmp_path, story)


def test_a_broker_whose_watch_was_compacted_compares_everything(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """N4: what came and went meanwhile is there and gone; nothing is jumped over."""

    async def story(found: Cluster) -> None:
        store = await started_through(found, 3)
        behind, other = found[3].broker, found[1].broker
        gone = await other.topics.create("gone", 1, {}, [[3]])
        await found.shown(gone.id)
        await store.cut_watches()
        await asyncio.sleep(0.1)
        await other.delete_topic("gone")
        await other.topics.create("kept", 2, {}, [[3], [1]])
        await other.topics.create("brief", 1, {}, [[3]])
        await other.delete_topic("brief")
        assert behind.topics.find("gone") is not None
        assert other.metadata.image.revision > behind.metadata.image.revision
        await other.metadata.store.compact(other.metadata.image.revision)
        store.watching.set()
        await found.until(lambda broker: broker.topics.find("kept"))
        await found.until(lambda broker: broker.topics.find("gone") is None)
        (held,) = behind.topics.get("kept").held.values()
        append(held, b"x", behind.clock.wall_ms())
        await held.settled()
        assert held.high_watermark == 1
        assert behind.topics.find("brief") is None
        assert "the watch of the metadata was lost, all of it is read again" in caplog.text

    caplog.set_level("INFO", "braid.cluster")
    tell(tmp_path, story)


def test_a_full_store_stops_changes_says_what_to_do_and_stops_no_records(tmp_path: Path) -> None:
    """N4: as with etcd at its quota; once there is room, changes are made again."""

    async def story(found: Cluster) -> None:
        store = await started_through(found, 3)
        broker = found[3].broker
        await broker.topics.create("t", 1, {}, [[3]])
        store.is_full = True
        with pytest.raises(ApiError, match="etcdctl alarm disarm") as refused:
            await broker.topics.create("late", 1, {})
        assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        (held,) = broker.topics.get("t").held.values()
        append(held, b"x", broker.clock.wall_ms())
        await held.settled()
        assert held.high_watermark == 1
        store.is_full = False
        # For a moment the broker answers with what it knows of the store, and does not ask it.
        async with asyncio.timeout(20):
            while not await created(broker, "late"):
                await asyncio.sleep(0.1)

    tell(tmp_path, story)


async def created(broker: Broker, topic: str) -> bool:
    try:
        await broker.topics.create(topic, 1, {})
    except ApiError as error:
        if error.code is not ErrorCode.KAFKA_STORAGE_ERROR:
            raise
        return False
    return True


class WrongClock(SystemClock):
    """A machine whose wall clock is an hour ahead."""

    def wall_ms(self) -> int:
        return super().wall_ms() + HOUR_MS


def test_clocks_apart_end_no_lease_no_group_and_no_record(tmp_path: Path) -> None:
    """N4 C6: leases and sessions count on each machine's own steady clock; `braid cluster status` warns."""

    async def story(found: Cluster) -> None:
        await found.start(3, host=Host(clock=WrongClock()))
        await found.complete(3)
        epochs = [node.broker.metadata.epoch for node in found]
        topic = await found[3].broker.topics.create("t", 6, {})
        await found.shown(topic.id)
        outcome: list[Any] = []
        thread = threading.Thread(target=lambda: outcome.append(use_groups(found.bootstrap)))
        thread.start()
        while thread.is_alive():
            await asyncio.sleep(0.05)
        assert outcome == [{f"g{number}": 60 for number in range(8)}]
        coordinators = {node.broker.node_id for node in found for shard in node.broker.groups if shard}
        assert coordinators == {1, 2, 3}
        assert [node.broker.metadata.epoch for node in found] == epochs
        assert not any(node.broker.metadata.membership.isolated for node in found)

    tell(tmp_path, story, cluster_lease_ms=2000, group_initial_rebalance_delay_ms=0)


def use_groups(bootstrap: str) -> dict[str, int]:
    """Sends records and lets eight groups, over all coordinators, read and commit them; the sums."""
    from confluent_kafka import Consumer, Producer, TopicPartition

    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(60):
        producer.produce("t", b"%d" % number, partition=number % 6)
    assert producer.flush(20) == 0
    committed = {}
    for group in (f"g{number}" for number in range(8)):
        consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
        )
        consumer.subscribe(["t"])
        taken = 0
        while taken < 60:
            taken += len(consumer.consume(60, 1.0))
        consumer.commit(asynchronous=False)
        wanted = [TopicPartition("t", index) for index in range(6)]
        committed[group] = sum(one.offset for one in consumer.committed(wanted, 10))
        consumer.close()
    return committed
