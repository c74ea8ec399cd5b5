"""Stock clients that know one address of a cluster of three."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import confluent_kafka
import kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

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


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    failed = [record.getMessage() for record in caplog.records if record.exc_info]
    assert failed == []
