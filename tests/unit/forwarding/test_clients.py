"""Stock clients that know one address of a cluster of three."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import confluent_kafka
import kafka
import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from unit.forwarding.cluster import Front

COUNT = 300


def make_topic(front: Front, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": front.address})
    admin.create_topics([NewTopic(name, 6, 1)])[name].result(20)
    leaders = {
        front[1].broker.view.leader(front[1].broker.topics.get(name).id, at).node_id for at in range(6)
    }
    assert leaders == {1, 2, 3}, "partitions are spread"


def produce(front: Front, topic: str, count: int = COUNT, **options: Any) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": front.address, "linger.ms": 5, **options})
    failures: list[Any] = []
    for number in range(count):
        producer.produce(
            topic,
            value=str(number),
            partition=number % 6,
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
    assert producer.flush(30) == 0
    assert failures == []


def values(consumer: confluent_kafka.Consumer, count: int, within_s: float = 30) -> list[bytes]:
    found: list[bytes] = []
    deadline = time.monotonic() + within_s
    while len(found) < count and time.monotonic() < deadline:
        for message in consumer.consume(min(100, count - len(found)), 0.5):
            assert message.error() is None, message.error()
            found.append(message.value())
    return found


def consuming(front: Front, group: str, **options: Any) -> confluent_kafka.Consumer:
    return confluent_kafka.Consumer(
        {
            "bootstrap.servers": front.address,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **options,
        }
    )


def test_one_broker_is_shown(front: Front) -> None:
    """N5: the metadata names the address that was asked, and nobody else."""
    make_topic(front, "t")
    admin = AdminClient({"bootstrap.servers": front.address})
    shown = admin.list_topics(timeout=10)
    assert [f"{one.host}:{one.port}" for one in shown.brokers.values()] == [front.address]
    assert {part.leader for part in shown.topics["t"].partitions.values()} == {1}
    described = admin.describe_cluster().result(10)
    assert [f"{node.host}:{node.port}" for node in described.nodes] == [front.address]


@pytest.mark.parametrize("idempotent", [False, True])
def test_records_of_all_leaders_are_written_and_read(front: Front, idempotent: bool) -> None:
    """N5: each record is there once, in order, whoever leads its partition."""
    make_topic(front, "t")
    produce(front, "t", **{"enable.idempotence": idempotent})
    consumer = consuming(front, "g")
    consumer.assign([confluent_kafka.TopicPartition("t", at, 0) for at in range(6)])
    found = values(consumer, COUNT)
    consumer.close()
    assert sorted(map(int, found)) == list(range(COUNT))
    for at in range(6):
        mine = [int(one) for one in found if int(one) % 6 == at]
        assert mine == sorted(mine)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_groups_are_coordinated_elsewhere(front: Front, protocol: str) -> None:
    """N5: groups on every coordinator read everything, commit, and go on where they were."""
    make_topic(front, "t")
    produce(front, "t", 60)
    coordinators = set()
    for number in range(4):
        group = f"group-{number}"
        coordinators.add(front[1].broker.groups.leader_of(group))
        consumer = consuming(front, group, **{"group.protocol": protocol})
        consumer.subscribe(["t"])
        assert len(values(consumer, 60)) == 60
        consumer.commit(asynchronous=False)
        consumer.close()
    produce(front, "t", 6)
    consumer = consuming(front, "group-0", **{"group.protocol": protocol})
    consumer.subscribe(["t"])
    assert len(values(consumer, 6)) == 6
    consumer.close()
    assert len(coordinators) > 1, "not all groups are this broker's"


def test_kafka_python_is_served(front: Front) -> None:
    """N5: another client, with batches for several leaders in one request, reads what it has sent."""
    make_topic(front, "t")
    producer = kafka.KafkaProducer(bootstrap_servers=front.address, linger_ms=20)
    sent = [producer.send("t", str(number).encode(), partition=number % 6) for number in range(COUNT)]
    assert {one.get(20).partition for one in sent} == set(range(6))
    producer.close()
    consumer = kafka.KafkaConsumer(
        "t",
        bootstrap_servers=front.address,
        group_id="python",
        auto_offset_reset="earliest",
        consumer_timeout_ms=5000,
    )
    found = []
    for message in consumer:
        found.append(int(message.value))
        if len(found) == COUNT:
            break
    consumer.close()
    assert sorted(found) == list(range(COUNT))


def test_an_idle_leader_delays_nobody(front: Front) -> None:
    """N5: records of one leader come at once while the others have nothing, again and again."""
    make_topic(front, "t")
    consumer = consuming(front, "g", **{"fetch.wait.max.ms": 2000})
    consumer.assign([confluent_kafka.TopicPartition("t", at, 0) for at in range(6)])
    producer = confluent_kafka.Producer({"bootstrap.servers": front.address})
    took = []
    for number in range(10):
        producer.produce("t", value=str(number), partition=number % 2)
        producer.flush(10)
        began = time.monotonic()
        assert values(consumer, 1) == [str(number).encode()]
        took.append(time.monotonic() - began)
    consumer.close()
    assert sum(took[1:]) < 8, "ten waits of two seconds were not waited for"


def test_a_leader_that_is_gone_stops_its_own_partitions_only(front: Front) -> None:
    """N5: the partitions of the others are written and read, and those of the lost one when it is back."""
    make_topic(front, "t")
    view, topic_id = front[1].broker.view, front[1].broker.topics.get("t").id
    lost = [at for at in range(6) if view.leader(topic_id, at).node_id == 3]
    produce(front, "t", 12)
    front.run(front.brokers.stop(3))
    producer = confluent_kafka.Producer({"bootstrap.servers": front.address, "message.timeout.ms": 30000})
    outcomes: dict[int, Any] = {}
    for at in range(6):
        producer.produce(
            "t",
            value="later",
            partition=at,
            on_delivery=lambda error, sent: outcomes.update({sent.partition(): error}),
        )
    deadline = time.monotonic() + 20
    while len(outcomes) < 6 - len(lost) and time.monotonic() < deadline:
        producer.poll(0.2)
    assert sorted(outcomes) == [at for at in range(6) if at not in lost]
    front.run(front.brokers.start(3))
    assert producer.flush(30) == 0
    assert outcomes == dict.fromkeys(range(6))
    consumer = consuming(front, "g")
    consumer.assign([confluent_kafka.TopicPartition("t", at, 0) for at in range(6)])
    assert len(values(consumer, 18)) == 18
    consumer.close()


def test_transactions_span_leaders(front: Front) -> None:
    """N5: what was committed is read, what was aborted is not."""
    make_topic(front, "t")
    for name in ("tx-a", "tx-b", "tx-c"):
        producer = confluent_kafka.Producer({"bootstrap.servers": front.address, "transactional.id": name})
        producer.init_transactions(30)
        for committed in (True, False):
            producer.begin_transaction()
            for at in range(6):
                producer.produce("t", value=f"{name}-{committed}", partition=at)
            producer.flush(20)
            if committed:
                producer.commit_transaction(30)
            else:
                producer.abort_transaction(30)
    consumer = consuming(front, "g", **{"isolation.level": "read_committed"})
    consumer.assign([confluent_kafka.TopicPartition("t", at, 0) for at in range(6)])
    found = values(consumer, 18)
    assert values(consumer, 1, 2) == []
    consumer.close()
    assert sorted(found) == sorted(
        f"{name}-True".encode() for name in ("tx-a", "tx-b", "tx-c") for _ in range(6)
    )


def test_share_groups_read_from_all_leaders(front: Front) -> None:
    """N5: two members of a share group get every record, and what they accept is not handed out again."""
    make_topic(front, "t")
    entry = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
    admin = AdminClient({"bootstrap.servers": front.address})
    group = ConfigResource(ResourceType.GROUP, "sharers", incremental_configs=[entry])
    admin.incremental_alter_configs([group])[group].result(20)
    settings = {
        "bootstrap.servers": front.address,
        "group.id": "sharers",
        "share.acknowledgement.mode": "explicit",
    }
    members = [confluent_kafka.ShareConsumer(settings) for _ in range(2)]
    for member in members:
        member.subscribe(["t"])
    found: list[int] = []
    produced = False
    deadline = time.monotonic() + 40
    while len(found) < 120 and time.monotonic() < deadline:
        for member in members:
            for message in member.poll(0.3):
                assert message.error() is None
                member.acknowledge(message)
                found.append(int(message.value()))
            member.commit_sync(10)
        if not produced:
            produce(front, "t", 120)
            produced = True
    assert sorted(found) == list(range(120))
    for member in members:
        assert list(member.poll(0.5)) == []
        member.close()


def test_administration_reaches_every_coordinator_and_leader(front: Front) -> None:
    """N5: groups of all coordinators are listed, described and deleted, records deleted at all leaders."""
    make_topic(front, "t")
    produce(front, "t", 60)
    groups = [f"group-{number}" for number in range(4)]
    for group in groups:
        consumer = consuming(front, group)
        consumer.commit(
            offsets=[confluent_kafka.TopicPartition("t", at, 3) for at in range(6)], asynchronous=False
        )
        consumer.close()
    admin = AdminClient({"bootstrap.servers": front.address})
    listed = admin.list_consumer_groups().result(20)
    assert listed.errors == []
    assert sorted(one.group_id for one in listed.valid) == groups
    described = admin.describe_consumer_groups(groups)
    assert {name: one.result(20).state.name for name, one in described.items()} == dict.fromkeys(
        groups, "EMPTY"
    )
    for one in admin.list_consumer_group_offsets(
        [confluent_kafka.ConsumerGroupTopicPartitions(groups[1])]
    ).values():
        assert [part.offset for part in one.result(20).topic_partitions] == [3] * 6
    deleted = admin.delete_records([confluent_kafka.TopicPartition("t", at, 4) for at in range(6)])
    assert {one.result(20).low_watermark for one in deleted.values()} == {4}
    ends = admin.list_offsets(
        {
            confluent_kafka.TopicPartition("t", at): confluent_kafka.admin.OffsetSpec.earliest()
            for at in range(6)
        }
    )
    assert {one.result(20).offset for one in ends.values()} == {4}
    for gone in admin.delete_consumer_groups(groups).values():
        gone.result(20)
    assert admin.list_consumer_groups().result(20).valid == []


def test_consumed_offsets_are_part_of_a_transaction(front: Front) -> None:
    """N5: read, write and commit of offsets, with group, transaction and partitions on different brokers."""
    make_topic(front, "in")
    make_topic(front, "out")
    produce(front, "in", 60)
    consumer = consuming(front, "copiers")
    consumer.subscribe(["in"])
    producer = confluent_kafka.Producer({"bootstrap.servers": front.address, "transactional.id": "copier-7"})
    producer.init_transactions(30)
    copied = 0
    deadline = time.monotonic() + 40
    while copied < 60 and time.monotonic() < deadline:
        messages = consumer.consume(20, 0.5)
        if not messages:
            continue
        producer.begin_transaction()
        for message in messages:
            producer.produce("out", value=message.value(), partition=message.partition())
        producer.send_offsets_to_transaction(
            consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), 30
        )
        producer.commit_transaction(30)
        copied += len(messages)
    committed = consumer.committed([confluent_kafka.TopicPartition("in", at) for at in range(6)], 20)
    assert [part.offset for part in committed] == [10] * 6
    consumer.close()
    reader = consuming(front, "readers", **{"isolation.level": "read_committed"})
    reader.assign([confluent_kafka.TopicPartition("out", at, 0) for at in range(6)])
    assert sorted(map(int, values(reader, 60))) == list(range(60))
    reader.close()


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    failed = [record.getMessage() for record in caplog.records if record.exc_info]
    assert failed == []
