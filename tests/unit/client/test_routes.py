"""Braid's client among several brokers: where it asks first, how it keeps its routes, and one broker gone."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest
from tests.cluster import Cluster as Brokers
from tests.cluster import cluster

from braidmq.client import Admin, Cluster, Consumer, Producer
from braidmq.client import cluster as routes
from braidmq.client.cluster import TopicPartition
from braidmq.client.errors import Unreachable
from braidmq.wire.errors import ApiError, ErrorCode

T = TypeVar("T")


def tell(data: Path, story: Callable[[Brokers], Awaitable[None]], count: int = 3) -> None:
    async def run() -> None:
        async with cluster(data, count) as found:
            await asyncio.wait_for(story(found), 60)

    asyncio.run(run())


def dead_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return f"127.0.0.1:{listening.getsockname()[1]}"


def read(consumer: Consumer, count: int) -> list[bytes]:
    values: list[bytes] = []
    for _ in range(100):
        values += [message.value or b"" for message in consumer.poll(0.2)]
        if len(values) >= count:
            break
    return sorted(values)


def test_bootstrap_begins_anywhere_and_goes_on_in_turn(tmp_path: Path) -> None:
    """N2: clients spread over the addresses; one that is down is not asked first again."""

    def ask(bootstrap: str) -> None:
        first = set()
        for _ in range(40):
            with Cluster(bootstrap) as connected:
                first.add(connected.any_connection().address)
        assert len(first) == 3
        dead = [dead_address() for _ in range(3)]
        for _ in range(10):
            with Cluster(f"{','.join(dead)},{bootstrap}") as connected:
                connected.refresh([])
                asked = connected.any_connection()
                assert asked.address in connected.brokers.values()
                asked.close()
                assert connected.any_connection().address in connected.brokers.values()
        with Cluster(",".join(dead)) as connected, pytest.raises(Unreachable, match="is a broker running"):
            connected.refresh([])

    async def story(found: Brokers) -> None:
        await asyncio.to_thread(ask, found.bootstrap)

    tell(tmp_path, story)


def test_a_broker_that_goes_is_replaced_by_the_next(tmp_path: Path) -> None:
    """N2: one address is enough to begin with, and need not stay."""

    async def story(found: Brokers) -> None:
        with Cluster(found[1].address) as connected:
            await asyncio.to_thread(connected.refresh, [])
            await found.stop(1)
            await found.complete(2)
            answer = await asyncio.to_thread(connected.refresh, [])
            assert sorted(connected.brokers) == [2, 3]
            assert answer.cluster_id == found[2].broker.cluster_id

    tell(tmp_path, story)


def test_routes_are_asked_for_again_every_thirty_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N2: partitions that were added are found by a client that has no reason to ask."""

    async def story(found: Brokers) -> None:
        await found[1].broker.topics.create("t", 2, {})
        with Cluster(found.bootstrap) as connected, Producer(connected) as producer:

            def send(value: bytes) -> int:
                producer.send("t", value).result()
                return connected.partition_count("t")

            assert await asyncio.to_thread(send, b"0") == 2
            await found[2].broker.topics.grow("t", 5)
            await found.until(lambda broker: broker.topics.get("t").partition_count == 5)
            assert await asyncio.to_thread(send, b"1") == 2
            monkeypatch.setattr(routes, "ROUTES_S_MAX", 0.0)
            assert await asyncio.to_thread(send, b"2") == 5
            for node_id in (1, 2, 3):
                await found.stop(node_id)
            assert connected.is_outdated
            await asyncio.to_thread(connected.renew)
            assert connected.partition_count("t") == 5

    tell(tmp_path, story)


def test_a_stale_route_is_noticed_at_once(tmp_path: Path) -> None:
    """N2: a broker that does not lead a partition says so; the client asks and sends it there."""

    async def story(found: Brokers) -> None:
        topic = await found[1].broker.topics.create("t", 2, {}, [[1], [2]])
        await found.shown(topic.id)

        def send() -> list[bytes]:
            with Cluster(found.bootstrap) as connected, Producer(connected) as producer:
                connected.refresh([])
                for partition, node_id in ((0, 2), (1, 1)):
                    wrong = (TopicPartition("t", partition), node_id, connected.brokers[node_id])
                    connected.assume(*wrong)
                for partition in (0, 1):
                    producer.send("t", b"%d" % partition, partition=partition).result()
                with Consumer(connected) as consumer:
                    consumer.assign("t")
                    return read(consumer, 2)

        assert await asyncio.to_thread(send) == [b"0", b"1"]

    tell(tmp_path, story, 2)


def test_a_broker_that_is_gone_holds_up_its_own_partitions_only(tmp_path: Path) -> None:
    """N2 R5: sends without a key go around it, readers read the others; its records are back with it."""

    async def story(found: Brokers) -> None:
        topic = await found[1].broker.topics.create("t", 3, {}, [[1], [2], [3]])
        await found.shown(topic.id)
        with Cluster(found.bootstrap, timeout_s=5) as connected, Consumer(connected) as consumer:
            producer = Producer(connected, delivery_timeout_s=10)

            def send(values: range, partition: int | None = None) -> list[int]:
                return [producer.send("t", b"%d" % value, partition=partition).result() for value in values]

            def sent_to_the_dead() -> None:
                short = Producer(connected, delivery_timeout_s=0.5)
                with pytest.raises(ApiError, match="its broker is not running") as refused:
                    short.send("t", b"", partition=1).result()
                assert refused.value.code is ErrorCode.LEADER_NOT_AVAILABLE

            await asyncio.to_thread(send, range(1), 1)
            consumer.assign("t")
            await found.stop(2)
            await found.complete(2)
            await asyncio.to_thread(sent_to_the_dead)
            assert await asyncio.to_thread(send, range(1, 10))
            assert await asyncio.to_thread(read, consumer, 9) == [b"%d" % n for n in range(1, 10)]
            await found.start(2)
            await found.complete(3)
            assert await asyncio.to_thread(send, range(10, 11), 1) == [1]
            assert await asyncio.to_thread(read, consumer, 2) == [b"0", b"10"]

    tell(tmp_path, story)


def test_a_new_consumer_reads_what_is_there(tmp_path: Path) -> None:
    """N2 R5: it does not wait for the start of a partition that nobody leads."""

    async def story(found: Brokers) -> None:
        topic = await found[1].broker.topics.create("t", 2, {}, [[1], [2]])
        await found.shown(topic.id)

        def send() -> None:
            with Producer(found.bootstrap) as producer:
                for partition in (0, 1):
                    producer.send("t", b"%d" % partition, partition=partition)

        await asyncio.to_thread(send)
        await found.stop(2)
        await found.complete(1)
        with Consumer(found[1].address) as consumer:
            await asyncio.to_thread(consumer.assign, "t")
            async with asyncio.timeout(10):
                assert await asyncio.to_thread(read, consumer, 1) == [b"0"]
            await found.start(2)
            assert await asyncio.to_thread(read, consumer, 1) == [b"1"]

    tell(tmp_path, story, 2)


def test_an_unknown_partition_is_no_partition_without_a_leader(bootstrap: str) -> None:
    """N2: it is refused at once."""
    with Admin(bootstrap) as admin:
        admin.create_topic("one-partition", 1)
    with Producer(bootstrap) as producer:
        with pytest.raises(ApiError, match="does not exist") as refused:
            producer.send("one-partition", b"", partition=7).result()
        assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        with pytest.raises(Exception, match="does not exist"):
            producer.flush()
