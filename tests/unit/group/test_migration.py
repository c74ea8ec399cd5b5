"""A classic group that changes over while its members are restarted one by one."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from itertools import count

import pytest
from kio.schema.consumer_protocol_assignment.v3.data import ConsumerProtocolAssignment as KioAssignment
from kio.serial import entity_reader

from braidmq.group.consumer_group import ConsumerGroup
from braidmq.group.consumer_member import Heartbeat
from braidmq.group.events import Join, Joined, Leaver, MemberProtocol, Reply, Sync, Synced, WriteRecords
from braidmq.group.groups import Groups
from braidmq.group.loading import GroupLoader
from braidmq.group.settings import GroupSettings
from braidmq.group.subscription import (
    ConsumerProtocolSubscription,
    TopicPartition,
    read_assignment,
    read_subscription,
    subscribed_topics,
    write_assignment,
)
from braidmq.wire.errors import ApiError, ErrorCode
from braidmq.wire.schema import encode
from unit.group.catalogs import FakeCatalog, topic_id

CATALOG = FakeCatalog(orders=6)


def new_groups() -> Groups:
    ids = count(1)
    return Groups(GroupSettings(), lambda: str(next(ids)), lambda: CATALOG)


def told(owned: list[int], version: int = 1) -> bytes:
    """What a classic consumer says about itself."""
    said = ConsumerProtocolSubscription(
        topics=["orders"], owned_partitions=[TopicPartition(topic="orders", partitions=owned)]
    )
    return struct.pack(">h", version) + encode(said, version)


@dataclass
class Classic:
    """A consumer of the classic protocol that rebalances cooperatively."""

    groups: Groups
    name: str
    instance: str | None = None
    member_id: str = ""
    generation: int = -1
    owned: list[int] = field(default_factory=list)

    def join(self, keeps: list[int] | None = None) -> Joined:
        protocols = (MemberProtocol("cooperative-sticky", told(self.owned if keeps is None else keeps)),)
        request = Join(
            self.member_id, self.name, "/h", 10_000, 60_000, "consumer", protocols, self.instance, version=3
        )
        effects = self.groups.join("g", request, self, 0)
        answers = [one.answer for one in effects if isinstance(one, Reply) and one.token is self]
        if not answers:
            (outcome,) = self.groups.tick(3_000)
            answers = [one.answer for one in outcome.effects if isinstance(one, Reply)]
        (answer,) = answers
        assert isinstance(answer, Joined)
        self.member_id, self.generation = answer.member_id, answer.generation
        return answer

    def sync(self, assignment: bytes = b"") -> Synced:
        assignments = ((self.member_id, assignment),) if assignment else ()
        effects = self.groups.sync(
            "g", Sync(self.member_id, self.generation, assignments, self.instance), self, 0
        )
        (answer,) = [one.answer for one in effects if isinstance(one, Reply)]
        assert isinstance(answer, Synced)
        if answer.code is ErrorCode.NONE:
            self.owned = (read_assignment(answer.assignment) or {}).get("orders", [])
        return answer

    def beat(self) -> ErrorCode:
        return self.groups.heartbeat("g", self.member_id, self.instance, self.generation, 0)


def stable_classic(groups: Groups, instance: str | None = None) -> Classic:
    """A classic group of one member that has all six partitions."""
    member = Classic(groups, "old", instance)
    assert member.join().leader == member.member_id
    member.sync(write_assignment({"orders": list(range(6))}, told([])))
    assert member.owned == list(range(6))
    return member


def heartbeat(member_id: str, epoch: int, instance: str | None = None) -> Heartbeat:
    if epoch:
        return Heartbeat(member_id, epoch, instance_id=instance)
    return Heartbeat(
        member_id,
        0,
        instance_id=instance,
        rebalance_timeout_ms=60_000,
        topics=frozenset({"orders"}),
        owned=frozenset(),
    )


def test_members_of_both_protocols_share_a_group() -> None:
    """C4: the classic one keeps reading what stays its own, and gives up the rest first."""
    groups = new_groups()
    old = stable_classic(groups)
    new, effects = groups.consumer_heartbeat("g", heartbeat("new", 0), 0)
    assert any(isinstance(one, WriteRecords) for one in effects)
    assert (new.member_epoch, new.assignment) == (2, frozenset())
    assert old.beat() is ErrorCode.REBALANCE_IN_PROGRESS
    answer = old.join()
    assert (answer.code, answer.generation, answer.leader) == (ErrorCode.NONE, 1, "")
    assert old.sync().code is ErrorCode.NONE
    assert old.owned == [0, 1, 2]
    assert groups.consumer_heartbeat("g", heartbeat("new", 2), 0)[0].assignment is None
    assert old.beat() is ErrorCode.REBALANCE_IN_PROGRESS
    assert old.join().generation == 2
    old.sync()
    assert old.beat() is ErrorCode.NONE
    new, _ = groups.consumer_heartbeat("g", heartbeat("new", 2), 0)
    assert new.assignment == {(topic_id("orders"), number) for number in (3, 4, 5)}
    groups.check_commit("g", old.member_id, None, 2, 0, 8)
    with pytest.raises(ApiError) as refused:
        groups.check_commit("g", old.member_id, None, 1, 0, 8)
    assert refused.value.code is ErrorCode.ILLEGAL_GENERATION


def test_the_last_classic_member_goes_and_the_group_is_wholly_new() -> None:
    """C4: LeaveGroup works as ever, and what it leaves goes to the others."""
    groups = new_groups()
    old = stable_classic(groups)
    groups.consumer_heartbeat("g", heartbeat("new", 0), 0)
    code, codes, effects = groups.leave("g", [Leaver(old.member_id), Leaver("eve")], 0)
    assert (code, codes) == (ErrorCode.NONE, [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID])
    assert any(isinstance(one, WriteRecords) for one in effects)
    new, _ = groups.consumer_heartbeat("g", heartbeat("new", 2), 0)
    assert new.assignment is not None
    assert len(new.assignment) == 6
    assert old.beat() is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_static_member_changes_over_in_its_place() -> None:
    """C4: restarted with the new protocol under the same instance id, it has its partitions at once."""
    groups = new_groups()
    old = stable_classic(groups, "one")
    new, _ = groups.consumer_heartbeat("g", heartbeat("new", 0, "one"), 0)
    assert new.assignment is not None
    assert len(new.assignment) == 6
    assert old.beat() is ErrorCode.FENCED_INSTANCE_ID


def test_a_classic_member_that_does_not_join_again_in_time_is_removed() -> None:
    """C4: although its heartbeats go on; and one that is silent goes when its own session ends."""
    groups = new_groups()
    old = stable_classic(groups)
    groups.consumer_heartbeat("g", heartbeat("new", 0), 0)
    for now_ms in range(0, 60_000, 5_000):
        code = groups.heartbeat("g", old.member_id, None, old.generation, now_ms)
        assert code is ErrorCode.REBALANCE_IN_PROGRESS
        groups.consumer_heartbeat("g", heartbeat("new", 2), now_ms)
        assert groups.tick(now_ms) == []
    assert len(groups.tick(60_000)) == 1
    assert old.beat() is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_newcomer_may_still_be_classic() -> None:
    """C4: rolling upgrades restart old members as well; who waits while the group changes over is told."""
    groups = new_groups()
    stable_classic(groups)
    waiting = Join(
        "",
        "late",
        "/h",
        10_000,
        60_000,
        "consumer",
        (MemberProtocol("cooperative-sticky", told([])),),
        version=3,
    )
    assert groups.join("g", waiting, "late", 0) == []
    _, effects = groups.consumer_heartbeat("g", heartbeat("new", 0), 0)
    (reply,) = [one for one in effects if isinstance(one, Reply)]
    assert reply.token == "late"
    assert reply.answer.code is ErrorCode.REBALANCE_IN_PROGRESS
    late = Classic(groups, "later")
    assert late.join().code is ErrorCode.NONE
    assert late.sync().code is ErrorCode.NONE
    asks = Join(
        "",
        "c",
        "/h",
        10_000,
        60_000,
        "consumer",
        (MemberProtocol("cooperative-sticky", told([])),),
        version=9,
    )
    (reply,) = [one for one in groups.join("g", asks, 1, 0) if isinstance(one, Reply)]
    assert reply.answer.code is ErrorCode.MEMBER_ID_REQUIRED
    other = Join("", "c", "/h", 10_000, 60_000, "connect", (MemberProtocol("range", b""),), version=3)
    (reply,) = [one for one in groups.join("g", other, 1, 0) if isinstance(one, Reply)]
    assert reply.answer.code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_a_mixed_group_is_loaded_with_its_classic_members() -> None:
    """C6: they go on with their heartbeats after a restart of the broker."""
    groups, loading = new_groups(), GroupLoader()
    old = stable_classic(groups)
    _, effects = groups.consumer_heartbeat("g", heartbeat("new", 0), 0)
    for effect in effects:
        if isinstance(effect, WriteRecords):
            for record in effect.records:
                loading.record(*record)
    old.groups = new_groups()
    old.groups.load(loading, 0, 0)
    assert isinstance(old.groups.find("g"), ConsumerGroup)
    assert old.beat() is ErrorCode.REBALANCE_IN_PROGRESS
    assert old.join().generation == 1
    assert old.sync().code is ErrorCode.NONE
    assert old.owned == [0, 1, 2]


def test_assignments_are_in_the_bytes_of_kafka() -> None:
    """C5: read by a codec generated from Kafka's definitions; what is no subscription is told apart."""
    written = write_assignment({"orders": [1, 2]}, told([], version=3))
    assert written[:2] == b"\x00\x03"
    read, _ = entity_reader(KioAssignment)(written, 2)
    assert [(one.topic, one.partitions) for one in read.assigned_partitions] == [("orders", (1, 2))]
    assert read_assignment(written) == {"orders": [1, 2]}
    newer = b"\x00\x09" + told([5], version=3)[2:] + b"what we do not know"
    subscription = read_subscription(newer)
    assert subscription is not None
    assert subscription.owned_partitions[0].partitions == [5]
    for bad in (b"", b"\x00", b"\xff\xff\x00\x00\x00\x00", b"\x00\x00\x00\x00\x00\x09"):
        assert subscribed_topics(bad) is None
        assert read_assignment(bad) is None
