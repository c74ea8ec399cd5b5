"""Share groups with confluent-kafka's ShareConsumer: many members, one partition, crashes and restarts."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import AcknowledgeType, KafkaException, Message, Producer
from tests.compat import confluent_calls
from tests.compat.share_members import (
    WAIT_S,
    CrewProcess,
    Worker,
    begin_at_the_start,
    consumer,
    is_poison,
    set_options,
    tell,
    until,
)
from tests.history.share_reading import ShareReading

from braidmq import testing
from braidmq.client.cluster import TopicPartition
from braidmq.client.groups import GroupAdmin

MEMBERS = 16
PER_CREW = 4
CRASHES = 3
RECORDS = 2000
DELIVERIES_MAX = 5


def accept(message: Message) -> AcknowledgeType:  # noqa: ARG001
    return AcknowledgeType.ACCEPT


def send(bootstrap: str, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 1, "batch.num.messages": 50})
    for number in range(count):
        producer.produce(topic, b"%d" % number, partition=0)
        producer.poll(0)
    assert producer.flush(WAIT_S) == 0


def test_many_members_share_one_partition_and_each_record_is_accepted_once(
    bootstrap: str, new_name: Callable[[], str], tmp_path: Path
) -> None:
    """C1 C2 F1: sixteen members release at random and are killed with records in their hands.

    Each record is accepted once, none is lost, and those that nobody accepts come as often as the limit says.
    """
    topic, group = new_name(), new_name()
    confluent_calls.create_topic(bootstrap, topic)
    begin_at_the_start(bootstrap, group)
    crews: list[CrewProcess] = []

    def hire() -> CrewProcess:
        crews.append(CrewProcess(bootstrap, group, topic, PER_CREW, tmp_path / str(len(crews))))
        return crews[-1]

    at_work = [hire() for _ in range(MEMBERS // PER_CREW)]
    chance = random.Random(16)
    try:
        for _ in range(CRASHES):
            before = {crew: len(crew.lines) for crew in at_work}
            send(bootstrap, topic, RECORDS // (CRASHES + 1))

            def at_it() -> list[CrewProcess]:
                return [crew for crew, lines in before.items() if len(crew.lines) > lines]  # noqa: B023

            until(lambda: bool(at_it()), "somebody works", *at_work)
            busy = chance.choice(at_it())
            busy.kill()
            at_work[at_work.index(busy)] = hire()
        send(bootstrap, topic, RECORDS // (CRASHES + 1))
        with GroupAdmin(bootstrap) as groups:
            until(lambda: groups.describe(group).lag == 0, "the group has come to the end", *at_work)
        for crew in at_work:
            crew.leave()
    finally:
        for crew in crews:
            crew.kill()
    reading = told_by(crews)
    for offset in filter(is_poison, range(RECORDS)):
        reading.given_up(offset)
    reading.conclude(RECORDS)
    assert reading.findings == [], "\n".join(map(str, reading.findings))
    counts = deliveries(crews)
    # Of a record that nobody accepts, a crew that was killed may have kept its last deliveries to itself.
    often = [counts[offset] for offset in range(RECORDS) if is_poison(offset)]
    assert min(often) >= DELIVERIES_MAX - CRASHES
    assert often.count(DELIVERIES_MAX) > len(often) // 2
    assert sum(1 for crew in crews if any("accepted" in line for line in crew.lines)) > 1


def told_by(crews: list[CrewProcess]) -> ShareReading:
    reading = ShareReading(DELIVERIES_MAX)
    for crew in crews:
        tell(reading, crew.lines)
    return reading


def deliveries(crews: list[CrewProcess]) -> dict[int, int]:
    """The highest delivery count of each offset."""
    highest: dict[int, int] = {}
    for line in (line.split() for crew in crews for line in crew.lines):
        if line[1] == "delivered":
            offset, count = int(line[2]), int(line[3])
            highest[offset] = max(highest.get(offset, 0), count)
    return highest


def test_a_record_is_given_up_after_its_last_delivery(bootstrap: str, new_name: Callable[[], str]) -> None:
    """C1: released again and again it comes five times; a rejected one once."""
    topic, group = new_name(), new_name()
    confluent_calls.create_topic(bootstrap, topic)
    begin_at_the_start(bootstrap, group)
    poison, refuse = 3, 5

    def decide(message: Message) -> AcknowledgeType:
        if message.offset() == refuse:
            return AcknowledgeType.REJECT
        return AcknowledgeType.RELEASE if message.offset() == poison else AcknowledgeType.ACCEPT

    send(bootstrap, topic, 10)
    worker = Worker(bootstrap, group, topic, decide)
    until(lambda: (poison, DELIVERIES_MAX) in worker.deliveries, "the last delivery", worker)
    send(bootstrap, topic, 10)
    until(lambda: len(worker.accepted) == 18, "everything else is accepted", worker)
    worker.leave()
    assert [count for offset, count in worker.deliveries if offset == poison] == [1, 2, 3, 4, 5]
    assert [count for offset, count in worker.deliveries if offset == refuse] == [1]


def test_records_are_accepted_implicitly_by_the_next_poll(
    bootstrap: str, new_name: Callable[[], str]
) -> None:
    """C1 F1: the client's default; who comes next finds nothing."""
    topic, group = new_name(), new_name()
    confluent_calls.create_topic(bootstrap, topic)
    begin_at_the_start(bootstrap, group)
    send(bootstrap, topic, 100)
    first = consumer(bootstrap, group, share_acknowledgement_mode="implicit")
    first.subscribe([topic])
    seen: list[int] = []
    while len(seen) < 100:
        seen += [message.offset() for message in first.poll(10) if message.error() is None]
    assert seen == list(range(100))
    assert first.poll(1).is_empty()
    first.close()
    send(bootstrap, topic, 1)
    second = Worker(bootstrap, group, topic, accept)
    until(lambda: bool(second.accepted), "the new record", second)
    second.leave()
    assert second.deliveries == [(100, 1)]


def test_a_group_at_read_committed_gets_what_was_committed(
    bootstrap: str, new_name: Callable[[], str]
) -> None:
    """C1 T2: nothing of an aborted transaction and nothing behind an open one, until it is decided."""
    topic, group = new_name(), new_name()
    confluent_calls.create_topic(bootstrap, topic)
    begin_at_the_start(bootstrap, group)
    set_options(bootstrap, group, {"share.isolation.level": "read_committed"})
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": new_name()})
    producer.init_transactions(WAIT_S)
    for outcome in (producer.abort_transaction, producer.commit_transaction):
        producer.begin_transaction()
        for _ in range(10):
            producer.produce(topic, outcome.__name__.encode(), partition=0)
        assert producer.flush(WAIT_S) == 0
        outcome(WAIT_S)
    producer.begin_transaction()
    producer.produce(topic, b"open", partition=0)
    assert producer.flush(WAIT_S) == 0
    send(bootstrap, topic, 1)
    values: list[bytes | None] = []

    def decide(message: Message) -> AcknowledgeType:
        values.append(message.value())
        return AcknowledgeType.ACCEPT

    worker = Worker(bootstrap, group, topic, decide)
    until(lambda: len(worker.accepted) == 10, "the committed ones are read", worker)
    assert values == [b"commit_transaction"] * 10
    producer.abort_transaction(WAIT_S)
    until(lambda: len(worker.accepted) == 11, "what was behind the open one is read", worker)
    worker.leave()
    assert values[10:] == [b"0"]


def test_a_group_begins_with_records_that_are_not_too_old(
    bootstrap: str, new_name: Callable[[], str]
) -> None:
    """C7: share.auto.offset.reset=by_duration, an hour here; a wrong duration is refused."""
    topic, group = new_name(), new_name()
    confluent_calls.create_topic(bootstrap, topic)
    set_options(bootstrap, group, {"share.auto.offset.reset": "by_duration:PT1H"})
    for bad in ("by_duration:-PT1H", "by_duration:1h", "sometime"):
        with pytest.raises(KafkaException):
            set_options(bootstrap, group, {"share.auto.offset.reset": bad})
    producer = Producer({"bootstrap.servers": bootstrap})
    now_ms = int(time.time() * 1000)
    for minutes in (120, 90, 30, 0):
        producer.produce(topic, b"%d" % minutes, partition=0, timestamp=now_ms - minutes * 60_000)
        assert producer.flush(WAIT_S) == 0
    worker = Worker(bootstrap, group, topic, accept)
    until(lambda: len(worker.accepted) == 2, "the young ones are read", worker)
    worker.leave()
    assert worker.accepted == [2, 3]


def test_a_broker_that_is_killed_neither_loses_nor_repeats_what_was_accepted() -> None:
    """C1 L6: kill -9 while members work; they go on by themselves."""
    with testing.broker() as running:
        bootstrap = running.bootstrap
        confluent_calls.create_topic(bootstrap, "jobs")
        begin_at_the_start(bootstrap, "workers")
        send(bootstrap, "jobs", RECORDS)
        workers = [Worker(bootstrap, "workers", "jobs", accept) for _ in range(3)]
        try:
            for part in (1, 2):
                until(
                    lambda: sum(len(worker.accepted) for worker in workers) > RECORDS * part // 4,  # noqa: B023
                    "some are accepted",
                    *workers,
                )
                running.kill()
                running.start()
            everything = set(range(RECORDS))
            until(
                lambda: everything <= {offset for one in workers for offset, _ in one.deliveries},
                "every record was delivered",
                *workers,
            )
        finally:
            for worker in workers:
                worker.leave()
        counts = Counter(offset for worker in workers for offset in worker.accepted)
        assert max(counts.values()) == 1, "a record that was accepted came again"
        last = Worker(bootstrap, "workers", "jobs", accept)
        send(bootstrap, "jobs", 1)
        until(lambda: RECORDS in last.accepted, "the new record", last)
        last.leave()
        confirmed = set(counts) | set(last.accepted)
        assert {offset for offset, _ in last.deliveries}.isdisjoint(counts)
        assert max(confirmed) == RECORDS


def test_the_command_line_shows_and_moves_a_share_group(bootstrap: str, new_name: Callable[[], str]) -> None:
    """C7 O1: braid group lists it as what it is, knows what is left, and lets it begin again."""
    topic, group = new_name(), new_name()
    confluent_calls.create_topic(bootstrap, topic)
    begin_at_the_start(bootstrap, group)
    send(bootstrap, topic, 10)
    worker = Worker(bootstrap, group, topic, accept)
    until(lambda: len(worker.accepted) == 10, "everything is accepted", worker)
    with GroupAdmin(bootstrap) as groups:
        described = groups.describe(group)
        assert (described.kind, described.state, len(described.members)) == ("share", "Stable", 1)
        worker.leave()
        send(bootstrap, topic, 5)
        assert groups.describe(group).lag == 5
        groups.commit(group, {TopicPartition(topic, 0): 8})
        assert groups.describe(group).lag == 7
        again = Worker(bootstrap, group, topic, accept)
        until(lambda: len(again.accepted) == 7, "it begins again", again)
        again.leave()
        assert sorted(again.accepted) == list(range(8, 15))
        groups.delete(group)
        assert group not in {each.group_id for each in groups.all()}
