"""What is noted of a connection: little, bounded, and told to those who ask."""

from __future__ import annotations

import asyncio
from pathlib import Path

from braidmq.cluster.records import NO_EPOCH
from braidmq.faces.kafka.live_clients import PAGE_MAX, TOPICS_MAX, noted
from braidmq.wire.messages.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from braidmq.wire.messages.live import DescribeBrokerRequest, DescribeBrokerResponse
from braidmq.wire.messages.versions import ApiVersionsRequest, ApiVersionsResponse
from unit.faces.spoken import speaker


def test_the_topics_used_last_are_remembered() -> None:
    """O7: not more of them, however many a client names."""
    held = None
    for at in range(10):
        held = noted(held, [(f"t{at}-{index}", None, []) for index in range(TOPICS_MAX)], float(at))
        assert len(held) == TOPICS_MAX
    assert held is not None
    assert all(str(name).startswith("t9-") for name in held)
    many = [(None, bytes([index % 256, index // 256]), []) for index in range(10 * TOPICS_MAX)]
    assert len(noted(None, many, 1.0)) == TOPICS_MAX


def test_a_connection_shows_its_software_and_its_group_until_it_leaves(tmp_path: Path) -> None:
    """O7: by what its requests say."""

    async def story() -> None:
        async with speaker(tmp_path) as one:
            await one.ask(
                ApiVersionsRequest(client_software_name="till", client_software_version="7" * 1000),
                ApiVersionsResponse,
            )
            joining = ConsumerGroupHeartbeatRequest(
                group_id="kitchen",
                member_id="cook",
                member_epoch=0,
                rebalance_timeout_ms=1000,
                subscribed_topic_names=["orders"],
                topic_partitions=[],
            )
            await one.ask(joining, ConsumerGroupHeartbeatResponse)
            seen = await one.ask(DescribeBrokerRequest(clients_max=10), DescribeBrokerResponse)
            (client,) = seen.clients
            assert (client.software_name, client.software_version) == ("till", "7" * 200)
            assert (client.group_id, client.member_id, client.role) == ("kitchen", "cook", "consumer,admin")
            leaving = ConsumerGroupHeartbeatRequest(group_id="kitchen", member_id="cook", member_epoch=-1)
            await one.ask(leaving, ConsumerGroupHeartbeatResponse)
            seen = await one.ask(DescribeBrokerRequest(clients_max=PAGE_MAX * 9), DescribeBrokerResponse)
            assert seen.clients[0].group_id is None
            assert seen.next_client == -1
            one.close()
            seen = await one.ask(DescribeBrokerRequest(clients_max=10), DescribeBrokerResponse)
            assert (seen.clients, seen.connections) == ([], 0)

    asyncio.run(story())


def test_a_broker_alone_is_its_own_controller_and_writes_nothing_while_idle(tmp_path: Path) -> None:
    """N4: no office, no ticks."""

    async def story() -> None:
        async with speaker(tmp_path) as one:
            await one.broker.metadata.appear("127.0.0.1", 9092)
            assert one.broker.metadata.controller is None
            await one.broker.metadata.feed.reached(one.broker.metadata.epoch)
            first = await one.ask(DescribeBrokerRequest(), DescribeBrokerResponse)
            await asyncio.sleep(2.5)
            again = await one.ask(DescribeBrokerRequest(), DescribeBrokerResponse)
            assert (again.controller_id, again.controller_epoch) == (1, NO_EPOCH)
            assert again.image_revision == first.image_revision
            assert (again.store, again.image_age_ms, again.isolated) == ("file", 0, False)
            assert [(known.node_id, known.state) for known in again.brokers] == [(1, "up")]

    asyncio.run(story())
