"""Membership of share groups: many members on one partition, epochs, silence."""

from __future__ import annotations

import pytest

from braidmq.group.assignors import Reader, assign_shared
from braidmq.group.consumer_group import Beat
from braidmq.group.consumer_member import Heartbeat
from braidmq.group.events import Join, MemberProtocol, Reply, WriteRecords
from braidmq.group.groups import Groups
from braidmq.group.settings import GroupSettings
from braidmq.group.share_group import ShareGroup, ShareGroupState
from braidmq.wire.errors import ApiError, ErrorCode
from unit.group.catalogs import FakeCatalog, topic_id


def joining(member_id: str, *topics: str) -> Heartbeat:
    return Heartbeat(member_id, 0, topics=frozenset(topics or ("orders",)))


def orders(*numbers: int) -> frozenset[tuple[bytes, int]]:
    return frozenset((topic_id("orders"), number) for number in numbers)


def refused(group: ShareGroup, beat: Heartbeat) -> ErrorCode:
    with pytest.raises(ApiError) as error:
        group.heartbeat(beat, FakeCatalog(orders=1), 0)
    return error.value.code


def test_many_members_share_one_partition() -> None:
    """C3 C9: a share group may have more members than there are partitions."""
    group, catalog = ShareGroup("g", GroupSettings()), FakeCatalog(orders=1)
    for number in range(16):
        answer = group.heartbeat(joining(f"m{number}"), catalog, 0)
        assert (answer.assignment, answer.member_epoch) == (orders(0), number + 1)
    group.check_member("m3")
    assert group.state is ShareGroupState.STABLE


def test_a_change_is_told_with_the_next_heartbeat() -> None:
    """C3: new members, new partitions, members that leave; what has not changed is not told again."""
    group, catalog = ShareGroup("g", GroupSettings()), FakeCatalog(orders=2)
    assert group.heartbeat(joining("ann"), catalog, 0) == Beat("ann", 1, 5_000, orders(0, 1))
    assert group.heartbeat(joining("bob"), catalog, 0).assignment == orders(1)
    assert group.heartbeat(Heartbeat("ann", 1), catalog, 0) == Beat("ann", 2, 5_000, orders(0))
    assert group.heartbeat(Heartbeat("ann", 2), catalog, 0).assignment is None
    catalog.put("orders", 4)
    assert group.heartbeat(Heartbeat("ann", 2), catalog, 0).assignment == orders(0, 2)
    group.heartbeat(Heartbeat("bob", -1), catalog, 0)
    assert group.heartbeat(Heartbeat("ann", 3), catalog, 0).assignment == orders(0, 1, 2, 3)


def test_members_that_fall_silent_are_removed() -> None:
    """C3: after a session, and their partitions are looked after by the others."""
    group, catalog = ShareGroup("g", GroupSettings()), FakeCatalog(orders=2)
    group.heartbeat(joining("ann"), catalog, 0)
    group.heartbeat(joining("bob"), catalog, 10_000)
    assert group.next_deadline() == 45_000
    assert group.tick(45_000) == ["ann"]
    assert group.next_deadline() == 55_000
    assert group.heartbeat(Heartbeat("bob", 2), catalog, 50_000).assignment == orders(0, 1)


@pytest.mark.parametrize(
    ("beat", "code"),
    [
        (Heartbeat("", 0, topics=frozenset({"orders"})), ErrorCode.INVALID_REQUEST),
        (Heartbeat("bob", 0), ErrorCode.INVALID_REQUEST),
        (Heartbeat("ann", -2), ErrorCode.INVALID_REQUEST),
        (Heartbeat("ann", 1, rack_id=""), ErrorCode.INVALID_REQUEST),
        (Heartbeat("eve", 1), ErrorCode.UNKNOWN_MEMBER_ID),
        (Heartbeat("eve", -1), ErrorCode.UNKNOWN_MEMBER_ID),
        (Heartbeat("ann", 5), ErrorCode.FENCED_MEMBER_EPOCH),
        (joining("bob"), ErrorCode.GROUP_MAX_SIZE_REACHED),
    ],
)
def test_what_cannot_be_right_is_refused(beat: Heartbeat, code: ErrorCode) -> None:
    """C3: with the codes of Kafka; the group stays as it was."""
    group = ShareGroup("g", GroupSettings(group_share_max_size=1))
    group.heartbeat(joining("ann"), FakeCatalog(orders=1), 0)
    assert refused(group, beat) is code
    assert list(group.members) == ["ann"]


@pytest.mark.parametrize("members", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("partitions", [1, 2, 3, 7])
def test_everybody_has_something_and_everything_has_somebody(members: int, partitions: int) -> None:
    """C5: whichever are more, and nobody has two more than another."""
    readers = {f"m{number}": Reader(frozenset({b"t"})) for number in range(members)}
    plan = assign_shared(readers, {b"t": partitions})
    assert frozenset().union(*plan.values()) == {(b"t", number) for number in range(partitions)}
    sizes = {len(partitions) for partitions in plan.values()}
    assert min(sizes) >= 1
    assert max(sizes) - min(sizes) <= 1


def test_a_group_id_belongs_to_one_kind_of_group() -> None:
    """C3: share groups and others do not mix, and an empty share group stays until it is deleted."""
    catalog = FakeCatalog(orders=1)
    groups = Groups(GroupSettings(), lambda: "id", lambda: catalog)
    _, (noted,) = groups.share_heartbeat("shared", joining("ann"), 0)
    assert isinstance(noted, WriteRecords)
    assert groups.share_heartbeat("shared", joining("bob"), 0)[1] == []
    with pytest.raises(ApiError) as error:
        groups.check_commit("shared", "", None, -1, 0, 9)
    assert error.value.code is ErrorCode.GROUP_ID_NOT_FOUND
    join = Join("", "c", "/h", 10_000, 60_000, "consumer", (MemberProtocol("range", b""),), version=3)
    (reply,) = groups.join("shared", join, 1, 0)
    assert isinstance(reply, Reply)
    assert reply.answer.code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    groups.join("classic", join, 1, 0)
    with pytest.raises(ApiError) as error:
        groups.share_heartbeat("classic", joining("ann"), 0)
    assert error.value.code is ErrorCode.GROUP_ID_NOT_FOUND
    assert groups.delete("shared")[0] is ErrorCode.NON_EMPTY_GROUP
    groups.tick(45_000)
    groups.add_share("shared")
    assert groups.find("shared") is not None
    assert [one.group_id for one in groups.expired(10**12, 10**12) if one.group_id == "shared"] == []
    ((key, _),) = noted.records
    assert groups.delete("shared") == (ErrorCode.NONE, ((key, None),))
