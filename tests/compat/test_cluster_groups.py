"""Stock consumers in groups over three brokers, one of which is stopped and started again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from tests.cluster import Cluster, cluster
from tests.compat.group_members import (
    AioKafkaMember,
    ConfluentMember,
    Member,
    ServerAssignedMember,
)

PARTITIONS = 6
RECORDS = 600
WAIT_S = 60.0

pytestmark = pytest.mark.filterwarnings("ignore")  # the clients' own

KINDS: list[type[Member]] = [ConfluentMember, ServerAssignedMember, AioKafkaMember]


def produce(bootstrap: str, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
    for number in range(count):
        producer.produce(topic, b"%d" % number, partition=number % PARTITIONS)
        producer.poll(0)
    assert producer.flush(WAIT_S) == 0


async def until(condition: Callable[[], object], what: str) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline_s, f"waited too long: {what}"
        await asyncio.sleep(0.05)


def positions(found: Cluster, group: str) -> dict[int, int]:
    """What the coordinator, wherever it is, has of a group."""
    for node in found:
        for shard in node.broker.groups:
            table = shard.groups.offsets(group)
            if table.in_use:
                return {index: table._committed["t", index].offset for _, index in table.partitions()}
    return {}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_groups_go_on_when_their_coordinator_was_away(tmp_path: Path, kind: type[Member]) -> None:
    """N4 C2 C6: members read from all brokers, and commit with the one that has their group."""

    async def story() -> None:
        options: dict[str, Any] = {
            "group_initial_rebalance_delay_ms": 0,
            "group_min_session_timeout_ms": 1000,
            "group_consumer_session_timeout_ms": 30_000,
        }
        async with cluster(tmp_path, 3, **options) as found:
            topic = await found[1].broker.topics.create("t", PARTITIONS, {})
            await found.shown(topic.id)
            await found[1].broker.groups.ensure()
            bootstrap = found.bootstrap
            names = {
                node_id: next(
                    name
                    for name in (f"{kind.__name__}-{number}" for number in range(100))
                    if found[1].broker.groups.leader_of(name) == node_id
                )
                for node_id in (1, 2, 3)
            }
            members = {
                node_id: [await asyncio.to_thread(kind, bootstrap, name, "t") for _ in range(2)]
                for node_id, name in names.items()
            }
            try:
                await asyncio.to_thread(produce, bootstrap, "t", RECORDS)
                every = dict.fromkeys(range(PARTITIONS), RECORDS // PARTITIONS)
                for name in names.values():
                    await until(lambda name=name: positions(found, name) == every, f"first {name}")
                await found.stop(2)
                await asyncio.sleep(0.5)
                await found.start(2)
                await found.complete(3)
                await asyncio.to_thread(produce, bootstrap, "t", RECORDS)
                every = dict.fromkeys(range(PARTITIONS), 2 * RECORDS // PARTITIONS)
                for node_id, name in names.items():
                    await until(lambda name=name: positions(found, name) == every, f"second {name}")
                    owned = [member.owned for member in members[node_id]]
                    assert set.union(*owned) == set(range(PARTITIONS))
            finally:
                for each in (one for group in members.values() for one in group):
                    await asyncio.to_thread(each.leave)

    asyncio.run(story())
