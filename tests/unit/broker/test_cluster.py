"""Several brokers over one store: what each of them holds, and what it says of the others."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.cluster import cluster

from braidmq.wire.errors import ApiError, ErrorCode


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
