"""Stock clients that know the address of a name server alone, and a cluster without etcd."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer, KafkaProducer

import braidmq
from braidmq.client import Cluster

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(braidmq.__file__).parents[1])}
COUNT = 20


@contextmanager
def running(directory: Path, *words: str) -> Iterator[dict[str, str]]:
    """A `braid` process, stopped at the end; what its `ready` line says."""
    with (directory / "stderr.txt").open("ab") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "braidmq", *words, "--stop-on-eof"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, env=ENVIRONMENT,
        )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdin, process.stdout:
        try:
            ready, address, *rest = process.stdout.readline().decode().split()
            assert ready == "ready"
            yield {"address": address, **dict(word.split("=", 1) for word in rest)}
        finally:
            process.terminate()
            assert process.wait(60) == 0


@pytest.fixture
def name_server(tmp_path: Path) -> Iterator[str]:
    """The address of a name server that keeps the store of two brokers."""
    token = str(tmp_path / "token")
    words = ["--store", f"file:{tmp_path / 'store'}", "--store-token-file", token]
    serving = ["--listen", "127.0.0.1:0", "--store-listen", "127.0.0.1:0", "--data", str(tmp_path / "n")]
    with running(tmp_path, "nameserver", *words, *serving) as server:
        options = ["-o", f"nameservers={server['address']}", "-o", f"store={server['store']}"]
        where = ["--store-token-file", token, "--listen", "127.0.0.1:0", "--data", str(tmp_path / "d")]
        with running(tmp_path, "serve", "--brokers", "2", *where, *options):
            _await_brokers(server["address"], 2)
            yield server["address"]


def _await_brokers(address: str, count: int) -> None:
    """Returns when the name server has heard of so many; librdkafka calls an answer without any partial."""
    deadline = time.monotonic() + 30
    with Cluster(address) as cluster:
        while len(cluster.refresh([]).brokers) < count:
            assert time.monotonic() < deadline, "the brokers did not register"
            cluster.brokers.clear()
            time.sleep(0.1)


def test_every_stock_client_bootstraps_from_a_name_server(name_server: str) -> None:
    """N1 N2 N4: administration, sends and groups of three clients, with no broker's address given."""
    admin = AdminClient({"bootstrap.servers": name_server})
    admin.create_topics([NewTopic("t", 4)])["t"].result(30)
    _send_with_confluent(name_server)
    producer = KafkaProducer(bootstrap_servers=name_server)
    for _ in range(COUNT):
        producer.send("t", b"kafka-python")
    producer.flush(30)
    producer.close()
    consumer = KafkaConsumer(
        "t",
        bootstrap_servers=name_server,
        group_id="k",
        auto_offset_reset="earliest",
        consumer_timeout_ms=60000,
    )
    assert len([next(consumer) for _ in range(2 * COUNT)]) == 2 * COUNT
    consumer.close()
    asyncio.run(_with_aiokafka(name_server))


def _send_with_confluent(bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for number in range(COUNT):
        producer.produce("t", b"confluent", partition=number % 4)
    assert producer.flush(60) == 0
    options = {"bootstrap.servers": bootstrap, "group.id": "c", "auto.offset.reset": "earliest"}
    consumer = Consumer(options)
    consumer.subscribe(["t"])
    found, deadline = 0, time.monotonic() + 60
    while found < COUNT and time.monotonic() < deadline:
        message = consumer.poll(1.0)
        found += message is not None and message.error() is None
    consumer.close()
    assert found == COUNT


async def _with_aiokafka(bootstrap: str) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap)
    await producer.start()
    for _ in range(COUNT):
        await producer.send_and_wait("t", b"aiokafka")
    await producer.stop()
    consumer = AIOKafkaConsumer("t", bootstrap_servers=bootstrap, group_id="a", auto_offset_reset="earliest")
    await consumer.start()
    try:
        async with asyncio.timeout(60):
            for _ in range(3 * COUNT):
                await consumer.getone()
    finally:
        await consumer.stop()


def test_a_stranger_on_the_port_of_a_name_server_is_no_harm(name_server: str) -> None:
    """N1: bytes that make no sense close their connection, and no other."""
    host, port = name_server.split(":")
    with socket.create_connection((host, int(port)), timeout=10) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert stranger.recv(100) == b""
    assert AdminClient({"bootstrap.servers": name_server}).list_topics(timeout=30).cluster_id
