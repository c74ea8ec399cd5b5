"""Transactions over three brokers with a stock client: coordinator, partitions and group offsets elsewhere."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from tests.cluster import Cluster, cluster

from braidmq.wire.errors import ErrorCode

WAIT_S = 30.0
PARTITIONS = 6
READ_PARTITIONS = [TopicPartition("t", index) for index in range(PARTITIONS)]

pytestmark = pytest.mark.filterwarnings("ignore")  # the client's own


def producer(bootstrap: str, transactional_id: str) -> Producer:
    made = Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": transactional_id, "retry.backoff.ms": 50}
    )
    made.init_transactions(WAIT_S)
    return made


def write_everywhere(one: Producer, label: str) -> None:
    """A record for every partition, in the transaction that is open."""
    for index in range(PARTITIONS):
        one.produce("t", f"{label}-{index}".encode(), partition=index)
    assert one.flush(WAIT_S) == 0


def committed_by_now(bootstrap: str) -> dict[int, list[bytes]]:
    """What a reader at read_committed sees of each partition, up to its last stable offset."""
    reader = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "looks",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    reader.assign([TopicPartition("t", index, 0) for index in range(PARTITIONS)])
    found: dict[int, list[bytes]] = {index: [] for index in range(PARTITIONS)}
    ended = set()
    try:
        while len(ended) < PARTITIONS:
            message = reader.poll(WAIT_S)
            assert message is not None, "the reader stands still"
            if message.error() is None:
                found[message.partition()].append(message.value())
            else:
                ended.add(message.partition())
    finally:
        reader.close()
    return found


def expected(*labels: str) -> dict[int, list[bytes]]:
    return {index: [f"{label}-{index}".encode() for label in labels] for index in range(PARTITIONS)}


def offset_of(bootstrap: str, group_id: str) -> int:
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": group_id})
    try:
        return int(reader.committed([TopicPartition("t", 0)], WAIT_S)[0].offset)
    finally:
        reader.close()


def commit_offset(one: Producer, bootstrap: str, group_id: str, offset: int) -> None:
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": group_id})
    try:
        place = [TopicPartition("t", 0, offset)]
        one.send_offsets_to_transaction(place, reader.consumer_group_metadata(), WAIT_S)
    finally:
        reader.close()


async def topic_on(found: Cluster) -> None:
    """The topic `t`, two partitions on each broker."""
    topic = await found[1].broker.topics.create("t", PARTITIONS, {}, [[1], [2], [3], [1], [2], [3]])
    await found.shown(topic.id)


async def coordinated_by(found: Cluster, node_id: int) -> str:
    """A transactional id that a broker coordinates."""
    await found[1].broker.transactions.ensure()
    await found.until(lambda broker: broker.transactions.exists)
    shards = found[1].broker.transactions
    return next(name for at in range(1000) if shards.leader_of(name := f"id{at}") == node_id)


def test_a_transaction_spans_the_partitions_of_all_brokers(tmp_path: Path) -> None:
    """T2 N4: commits and aborts reach every partition, whichever broker coordinates."""

    async def story() -> None:
        async with cluster(tmp_path) as found:
            await topic_on(found)
            for node_id in (1, 2, 3):
                name = await coordinated_by(found, node_id)
                await asyncio.to_thread(spans, found.bootstrap, name)
            shown = await asyncio.to_thread(settled, found.bootstrap, 3 * PARTITIONS * 4)
            labels = [f"{name}-{round_}" for name in sorted(names) for round_ in (0, 2)]
            assert {index: sorted(values) for index, values in shown.items()} == {
                index: sorted(values) for index, values in expected(*labels).items()
            }

    names: list[str] = []

    def spans(bootstrap: str, name: str) -> None:
        names.append(name)
        one = producer(bootstrap, name)
        for round_ in range(4):
            one.begin_transaction()
            write_everywhere(one, f"{name}-{round_}")
            if round_ % 2 == 0:
                one.commit_transaction(WAIT_S)
            else:
                one.abort_transaction(WAIT_S)

    asyncio.run(story())


def settled(bootstrap: str, records: int) -> dict[int, list[bytes]]:
    """As `committed_by_now`, when nothing is open any more: every record has its marker."""
    reader = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "ends", "isolation.level": "read_committed"}
    )
    for _ in range(600):
        stable = sum(reader.get_watermark_offsets(place, WAIT_S)[1] for place in READ_PARTITIONS)
        if stable == 2 * records:
            break
    reader.close()
    return committed_by_now(bootstrap)


def test_offsets_of_groups_elsewhere_are_part_of_the_transaction(tmp_path: Path) -> None:
    """T2 N4: they count when it commits, and not when it aborts, wherever their group is coordinated."""

    async def story() -> None:
        async with cluster(tmp_path) as found:
            await topic_on(found)
            name = await coordinated_by(found, 2)
            await found[1].broker.groups.ensure()
            groups = found[1].broker.groups
            elsewhere = [
                next(group for at in range(1000) if groups.leader_of(group := f"g{at}") == node_id)
                for node_id in (1, 2, 3)
            ]
            await asyncio.to_thread(play, found.bootstrap, name, elsewhere)

    def play(bootstrap: str, name: str, groups: list[str]) -> None:
        one = producer(bootstrap, name)
        one.begin_transaction()
        write_everywhere(one, "first")
        for group_id in groups:
            commit_offset(one, bootstrap, group_id, 7)
        one.commit_transaction(WAIT_S)
        assert [offset_of(bootstrap, group_id) for group_id in groups] == [7, 7, 7]
        one.begin_transaction()
        for group_id in groups:
            commit_offset(one, bootstrap, group_id, 9)
        one.abort_transaction(WAIT_S)
        assert [offset_of(bootstrap, group_id) for group_id in groups] == [7, 7, 7]
        assert committed_by_now(bootstrap) == expected("first")

    asyncio.run(story())


def test_markers_wait_for_a_broker_that_is_away(tmp_path: Path) -> None:
    """T2 N4: the transaction is decided meanwhile; read_committed sees all of it, or nothing of it yet."""

    async def story() -> None:
        async with cluster(tmp_path) as found:
            await topic_on(found)
            name = await coordinated_by(found, 1)
            one = await asyncio.to_thread(begun, found.bootstrap, name, "first")
            await found.stop(3)
            await found.complete(2)
            await asyncio.to_thread(one.commit_transaction, WAIT_S)
            coordinator = found[1].broker.transactions.of(name)
            await asyncio.sleep(0.5)
            state = coordinator.transactions.find(name)
            assert state is not None
            assert (state.state.label, found[1].broker.markers.waiting()) == ("PrepareCommit", 2)
            await found.start(3)
            await until_complete(found, name)
            assert await asyncio.to_thread(committed_by_now, found.bootstrap) == expected("first")
            await asyncio.to_thread(begin_again, one)
            await asyncio.to_thread(one.commit_transaction, WAIT_S)
            await until_complete(found, name)
            assert await asyncio.to_thread(committed_by_now, found.bootstrap) == expected("first", "second")

    asyncio.run(story())


def begun(bootstrap: str, name: str, label: str) -> Producer:
    one = producer(bootstrap, name)
    one.begin_transaction()
    write_everywhere(one, label)
    return one


def begin_again(one: Producer) -> None:
    one.begin_transaction()
    write_everywhere(one, "second")


async def until_complete(found: Cluster, name: str) -> None:
    """Returns when the coordinator has every marker of the transaction."""
    for _ in range(1000):
        for node in found:
            shards = node.broker.transactions
            if shards.leader_of(name) == node.broker.node_id and not shards.is_loading:
                known = shards.of(name).transactions.find(name)
                if known is not None and known.state.label.startswith("Complete"):
                    return
        await asyncio.sleep(0.01)
    raise AssertionError(f"{name}: the markers are missing")


def test_a_coordinator_that_comes_back_finishes_what_it_decided(tmp_path: Path) -> None:
    """T2 N4: it is stopped while markers are missing on another broker that is away."""

    async def story() -> None:
        async with cluster(tmp_path) as found:
            await topic_on(found)
            name = await coordinated_by(found, 2)
            one = await asyncio.to_thread(begun, found.bootstrap, name, "first")
            await found.stop(3)
            await asyncio.to_thread(one.commit_transaction, WAIT_S)
            await found.stop(2)
            await found.start(3)
            await found.start(2)
            await found.complete(3)
            await until_complete(found, name)
            assert await asyncio.to_thread(committed_by_now, found.bootstrap) == expected("first")

    asyncio.run(story())


def test_a_topic_deleted_while_its_broker_is_away_ends_the_wait(tmp_path: Path) -> None:
    """T2 N4: what is gone has nothing left to end."""

    async def story() -> None:
        async with cluster(tmp_path) as found:
            await topic_on(found)
            name = await coordinated_by(found, 1)
            one = await asyncio.to_thread(begun, found.bootstrap, name, "first")
            await found.stop(3)
            await asyncio.to_thread(one.commit_transaction, WAIT_S)
            assert found[1].broker.markers.waiting()
            await found[2].broker.delete_topic("t")
            await until_complete(found, name)
            assert not found[1].broker.markers.waiting()
            found[1].broker.markers.write_here(("t", 0), None, codes.append)  # type: ignore[arg-type]
            assert codes == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]

    codes: list[ErrorCode] = []
    asyncio.run(story())
