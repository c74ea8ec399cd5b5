"""A broker lives from its metadata store: it follows what changes there, and knows its own directory."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from braidmq.broker import broker as broker_module
from braidmq.broker.broker import Broker
from braidmq.cluster import records
from braidmq.cluster.changes import Changes
from braidmq.cluster.image import BrokerImage
from braidmq.cluster.membership import JoinRefused
from braidmq.cluster.metadata_store import Put
from braidmq.cluster.records import Alive, decode
from braidmq.cluster.settlement import Writer
from braidmq.platform.network import SocketNetwork
from braidmq.serve import Service
from unit.embedded import append, embedded, started

Story = Callable[[Broker], Awaitable[None]]


@pytest.fixture(autouse=True)
def _by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are removed when a test says so."""
    monkeypatch.setattr(broker_module, "TIDY_S", 3600.0)


def tell(data: Path, *stories: Story) -> None:
    """Runs each story on the same data, with a restart between them."""

    async def told() -> None:
        for story in stories:
            async with embedded(data) as broker:
                await story(broker)

    asyncio.run(told())


def somebody_else(broker: Broker) -> Changes:
    """Changes the same store, as another broker of the cluster does."""
    metadata = broker.metadata
    return Changes(metadata.store, metadata.feed, 1, Writer("2/other"))


def test_a_broker_follows_what_others_change(tmp_path: Path) -> None:
    """N4: topics come, grow, get options and go; options of brokers and groups count."""

    async def story(broker: Broker) -> None:
        changes, topics = somebody_else(broker), broker.topics
        topic_id = bytes(range(16))
        await changes.create_topic("orders", topic_id, [(1,)] * 3, {"retention.ms": "1000"})
        topic = topics.get("orders")
        assert (topic.id, topic.partition_count, topics.partition_count) == (topic_id, 3, 3)
        assert topic.config.retention_ms == 1000
        append(topic.held[2], b"x", broker.clock.wall_ms())

        shown = broker.metadata.image.topics[topic_id]
        await changes.grow_topic(shown, [(1,)] * 2)
        assert (topic.partition_count, topics.partition_count) == (5, 5)
        await changes.reconfigure_topic(broker.metadata.image.topics[topic_id], {"retention.ms": "2000"})
        assert topic.held[4].config.retention_ms == 2000

        await changes.set_options(records.OF_BROKERS, "", {"num.partitions": "7"})
        assert (await topics.find_or_create("late")).partition_count == 7
        await changes.set_options(records.OF_GROUPS, "g", {"share.record.lock.duration.ms": "20000"})
        assert broker.group_options.share("g").limits.lock_ms == 20000

        await changes.delete_topic(broker.metadata.image.topics[topic_id], broker.clock.wall_ms(), [])
        assert topics.find("orders") is None
        assert topics.partition_count == 7
        await topics.tidy()
        assert not topic.path.exists()

    tell(tmp_path, story)


def test_partitions_have_the_epoch_of_their_record(tmp_path: Path) -> None:
    """N4: from the start and when it changes."""

    async def raised(broker: Broker) -> None:
        topic = await broker.topics.create("t", 2, {})
        metadata = broker.metadata
        record = records.PartitionMeta(leader=1, epoch=4, replicas=(1,), isr=(1,))
        key = metadata.image.key(records.partition_key(topic.id, 1))
        await metadata.feed.reached(
            await metadata.store.commit(puts=[Put(key, records.encode(record, "other"))])
        )
        assert [part.leader_epoch for part in topic.held.values()] == [0, 4]

    async def found(broker: Broker) -> None:
        assert [part.leader_epoch for part in broker.topics.get("t").held.values()] == [0, 4]

    tell(tmp_path, raised, found)


def test_files_go_with_a_record_of_the_deletion_and_with_nothing_less(tmp_path: Path) -> None:
    """N4 L6: a topic that vanishes from the metadata is set aside at the next start, with its records."""
    paths: list[Path] = []

    async def vanishes(broker: Broker) -> None:
        topic = await broker.topics.create("orders", 1, {})
        append(topic.held[0], b"x", broker.clock.wall_ms(), 5)
        paths.append(topic.path)
        metadata = broker.metadata
        deletes = [records.topic_key(topic.id), records.name_key("orders")]
        revision = await metadata.store.commit(deletes=[metadata.image.key(key) for key in deletes])
        await metadata.feed.reached(revision)
        assert broker.topics.find("orders") is None
        await broker.topics.tidy()
        assert topic.path.exists()
        assert list(metadata.image.leftovers()) == []

    async def set_aside(broker: Broker) -> None:
        await broker.topics.tidy()
        assert not paths[0].exists()
        assert any(paths[0].with_name(paths[0].name + ".unknown").iterdir())

    tell(tmp_path, vanishes, set_aside)


def test_a_broker_shows_where_it_can_be_reached_while_it_can(tmp_path: Path) -> None:
    """N1 N4: after its listener is bound, until it stops; one that was killed registers again at once."""
    seen: list[BrokerImage] = []

    async def serve(broker: Broker) -> None:
        brokers = broker.metadata.image.brokers
        assert brokers[1].alive is None
        service = Service(broker, SocketNetwork())
        await service.listen(("127.0.0.1", 0), ("queue.example.com", 9092))
        await broker.metadata.feed.reached((await broker.metadata.store.snapshot("")).revision)
        seen.append(brokers[1])
        alive = brokers[1].alive
        assert alive is not None
        assert alive.record.listeners == (records.Listener("kafka", "queue.example.com", 9092),)
        await service.drain()

    async def killed() -> None:
        broker = await started(tmp_path / "data")
        await serve(broker)
        shutil.copytree(tmp_path / "data", tmp_path / "copy")
        await broker.stop()
        again = await started(tmp_path / "copy")
        await serve(again)
        await again.stop()
        async with embedded(tmp_path / "copy") as broker:
            key = broker.metadata.image.key(records.alive_key(1))
            assert await broker.metadata.store.get(key) is None

    asyncio.run(killed())
    first, second = seen
    assert second.epoch > first.epoch
    assert first.node == second.node


def test_a_directory_is_not_started_as_another_node_or_cluster(tmp_path: Path) -> None:
    """N4: with what to do instead; and it is as it was."""

    async def run() -> None:
        async with embedded(tmp_path) as broker:
            await broker.topics.create("orders", 1, {})
            cluster_id = broker.cluster_id
        for options, complaint in (
            ({"node.id": 2}, "belongs to node 1.*-o node.id=1"),
            ({"cluster.name": "other"}, "cluster 'braid'.*-o cluster.name=braid"),
        ):
            for _ in range(2):
                with pytest.raises(JoinRefused, match=complaint):
                    await started(tmp_path, **options)  # type: ignore[arg-type]
        async with embedded(tmp_path) as broker:
            assert broker.cluster_id == cluster_id
            assert broker.topics.find("orders") is not None

    asyncio.run(run())


@pytest.mark.parametrize("left", [None, b"", b"00000000 {}\n", b"a3a1db49 {}\n"])
def test_a_lost_or_damaged_node_file_is_written_again(tmp_path: Path, left: bytes | None) -> None:
    """N4: the store lies in the same directory and knows whose it is."""
    kept: list[tuple[str, object]] = []

    async def look(broker: Broker) -> None:
        kept.append((broker.cluster_id, broker.metadata.image.brokers[1].node))

    tell(tmp_path, look)
    (tmp_path / "node").unlink()
    if left is not None:
        (tmp_path / "node").write_bytes(left)
    tell(tmp_path, look, look)
    assert kept[0] == kept[1] == kept[2]


def test_a_copied_store_of_another_cluster_is_refused(tmp_path: Path) -> None:
    """N4: its topics are not those of this directory."""

    async def run() -> None:
        for name in ("one", "two"):
            async with embedded(tmp_path / name):
                pass
        shutil.copy(tmp_path / "one" / "metadata.store", tmp_path / "two" / "metadata.store")
        with pytest.raises(JoinRefused, match="belongs to cluster"):
            await started(tmp_path / "two")

    asyncio.run(run())


def test_an_alive_broker_tells_that_a_power_loss_may_have_cost_it_something(tmp_path: Path) -> None:
    """N4: after a kill on the same boot nothing is lost; after another boot it may be."""

    async def run() -> None:
        async with embedded(tmp_path) as broker:
            partition = (await broker.topics.create("t", 1, {})).held[0]
            append(partition, b"x", broker.clock.wall_ms())
            shutil.copytree(tmp_path, tmp_path.with_name("copy"))
        node = tmp_path.with_name("copy") / "node"
        for boot, lost in (("same", False), ("another", True)):
            directory = tmp_path.with_name(boot)
            shutil.copytree(node.parent, directory)
            if lost:
                (directory / "node").unlink()
            async with embedded(directory) as broker:
                await broker.metadata.appear("localhost", 1)
                key = broker.metadata.image.key(records.alive_key(1))
                item = await broker.metadata.store.get(key)
                assert item is not None
                assert decode(Alive, key, item.value).lost_unsynced is lost

    asyncio.run(run())
