"""Consumer groups with stock clients: members join and leave while a producer runs, and nothing is missed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from tests.compat import confluent_calls
from tests.compat.group_members import MEMBERS, CooperativeMember, Member, ServerAssignedMember

PARTITIONS = 12
WAIT_S = 60


class Sender(threading.Thread):
    """Sends numbered records at a steady pace until told to stop."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(daemon=True)
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
        self._topic = topic
        self._stopping = threading.Event()
        self.sent = 0
        self.start()

    def run(self) -> None:
        while not self._stopping.is_set():
            for _ in range(20):
                self._producer.produce(self._topic, b"%d" % self.sent, key=b"%d" % (self.sent % 101))
                self.sent += 1
            self._producer.poll(0)
            time.sleep(0.02)

    def stop(self) -> int:
        self._stopping.set()
        self.join()
        assert self._producer.flush(WAIT_S) == 0
        return self.sent


@contextmanager
def sending(bootstrap: str, topic: str) -> Iterator[Sender]:
    sender = Sender(bootstrap, topic)
    try:
        yield sender
    finally:
        sender.stop()


def until(condition: Callable[[], bool], what: str, *members: Member) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        failed = [member.failure for member in members if member.failure is not None]
        assert not failed, f"a member failed before {what}: {failed}"
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.05)


def shared(members: list[Member]) -> bool:
    """Every partition has one reader, and every member reads some."""
    owned = [member.owned for member in members]
    return all(owned) and sum(map(len, owned)) == PARTITIONS and len(set().union(*owned)) == PARTITIONS


def committed(bootstrap: str, group: str) -> dict[int, int]:
    wanted = [ConsumerGroupTopicPartitions(group)]
    found = confluent_calls.admin(bootstrap).list_consumer_group_offsets(wanted)[group].result(WAIT_S)
    return {part.partition: part.offset for part in found.topic_partitions}


@pytest.mark.parametrize("client", MEMBERS)
def test_members_come_and_go_and_every_record_is_read(
    client: str, bootstrap: str, new_name: Callable[[], str]
) -> None:
    """C2 C4 C6 F1: three members on twelve partitions share, leave and take over; their place is kept."""
    topic, group = new_name(), new_name()
    confluent_calls.create_topic(bootstrap, topic, PARTITIONS)
    make = MEMBERS[client]
    with sending(bootstrap, topic) as sender:
        first = make(bootstrap, group, topic)
        until(lambda: len(first.owned) == PARTITIONS, "the first member reads everything", first)
        others = [make(bootstrap, group, topic), make(bootstrap, group, topic)]
        until(lambda: shared([first, *others]), "three members share the partitions", first, *others)
        others[0].leave()
        until(lambda: shared([first, others[1]]), "two members take over", first, others[1])
        sent = sender.stop()
    everyone = [first, *others]
    expected = {b"%d" % number for number in range(sent)}
    until(lambda: expected <= {value for m in everyone for value in m.values}, "every record is read")
    ends = _ends(bootstrap, topic)
    until(lambda: committed(bootstrap, group) == ends, "what is committed is the end")
    first.leave()
    others[1].leave()


def _ends(bootstrap: str, topic: str) -> dict[int, int]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "watermarks"})
    try:
        found = {n: consumer.get_watermark_offsets(TopicPartition(topic, n))[1] for n in range(PARTITIONS)}
        return {partition: end for partition, end in found.items() if end}
    finally:
        consumer.close()


def test_a_cooperative_rebalance_does_not_take_away_what_stays(
    bootstrap: str, new_name: Callable[[], str]
) -> None:
    """C5: when a second member comes, the first gives up half and reads the other half on."""
    topic, group = new_name(), new_name()
    confluent_calls.create_topic(bootstrap, topic, PARTITIONS)
    first = CooperativeMember(bootstrap, group, topic)
    until(lambda: len(first.owned) == PARTITIONS, "the first member has everything")
    second = CooperativeMember(bootstrap, group, topic)
    until(lambda: shared([first, second]), "two members share")
    assert sum(map(len, first.revoked)) == PARTITIONS // 2
    first.leave()
    second.leave()


@pytest.mark.parametrize("client", ["cooperative", "kafka-python", "aiokafka"])
def test_a_group_changes_over_to_the_new_protocol_and_back(
    client: str, bootstrap: str, new_name: Callable[[], str]
) -> None:
    """C4: a newcomer of the new protocol shares with a classic member; when it goes, all is as before."""
    topic, group = new_name(), new_name()
    confluent_calls.create_topic(bootstrap, topic, PARTITIONS)
    with sending(bootstrap, topic) as sender:
        classic = MEMBERS[client](bootstrap, group, topic)
        until(lambda: len(classic.owned) == PARTITIONS, "the classic member reads everything", classic)
        assert _group_type(bootstrap, group) == "CLASSIC"
        newcomer = ServerAssignedMember(bootstrap, group, topic)
        until(lambda: shared([classic, newcomer]), "both protocols share", classic, newcomer)
        assert _group_type(bootstrap, group) == "CONSUMER"
        newcomer.leave()
        until(lambda: len(classic.owned) == PARTITIONS, "the classic member takes over", classic)
        assert _group_type(bootstrap, group) == "CLASSIC"
        sent = sender.stop()
    expected = {b"%d" % number for number in range(sent)}
    until(lambda: expected <= {*classic.values, *newcomer.values}, "every record is read", classic)
    until(lambda: committed(bootstrap, group) == _ends(bootstrap, topic), "what is committed is the end")
    classic.leave()


def _group_type(bootstrap: str, group: str) -> str:
    found = confluent_calls.admin(bootstrap).list_consumer_groups().result()
    (kind,) = [one.type.name for one in found.valid if one.group_id == group]
    return str(kind)


def test_a_group_goes_on_where_it_was(bootstrap: str, new_name: Callable[[], str]) -> None:
    """C6: a group that comes back reads what it had not committed, and nothing else."""
    topic, group = new_name(), new_name()
    confluent_calls.create_topic(bootstrap, topic, PARTITIONS)
    producer = Producer({"bootstrap.servers": bootstrap})
    for start in (0, 100):
        for number in range(start, start + 100):
            producer.produce(topic, b"%d" % number, key=b"%d" % number)
        assert producer.flush(WAIT_S) == 0
        member = MEMBERS["confluent"](bootstrap, group, topic)
        expected = sorted(b"%d" % number for number in range(start, start + 100))
        until(lambda: len(member.values) >= 100, "the member reads the new records")  # noqa: B023
        member.leave()
        assert sorted(member.values) == expected
