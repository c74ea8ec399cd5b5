"""Transactions with stock clients: commit, abort, isolation, fencing, time-outs, offsets."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable
from contextlib import suppress

import pytest
from confluent_kafka import Consumer, IsolationLevel, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import OffsetSpec
from tests.compat import confluent_calls
from tests.compat.transaction_members import (
    COMMITTED,
    PRODUCERS,
    READERS,
    UNCOMMITTED,
    WAIT_S,
    ConfluentProducer,
    TransactionalProducer,
    producing,
    read,
)

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
CLIENTS = list(PRODUCERS)

pytestmark = pytest.mark.filterwarnings("ignore")  # the clients' own


def numbered(*numbers: int) -> list[bytes]:
    return [b"%d" % number for number in numbers]


def send_plain(bootstrap: str, topic: str, value: bytes, partition: int = 0) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(topic, value, partition=partition)
    assert producer.flush(WAIT_S) == 0


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.05)


@pytest.mark.parametrize("client", CLIENTS)
def test_a_transaction_over_several_partitions_is_seen_whole_or_not_at_all(
    client: str, bootstrap: str, topic: str, new_name: Callable[[], str]
) -> None:
    """T2 P5 F1: with every codec; what was aborted is in the log, and no reader at read_committed sees it."""
    kept: list[bytes] = []
    written: list[bytes] = []
    for codec in CODECS:
        with producing(client, bootstrap, new_name(), codec=codec) as producer:
            for fate in ("abort", "commit"):
                values = [f"{codec} {fate} {number} ".encode() * 20 for number in range(30)]
                producer.begin()
                for value in values:
                    for partition in (0, 1):
                        producer.send(topic, partition, value)
                producer.flush()
                producer.commit() if fate == "commit" else producer.abort()
                written += values
                kept += values if fate == "commit" else []
    for reader in READERS:
        for partition in (0, 1):
            assert read(reader, bootstrap, topic, partition, COMMITTED) == kept, reader
    assert read(client, bootstrap, topic, 0, UNCOMMITTED) == written


@pytest.mark.parametrize("client", CLIENTS)
def test_readers_wait_at_an_open_transaction(client: str, bootstrap: str, topic: str) -> None:
    """T2: even for what others wrote behind it and has long been decided."""
    with producing("confluent", bootstrap, f"{topic}-{client}") as producer:
        send_plain(bootstrap, topic, b"before")
        producer.begin()
        producer.send(topic, 0, b"open")
        producer.flush()
        send_plain(bootstrap, topic, b"behind")
        assert read(client, bootstrap, topic, 0, COMMITTED) == [b"before"]
        assert read(client, bootstrap, topic, 0, UNCOMMITTED) == [b"before", b"open", b"behind"]
        assert stable_offset(bootstrap, topic) == 1
        producer.commit()
        until(lambda: stable_offset(bootstrap, topic) == 4, "the marker is written")
        assert read(client, bootstrap, topic, 0, COMMITTED) == [b"before", b"open", b"behind"]


def stable_offset(bootstrap: str, topic: str, partition: int = 0) -> int:
    wanted = {TopicPartition(topic, partition): OffsetSpec.latest()}
    found = confluent_calls.admin(bootstrap).list_offsets(
        wanted, isolation_level=IsolationLevel.READ_COMMITTED
    )
    return int(next(iter(found.values())).result(WAIT_S).offset)


def test_a_reader_that_waits_is_given_the_transaction_when_it_commits(bootstrap: str, topic: str) -> None:
    """T2 C1: a long poll at the last stable offset ends with the marker."""
    with (
        producing("confluent", bootstrap, topic) as producer,
        confluent_calls.assigned(
            bootstrap, topic, isolation_level=COMMITTED, fetch_wait_max_ms=20_000
        ) as consumer,
    ):
        producer.begin()
        producer.send(topic, 0, b"open")
        producer.flush()
        assert consumer.consume(1, 1.0) == []
        producer.commit()
        assert [message.value() for message in confluent_calls.take(consumer, 1)] == [b"open"]


FENCED = {"confluent": "_FENCED", "kafka-python": "ProducerFencedError", "aiokafka": "ProducerFenced"}
"""What a user of each client sees who has lost the transactional id to another, or has taken too long."""


@pytest.mark.parametrize("client", CLIENTS)
def test_a_second_producer_with_the_same_id_fences_the_first(
    client: str, bootstrap: str, topic: str, new_name: Callable[[], str]
) -> None:
    """T2: what the first had written is aborted, and it is told that its place is taken."""
    name = new_name()
    first = PRODUCERS[client](bootstrap, name)
    first.begin()
    first.send(topic, 0, b"first")
    first.flush()
    with producing(client, bootstrap, name) as second:
        assert refusal(first.commit) == FENCED[client]
        second.begin()
        second.send(topic, 0, b"second")
        second.commit()
    assert read(client, bootstrap, topic, 0, COMMITTED) == [b"second"]
    assert read(client, bootstrap, topic, 0, UNCOMMITTED) == [b"first", b"second"]
    abandon(first)


def refusal(call: Callable[[], None]) -> str:
    """The name of the error a user sees."""
    try:
        call()
    except KafkaException as failure:
        return str(failure.args[0].name())
    except Exception as failure:
        return type(failure).__name__
    return "nothing"


def abandon(producer: TransactionalProducer) -> None:
    """Closes a producer that has failed; some say so once more."""
    with suppress(Exception):
        producer.close()


@pytest.mark.parametrize("client", CLIENTS)
def test_a_transaction_that_takes_too_long_is_aborted(client: str, bootstrap: str, topic: str) -> None:
    """T2: readers go on without it, and its producer cannot commit it any more."""
    producer = PRODUCERS[client](bootstrap, f"{topic}-slow", timeout_ms=1_000)
    producer.begin()
    producer.send(topic, 0, b"slow")
    producer.flush()
    send_plain(bootstrap, topic, b"behind")
    until(lambda: stable_offset(bootstrap, topic) == 3, "the transaction is aborted")
    assert refusal(producer.commit) == FENCED[client]
    assert read(client, bootstrap, topic, 0, COMMITTED) == [b"behind"]
    abandon(producer)
    with producing(client, bootstrap, f"{topic}-slow") as again:
        again.begin()
        again.send(topic, 0, b"again")
        again.commit()
    assert read(client, bootstrap, topic, 0, COMMITTED) == [b"behind", b"again"]


@pytest.mark.parametrize("client", CLIENTS)
def test_offsets_are_committed_with_the_transaction_or_not_at_all(
    client: str, bootstrap: str, topic: str, new_name: Callable[[], str]
) -> None:
    """T2 C6: a group's position moves with the commit, and stays when it is aborted."""
    group = new_name()
    with producing(client, bootstrap, new_name()) as producer:
        for offset, fate, then in ((5, "abort", None), (7, "commit", 7), (9, "abort", 7)):
            producer.begin()
            producer.send(topic, 1, b"%d" % offset)
            producer.send_offset(group, topic, 0, offset)
            producer.flush()
            producer.commit() if fate == "commit" else producer.abort()
            until(lambda: position(bootstrap, group, topic) == then, f"the group is at {then}")  # noqa: B023
    assert read(client, bootstrap, topic, 1, COMMITTED) == [b"7"]


def position(bootstrap: str, group: str, topic: str, level: str = COMMITTED, wait_s: float = 5) -> int | None:
    """Where the group is; at read_committed an answer waits for transactions with offsets in them."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "isolation.level": level})
    try:
        found = consumer.committed([TopicPartition(topic, 0)], wait_s)[0]
        assert found.error is None, found.error
        return None if found.offset < 0 else int(found.offset)
    finally:
        consumer.close()


def test_offsets_of_an_open_transaction_are_undecided(
    bootstrap: str, topic: str, new_name: Callable[[], str]
) -> None:
    """T2 C6: whoever insists on a stable position waits; others are told the one before."""
    group = new_name()
    with producing("confluent", bootstrap, new_name()) as producer:
        producer.begin()
        producer.send_offset(group, topic, 0, 3)
        producer.commit()
        until(lambda: position(bootstrap, group, topic) == 3, "the first commit")
        producer.begin()
        producer.send_offset(group, topic, 0, 4)
        assert position(bootstrap, group, topic, UNCOMMITTED) == 3
        with pytest.raises(KafkaException):
            position(bootstrap, group, topic, COMMITTED, wait_s=0.5)
        producer.commit()
        until(lambda: position(bootstrap, group, topic) == 4, "the second commit")


@pytest.mark.parametrize("seed", range(2))
def test_interleaved_transactions_of_many_batches_are_told_apart(
    seed: int, bootstrap: str, topic: str, new_name: Callable[[], str]
) -> None:
    """T2: several producers in the same partitions, some commit, some abort; every reader agrees."""
    chance = random.Random(seed)
    producers = [ConfluentProducer(bootstrap, new_name(), CODECS[number]) for number in range(4)]
    fates: dict[bytes, str] = {}
    number = itertools.count()
    begun: dict[int, list[bytes]] = {}
    for _ in range(60):
        at = chance.randrange(len(producers))
        if at not in begun:
            producers[at].begin()
            begun[at] = []
        for _ in range(chance.randrange(1, 40)):
            value = b"%d" % next(number)
            producers[at].send(topic, chance.randrange(2), value)
            begun[at].append(value)
        producers[at].flush()
        if chance.random() < 0.4:
            end(producers[at], begun.pop(at), chance, fates)
    for at, values in begun.items():
        end(producers[at], values, chance, fates)
    for producer in producers:
        producer.close()
    for partition in (0, 1):
        everything = read("confluent", bootstrap, topic, partition, UNCOMMITTED)
        kept = [value for value in everything if fates[value] == "commit"]
        for reader in READERS:
            assert read(reader, bootstrap, topic, partition, COMMITTED) == kept, f"seed {seed}, {reader}"


def end(
    producer: ConfluentProducer, values: list[bytes], chance: random.Random, fates: dict[bytes, str]
) -> None:
    fate = chance.choice(["commit", "abort"])
    producer.commit() if fate == "commit" else producer.abort()
    fates.update(dict.fromkeys(values, fate))
