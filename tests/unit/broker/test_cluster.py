"""Several brokers over one store: what each of them holds, and what it says of the others."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from braidmq.cluster import records
from braidmq.cluster.membership import JoinRefused
from braidmq.wire.errors import ApiError, ErrorCode
from cluster import cluster
from unit.embedded import append, started


def test_a_topic_is_spread_over_the_brokers_and_held_where_the_image_says(tmp_path: Path) -> None:
    """N3: any broker creates a topic; each holds its own partitions, and knows who leads the others."""

    async def story() -> None:
        async with cluster(tmp_path, 3) as found:
            topic = await found[2].broker.topics.create("t", 6, {})
            await found.shown(topic.id)
            for node_id in (1, 2, 3):
                broker = found[node_id].broker
                held = broker.topics.get("t").held
                assert (broker.topics.get("t").partition_count, len(held)) == (6, 2)
                for index in range(6):
                    leader = broker.leader(topic.id, index)
                    assert (leader.node_id == node_id) == (index in held)
                    assert broker.endpoint(leader.node_id) == ("127.0.0.1", found[leader.node_id].port)
                    if index not in held:
                        with pytest.raises(ApiError) as refused:
                            broker.partition("t", index)
                        assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER

    asyncio.run(story())


def test_a_holder_makes_the_directory_and_a_broker_without_a_part_makes_none(tmp_path: Path) -> None:
    """N3: what a broker does not hold leaves no trace on its disk."""

    async def story() -> None:
        async with cluster(tmp_path, 2) as found:
            topic = await found[1].broker.topics.create("t", 1, {}, [[2]])
            await found.shown(topic.id)
            await asyncio.gather(*(node.broker.topics.tidy() for node in found))
            here = [(tmp_path / str(node_id) / "topics" / topic.path.name) for node_id in (1, 2)]
            assert [path.exists() for path in here] == [False, True]
            assert (here[1] / "topic").exists()

    asyncio.run(story())


def test_a_deleted_topic_goes_at_every_holder_and_its_files_with_it(tmp_path: Path) -> None:
    """N3: any broker deletes it; each removes what it holds, also one that was not there."""

    async def story() -> None:
        async with cluster(tmp_path, 3) as found:
            topic = await found[1].broker.topics.create("t", 3, {})
            await found.shown(topic.id)
            paths = [tmp_path / str(node_id) / "topics" / topic.path.name for node_id in (1, 2, 3)]
            await asyncio.gather(*(node.broker.topics.tidy() for node in found))
            assert [path.exists() for path in paths] == [True, True, True]
            await found.stop(3)
            await found[2].broker.delete_topic("t")
            await found.until(lambda broker: broker.topics.find("t") is None)
            await asyncio.gather(*(node.broker.topics.tidy() for node in found))
            assert [path.exists() for path in paths] == [False, False, True]
            await found.start(3)
            assert found[3].broker.topics.find("t") is None
            await found[3].broker.topics.tidy()
            assert not paths[2].exists()
            assert list(paths[2].parent.iterdir()) == []

    asyncio.run(story())


def test_a_directory_that_the_store_does_not_know_is_set_aside(tmp_path: Path) -> None:
    """N4: a store that was restored or emptied costs no records."""

    async def story() -> None:
        async with cluster(tmp_path, 2) as found:
            await found.stop(2)
            lost = tmp_path / "2" / "topics" / "orders.0123456789ab"
            (lost / "0").mkdir(parents=True)
            await found.start(2)
            assert not lost.exists()
            assert (lost.with_name(lost.name + ".unknown") / "0").is_dir()

    asyncio.run(story())


def test_changes_of_one_topic_by_two_brokers_are_both_made(tmp_path: Path) -> None:
    """N4: a writer that was overtaken looks again, and changes what is there now."""

    async def story() -> None:
        async with cluster(tmp_path, 2) as found:
            topics = [found[node_id].broker.topics for node_id in (1, 2)]
            made = await asyncio.gather(*(one.create("t", 1, {}) for one in topics), return_exceptions=True)
            refused = [one for one in made if isinstance(one, ApiError)]
            assert [one.code for one in refused] == [ErrorCode.TOPIC_ALREADY_EXISTS]
            first, second = await asyncio.gather(*(one.find_or_create("auto") for one in topics))
            assert first.id == second.id
            await found.shown(topics[0].get("t").id)
            await asyncio.gather(topics[0].grow("t", 3), topics[1].reconfigure("t", {"retention.ms": "1000"}))
            await found.until(
                lambda broker: (
                    broker.topics.get("t").partition_count == 3
                    and broker.topics.get("t").config.retention_ms == 1000
                )
            )

    asyncio.run(story())


def test_a_broker_that_may_not_join_says_why(tmp_path: Path) -> None:
    """N4: another directory's node id, a running broker's, another cluster's directory, an empty store."""

    async def story() -> None:
        async with cluster(tmp_path, 2, cluster_lease_ms=2000) as found:
            await found.stop(2)
            (tmp_path / "2").rename(tmp_path / "kept")
            with pytest.raises(JoinRefused, match=r"belongs to another data directory .*-o replace=true"):
                await found.start(2)
            await found.start(2, replace=True)
            await found.stop(2)
            (tmp_path / "2").rename(tmp_path / "new")
            (tmp_path / "kept").rename(tmp_path / "2")
            with pytest.raises(JoinRefused, match="belongs to another data directory"):
                await found.start(2)
            with pytest.raises(JoinRefused, match="belongs to node 2, not 7"):
                await started(tmp_path / "2", node_id=7, store=found.store)
            alone = await started(tmp_path / "3")
            await alone.topics.create("t", 1, {})
            await alone.stop()
            with pytest.raises(JoinRefused, match=r"belongs to cluster .* check --store"):
                await started(tmp_path / "3", node_id=1, store=found.store)
            with pytest.raises(JoinRefused, match="does not know the cluster 'other'"):
                await started(tmp_path / "3", node_id=1, store=found.store, cluster_name="other")

    asyncio.run(story())


def test_a_broker_that_has_joined_does_not_start_on_metadata_from_before(tmp_path: Path) -> None:
    """N4: they are set aside, and a start without the store says what to do."""

    async def story() -> None:
        async with cluster(tmp_path, 1) as found:
            own = tmp_path / "2" / "metadata.store"
            own.parent.mkdir()
            own.touch()
            await found.start(2)
            assert [path.name for path in own.parent.glob("metadata.store*")] == ["metadata.store.old"]
            await found.stop(2)
            with pytest.raises(JoinRefused, match=r"node 2 is a broker of a cluster.*--store"):
                await started(tmp_path / "2", node_id=2)
            await found.start(2)

    asyncio.run(story())


def test_a_refused_new_directory_may_try_another_node_id(tmp_path: Path) -> None:
    """N4: it belongs to nobody yet."""

    async def story() -> None:
        async with cluster(tmp_path, 1) as found:
            with pytest.raises(JoinRefused, match="node id 1 belongs to another data directory"):
                await started(tmp_path / "2", node_id=1, store=found.store)
            await found.start(2)
            await found.complete(2)

    asyncio.run(story())


def test_an_option_of_all_brokers_counts_at_each_and_one_of_a_broker_at_it_alone(tmp_path: Path) -> None:
    """N4: set at any broker, followed by all."""

    async def story() -> None:
        async with cluster(tmp_path, 2) as found:
            one, two = found[1].broker, found[2].broker
            await two.options.reconfigure("", {"num.partitions": "7"})
            await found.until(lambda broker: broker.config.num_partitions == 7)
            assert one.topics.default_count() == 7
            await two.options.reconfigure("2", {"num.partitions": "9"})
            assert (one.config.num_partitions, two.config.num_partitions) == (7, 9)

    asyncio.run(story())


def test_without_the_store_records_flow_and_changes_wait_for_it(tmp_path: Path) -> None:
    """N4: losing the store stops change, not traffic."""

    async def story() -> None:
        async with cluster(tmp_path, 2, cluster_lease_ms=2000) as found:
            topic = await found[1].broker.topics.create("t", 2, {})
            await found.shown(topic.id)
            await found.stop_store()
            await asyncio.sleep(0.2)  # until the brokers have noticed; what was under way takes longer to end
            with pytest.raises(ApiError) as refused:
                await found[1].broker.topics.create("late", 1, {})
            assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
            for node in found:
                broker = node.broker
                (partition,) = broker.topics.get("t").held.values()
                append(partition, b"x", broker.clock.wall_ms())
                await partition.settled()
                assert partition.high_watermark == 1
                assert len(list(broker.view.live_nodes())) == 2
            await found.start_store()
            await found.complete(2)
            await found[2].broker.topics.create("later", 1, {})

    asyncio.run(story())


def test_an_option_that_a_broker_cannot_take_costs_no_topic(tmp_path: Path) -> None:
    """N4: what a newer broker has stored keeps an older one neither from the topic nor from starting."""

    async def story() -> None:
        async with cluster(tmp_path, 2) as found:
            changes = found[1].broker.metadata.changes
            odd = {"retention.ms": "for ever", "segment.bytes": "1048576"}
            await changes.create_topic("odd", bytes(16), changes.place(2), odd)
            await found.shown(bytes(16))
            for node_id in (1, 2):
                assert found[node_id].broker.topics.get("odd").config.segment_bytes == 1048576
                assert len(found[node_id].broker.topics.get("odd").held) == 1
            await found.restart(2)
            assert len(found[2].broker.topics.get("odd").held) == 1

    asyncio.run(story())


def test_a_broker_forgets_deletions_whose_records_are_gone(tmp_path: Path) -> None:
    """N4: topics that come and go for months cost no memory."""

    async def story() -> None:
        async with cluster(tmp_path, 1) as found:
            broker = found[1].broker
            deletions = broker.topics._deletions
            for name in ("a", "b"):
                topic = await broker.topics.create(name, 1, {})
                await broker.delete_topic(name)
                await broker.topics.tidy()
                assert list(deletions._done) == [topic.id]
                # As the controller does after some days.
                await broker.metadata.changes._delete([records.deleted_key(topic.id)])
                await found.until(lambda broker, gone=topic.id: not broker.topics.was_deleted(gone))

    asyncio.run(story())
