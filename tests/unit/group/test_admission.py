"""Floods of members, and members that bring too much."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from braidmq.group.admission import MEMBER_BYTES
from braidmq.group.consumer_member import Heartbeat
from braidmq.group.events import Join, Joined, Leaver, MemberProtocol, Reply, Sync
from braidmq.group.groups import Groups
from braidmq.group.loading import GroupLoader
from braidmq.group.offsets import Committed
from braidmq.group.records import offset_record
from braidmq.group.settings import GroupSettings
from braidmq.wire.errors import ApiError, ErrorCode
from unit.group.catalogs import FakeCatalog

LONG = "x" * 1_001
LIMIT_BYTES = 20 * MEMBER_BYTES
CATALOG = FakeCatalog(orders=6)


def new_groups(**limits: int) -> Groups:
    ids = count(1)
    return Groups(GroupSettings(**limits), lambda: str(next(ids)), lambda: CATALOG)


def join(group: str, groups: Groups, now_ms: int = 0, **overrides: Any) -> Joined | None:
    """A newcomer that is a member at once; its answer, None while it waits."""
    fields: dict[str, Any] = {
        "member_id": "",
        "client_id": "c",
        "client_host": "/h",
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 10_000,
        "protocol_type": "consumer",
        "protocols": (MemberProtocol("range", b"m"),),
        "version": 3,
    }
    effects = groups.join(group, Join(**{**fields, **overrides}), "me", now_ms)
    answers = [one.answer for one in effects if isinstance(one, Reply)]
    if not answers:
        return None
    assert isinstance(answers[0], Joined)
    return answers[0]


def beat(member_id: str, **overrides: Any) -> Heartbeat:
    fields: dict[str, Any] = {
        "rebalance_timeout_ms": 10_000,
        "topics": frozenset({"orders"}),
        "owned": frozenset(),
    }
    return Heartbeat(member_id, 0, **{**fields, **overrides})


@pytest.mark.parametrize(
    ("group", "overrides", "code"),
    [
        (LONG, {}, ErrorCode.INVALID_GROUP_ID),
        ("ü" * 501, {}, ErrorCode.INVALID_GROUP_ID),
        ("g", {"member_id": LONG}, ErrorCode.INVALID_REQUEST),
        ("g", {"client_id": LONG}, ErrorCode.INVALID_REQUEST),
        ("g", {"instance_id": LONG}, ErrorCode.INVALID_REQUEST),
        ("g", {"protocol_type": LONG}, ErrorCode.INVALID_REQUEST),
        ("g", {"protocols": (MemberProtocol("range", bytes(600_000)),)}, ErrorCode.MESSAGE_TOO_LARGE),
        ("g", {"protocols": (MemberProtocol("a", bytes(300_000)),) * 2}, ErrorCode.MESSAGE_TOO_LARGE),
    ],
)
def test_a_classic_member_may_not_bring_too_much(
    group: str, overrides: dict[str, Any], code: ErrorCode
) -> None:
    """W5 C4: ids of more than a thousand bytes, and more than half a mebibyte about itself."""
    groups = new_groups()
    answer = join(group, groups, **overrides)
    assert answer is not None
    assert answer.code is code
    assert len(groups) == 0


@pytest.mark.parametrize(
    ("group", "overrides", "code"),
    [
        (LONG, {}, ErrorCode.INVALID_REQUEST),
        ("g", {"member_id": LONG}, ErrorCode.INVALID_REQUEST),
        ("g", {"instance_id": LONG}, ErrorCode.INVALID_REQUEST),
        ("g", {"rack_id": LONG}, ErrorCode.INVALID_REQUEST),
        ("g", {"client_id": LONG}, ErrorCode.INVALID_REQUEST),
        ("g", {"topics": frozenset(f"{n:0500d}" for n in range(1100))}, ErrorCode.MESSAGE_TOO_LARGE),
    ],
)
@pytest.mark.parametrize("kind", ["consumer", "share"])
def test_members_of_the_new_protocols_may_not_either(
    kind: str, group: str, overrides: dict[str, Any], code: ErrorCode
) -> None:
    """W5 C4: the same limits; nothing of a refused member is kept."""
    groups = new_groups()
    wanted = beat(**{"member_id": "m", **overrides})
    with pytest.raises(ApiError) as refused:
        groups.share_heartbeat(group, wanted, 0) if kind == "share" else groups.consumer_heartbeat(
            group, wanted, 0
        )
    assert refused.value.code is code
    assert len(groups) == 0


def test_a_flood_of_members_is_stopped_and_those_who_are_there_go_on() -> None:
    """W5 C4: over all groups and protocols together; when some leave, others may come."""
    groups = new_groups(group_members_bytes_max=LIMIT_BYTES, group_initial_rebalance_delay_ms=0)
    answers = [join(f"g{number}", groups) for number in range(10)]
    assert {one.code for one in answers if one is not None} == {ErrorCode.NONE}
    for number in range(9):
        groups.consumer_heartbeat("server", beat(f"m{number}"), 0)
    late = join("late", groups)
    assert late is not None
    assert late.code is ErrorCode.POLICY_VIOLATION
    with pytest.raises(ApiError) as refused:
        groups.share_heartbeat("share", beat("m"), 0)
    assert refused.value.code is ErrorCode.POLICY_VIOLATION
    first = answers[0]
    assert first is not None
    assert groups.heartbeat("g0", first.member_id, None, first.generation, 0) is ErrorCode.NONE
    assert groups.consumer_heartbeat("server", Heartbeat("m0", 1), 0)[0].member_epoch > 0
    groups.leave("g0", [Leaver(first.member_id)], 0)
    groups.consumer_heartbeat("server", Heartbeat("m0", -1), 0)
    again = join("late", groups, 1_000)
    assert again is not None
    assert again.code is ErrorCode.NONE


def test_a_leader_may_not_hand_out_too_much() -> None:
    """W5 C4: neither to one member nor to all of them; the group waits for another try."""
    groups = new_groups(group_members_bytes_max=LIMIT_BYTES, group_initial_rebalance_delay_ms=0)
    leader = join("g", groups)
    assert leader is not None
    me = leader.member_id
    for assignments in (((me, bytes(600_000)),), tuple((f"m{number}", bytes(2_000)) for number in range(10))):
        (refused,) = groups.sync("g", Sync(me, leader.generation, assignments), 1, 0)
        assert isinstance(refused, Reply)
        assert refused.answer.code in (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.POLICY_VIOLATION)
    _, answered = groups.sync("g", Sync(me, leader.generation, ((me, b"yours"),)), 1, 1_000)
    assert isinstance(answered, Reply)
    assert answered.answer.code is ErrorCode.NONE


def test_who_joins_again_and_again_does_not_use_up_the_room() -> None:
    """C4: the estimate is corrected by weighing; a member counts once however often it joins."""
    groups = new_groups(group_members_bytes_max=LIMIT_BYTES, group_initial_rebalance_delay_ms=0)
    joined = join("g", groups)
    assert joined is not None
    for second in range(100):
        again = join("g", groups, second * 1_000, member_id=joined.member_id)
        assert again is not None
        assert again.code is ErrorCode.NONE


def test_ids_that_were_given_out_count_as_well() -> None:
    """W5 C4: a client that asks for ids and never uses them is stopped, until they are forgotten."""
    groups = new_groups(group_members_bytes_max=LIMIT_BYTES)
    codes = [join("g", groups, version=9) for _ in range(25)]
    assert {one.code for one in codes if one} == {ErrorCode.MEMBER_ID_REQUIRED, ErrorCode.POLICY_VIOLATION}
    groups.tick(10_000)
    after = join("g", groups, 10_000, version=9)
    assert after is not None
    assert after.code is ErrorCode.MEMBER_ID_REQUIRED


def test_patterns_that_nobody_uses_any_more_are_forgotten() -> None:
    """W5 C4: a member that comes and goes with ever new patterns leaves nothing behind."""
    groups = new_groups()
    for number in range(50):
        wanted = beat(f"m{number}", topics=None, pattern=f"orders{number}.*")
        groups.consumer_heartbeat("g", wanted, 0)
        groups.consumer_heartbeat("g", Heartbeat(f"m{number}", -1), 0)
    group = groups.find("g")
    assert group is not None
    assert group.weight_bytes() == 0
    assert len(group._matched) <= 1  # type: ignore[union-attr]


def commit(groups: Groups, group: str, partitions: range, text: str = "", now_ms: int = 0) -> None:
    """As the coordinator does it."""
    entries = [(("orders", number), Committed(1, -1, text, 0)) for number in partitions]
    groups.check_commit(group, "", None, -1, now_ms, 9)
    groups.check_offsets(group, entries, now_ms)
    for place, committed in entries:
        groups.offsets_to_change(group, now_ms).commit(*place, committed)


def test_a_flood_of_offsets_is_stopped_and_those_that_are_there_go_on() -> None:
    """W5 C6: over all groups; text that grows counts, and room is made by forgetting."""
    groups = new_groups(group_offsets_bytes_max=35_000)
    commit(groups, "a", range(60))
    commit(groups, "b", range(30))
    for _ in range(100):
        commit(groups, "a", range(60))
    for late in (lambda: commit(groups, "c", range(20)), lambda: commit(groups, "b", range(30), "x" * 200)):
        with pytest.raises(ApiError) as refused:
            late()
        assert refused.value.code is ErrorCode.POLICY_VIOLATION
    assert len(groups.offsets("c")) == 0
    groups.delete("a")
    with pytest.raises(ApiError):
        commit(groups, "c", range(20), now_ms=10_000)  # weighed a short while ago
    commit(groups, "c", range(20), now_ms=30_000)
    assert len(groups.offsets("c")) == 20


def test_what_was_loaded_counts() -> None:
    """W5 C6: a restart is no way around the limit."""
    loading = GroupLoader()
    for number in range(100):
        loading.record(*offset_record("a", "orders", number, Committed(1, -1, "", 0)))
    groups = new_groups(group_offsets_bytes_max=35_000)
    groups.load(loading, 0, 0)
    with pytest.raises(ApiError):
        commit(groups, "b", range(1))
    commit(groups, "a", range(100))
