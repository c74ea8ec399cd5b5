"""All groups of a broker together: missing ones, limits, one timer, expiry, deleting and loading."""

from __future__ import annotations

from itertools import count

import pytest

from braidmq.group.consumer_member import Heartbeat
from braidmq.group.events import (
    Effect,
    Join,
    Joined,
    KeyValue,
    Leaver,
    MemberProtocol,
    Reply,
    Sync,
    Synced,
    WriteRecords,
    WriteSnapshot,
)
from braidmq.group.groups import Groups
from braidmq.group.loading import GroupLoader
from braidmq.group.offsets import Committed
from braidmq.group.records import group_key, group_record, offset_record
from braidmq.group.settings import GroupSettings
from braidmq.wire.errors import ApiError, ErrorCode
from scenarios.story import subscription
from unit.group.catalogs import FakeCatalog

WEEK_MS = 7 * 86_400_000
CATALOG = FakeCatalog(orders=2)


def new_groups(**settings: int) -> Groups:
    ids = count(1)
    return Groups(GroupSettings(**settings), lambda: str(next(ids)), lambda: CATALOG)


def join(member_id: str = "", protocol_type: str = "consumer") -> Join:
    protocols = (MemberProtocol("range", subscription(["orders"])),)
    return Join(member_id, "c", "/h", 10_000, 60_000, protocol_type, protocols, version=3)


def joined(effects: list[Effect]) -> Joined:
    (reply,) = effects
    assert isinstance(reply, Reply)
    assert isinstance(reply.answer, Joined)
    return reply.answer


def stable(groups: Groups, group_id: str, now_ms: int = 0, protocol_type: str = "consumer") -> str:
    """A group of one member with an assignment; returns the member's id."""
    assert groups.join(group_id, join(protocol_type=protocol_type), "token", now_ms) == []
    (outcome,) = groups.tick(now_ms + 3_000)
    answer = joined(outcome.effects)
    sync = Sync(answer.member_id, answer.generation, ((answer.member_id, b"all"),))
    store, reply = groups.sync(group_id, sync, "token", now_ms + 3_000)
    assert isinstance(store, WriteSnapshot)
    assert isinstance(reply, Reply)
    return answer.member_id


def test_requests_to_a_group_that_does_not_exist_get_the_codes_of_kafka() -> None:
    """C4: only a newcomer's JoinGroup, or a commit without a generation, makes a group."""
    groups = new_groups()
    assert joined(groups.join("g", join("me"), 1, 0)).code is ErrorCode.UNKNOWN_MEMBER_ID
    assert groups.sync("g", Sync("me", 1), 1, 0) == [Reply(1, Synced(ErrorCode.UNKNOWN_MEMBER_ID))]
    assert groups.heartbeat("g", "me", None, 1, 0) is ErrorCode.UNKNOWN_MEMBER_ID
    assert groups.leave("g", [Leaver("me")], 0) == (ErrorCode.UNKNOWN_MEMBER_ID, [], [])
    assert groups.delete("g") == (ErrorCode.GROUP_ID_NOT_FOUND, ())
    assert groups.find("g") is None
    with pytest.raises(ApiError) as refused:
        groups.check_commit("g", "me", None, 1, 0, 9)
    assert refused.value.code is ErrorCode.ILLEGAL_GENERATION
    with pytest.raises(ApiError) as refused:
        groups.check_offset_delete("g")
    assert refused.value.code is ErrorCode.GROUP_ID_NOT_FOUND
    assert len(groups) == 0


def test_a_group_needs_an_id() -> None:
    """C4: an empty group id is refused with its own code; only commits know such a group, as in Kafka."""
    groups = new_groups()
    assert joined(groups.join("", join(), 1, 0)).code is ErrorCode.INVALID_GROUP_ID
    assert groups.heartbeat("", "me", None, 1, 0) is ErrorCode.INVALID_GROUP_ID
    assert groups.delete("") == (ErrorCode.GROUP_ID_NOT_FOUND, ())
    groups.check_commit("", "", None, -1, 0, 9)
    assert groups.delete("")[0] is ErrorCode.NONE


def test_a_flood_of_groups_is_stopped() -> None:
    """C4: by join and by commit; those that are there go on."""
    groups = new_groups(groups_max=2)
    groups.join("a", join(), 1, 0)
    groups.check_commit("b", "", None, -1, 0, 9)
    assert joined(groups.join("c", join(), 1, 0)).code is ErrorCode.POLICY_VIOLATION
    with pytest.raises(ApiError) as refused:
        groups.check_commit("d", "", None, -1, 0, 9)
    assert refused.value.code is ErrorCode.POLICY_VIOLATION
    groups.check_commit("b", "", None, -1, 0, 9)
    assert len(groups) == 2


def test_a_full_group_refuses_newcomers_and_keeps_its_members() -> None:
    """C4: GROUP_MAX_SIZE_REACHED."""
    groups = new_groups(group_max_size=1)
    member_id = stable(groups, "g")
    assert joined(groups.join("g", join(), 1, 4_000)).code is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert groups.heartbeat("g", member_id, None, 1, 4_000) is ErrorCode.NONE


def test_one_timer_serves_all_groups() -> None:
    """C4: each group acts when it is due, and only then."""
    groups = new_groups()
    for number in range(5):
        groups.join(f"g{number}", join(), number, number * 100)
    assert groups.next_deadline() == 3_000
    assert groups.tick(2_999) == []
    assert [outcome.group_id for outcome in groups.tick(3_100)] == ["g0", "g1"]
    assert groups.next_deadline() == 3_200
    assert [outcome.group_id for outcome in groups.tick(10_000)] == ["g2", "g3", "g4"]


def test_a_heartbeat_prolongs_a_session_without_a_new_timer() -> None:
    """C4: the timer fires in vain once, and is set anew for the real end."""
    groups = new_groups()
    member_id = stable(groups, "g")
    assert groups.heartbeat("g", member_id, None, 1, 9_000) is ErrorCode.NONE
    assert groups.tick(13_000) == []
    assert groups.next_deadline() == 19_000
    (outcome,) = groups.tick(19_000)
    assert isinstance(outcome.effects[0], WriteSnapshot)
    assert groups.next_deadline() is None


def test_only_empty_groups_are_deleted() -> None:
    """C4: NON_EMPTY_GROUP while anybody is in it; its offsets go with it."""
    groups = new_groups()
    member_id = stable(groups, "g")
    groups.offsets_to_change("g", 0).commit("orders", 0, Committed(1, -1, "", 0))
    assert groups.delete("g") == (ErrorCode.NON_EMPTY_GROUP, ())
    groups.leave("g", [Leaver(member_id)], 4_000)
    code, tombstones = groups.delete("g")
    assert code is ErrorCode.NONE
    assert tombstones == (offset_record("g", "orders", 0, None), (group_key("g"), None))
    assert groups.offsets("g").find("orders", 0) is None
    assert groups.delete("g")[0] is ErrorCode.GROUP_ID_NOT_FOUND
    assert groups.tick(1_000_000) == []


def test_offsets_that_members_use_are_not_deleted() -> None:
    """C6: OffsetDelete spares subscribed topics, and other protocols' groups while they have members."""
    groups = new_groups()
    stable(groups, "g")
    assert groups.check_offset_delete("g") == {"orders"}
    stable(groups, "workers", protocol_type="connect")
    with pytest.raises(ApiError) as refused:
        groups.check_offset_delete("workers")
    assert refused.value.code is ErrorCode.NON_EMPTY_GROUP
    groups.check_commit("simple", "", None, -1, 0, 9)
    assert groups.check_offset_delete("simple") == frozenset()


def test_offsets_of_an_idle_group_expire_and_the_group_with_them() -> None:
    """C6: not while it has members, not before its time."""
    groups = new_groups()
    member_id = stable(groups, "g")
    groups.offsets_to_change("g", 0).commit("orders", 0, Committed(1, -1, "", 0))
    assert list(groups.expired(WEEK_MS, WEEK_MS)) == []
    groups.leave("g", [Leaver(member_id)], 10_000)
    assert list(groups.expired(WEEK_MS, WEEK_MS)) == []
    (expired,) = groups.expired(WEEK_MS + 10_000, WEEK_MS + 10_000)
    assert expired[:3] == ("g", [("orders", 0)], True)
    assert expired.records == (offset_record("g", "orders", 0, None), (group_key("g"), None))
    groups.forget(expired)
    assert len(groups) == 0


def test_a_group_that_came_to_life_while_it_was_being_forgotten_stays() -> None:
    """C6: tombstones take a moment to be written."""
    groups = new_groups()
    groups.check_commit("g", "", None, -1, 0, 9)
    (expired,) = groups.expired(0, 0)
    groups.join("g", join(), 1, 0)
    groups.forget(expired)
    assert groups.find("g") is not None


def test_what_was_stored_is_loaded() -> None:
    """C6: groups with their members and generation, offsets, tombstones; members have a session to return."""
    before = new_groups()
    member_id = stable(before, "g")
    group = before.find_classic("g")
    assert group is not None
    loading = GroupLoader()
    for record in (
        offset_record("g", "orders", 0, Committed(5, -1, "", 7)),
        offset_record("g", "orders", 1, Committed(6, -1, "", 7)),
        offset_record("gone", "orders", 0, Committed(1, -1, "", 7)),
        offset_record("g", "orders", 0, Committed(8, -1, "", 9)),
        offset_record("gone", "orders", 0, None),
        (b"\x00", b"not a record"),
        group_record(group.snapshot(), 100),
        offset_record("simple", "orders", 0, Committed(2, -1, "", 7)),
    ):
        loading.record(*record)
    assert loading.unreadable == 1
    groups = new_groups()
    groups.load(loading, now_ms=50_000, wall_ms=1_000)
    assert {group.group_id for group in groups} == {"g", "simple"}
    assert groups.offsets("g").find("orders", 0) == Committed(8, -1, "", 9)
    loaded = groups.find_classic("g")
    assert loaded is not None
    assert loaded.describe() == group.describe()
    assert groups.heartbeat("g", member_id, None, 1, 55_000) is ErrorCode.NONE
    assert groups.tick(64_000) == []
    assert groups.tick(65_000) != []


def test_offsets_of_transactions_are_loaded_as_far_as_they_are_decided() -> None:
    """T2: committed ones count, aborted ones are gone, open ones wait for their marker."""
    loading = GroupLoader()
    for producer_id, partition in ((1, 0), (2, 1), (3, 2)):
        loading.record(*offset_record("g", "orders", partition, Committed(5, -1, "", 7)), producer_id)
    loading.marker(1, committed=True)
    loading.marker(2, committed=False)
    groups = new_groups()
    groups.load(loading, 0, 0)
    assert groups.offsets("g").topics() == {"orders": [0]}
    assert groups.offsets("g").is_undecided("orders", 2)
    groups.commit_undecided("other", 3, "orders", 9, Committed(6, -1, "", 7), 0)
    groups.decide(3, committed=True)
    assert groups.offsets("g").topics() == {"orders": [0, 2]}
    assert groups.offsets("other").topics() == {"orders": [9]}


def heartbeat(member_id: str, epoch: int) -> Heartbeat:
    joins = epoch == 0
    topics = frozenset({"orders"}) if joins else None
    owned: frozenset[tuple[bytes, int]] | None = frozenset() if joins else None
    return Heartbeat(
        member_id, epoch, rebalance_timeout_ms=60_000 if joins else -1, topics=topics, owned=owned
    )


def load_written(loading: GroupLoader, effects: list[Effect]) -> list[KeyValue]:
    """Loads what a `WriteRecords` among the effects writes; returns it."""
    written = [record for effect in effects if isinstance(effect, WriteRecords) for record in effect.records]
    for record in written:
        loading.record(*record)
    return written


def test_a_group_that_is_not_one_of_consumers_does_not_change_over() -> None:
    """C4: as long as it has members; who comes with the other protocol is told there is none."""
    groups = new_groups()
    stable(groups, "workers", protocol_type="connect")
    with pytest.raises(ApiError) as refused:
        groups.consumer_heartbeat("workers", heartbeat("ann", 0), 4_000)
    assert refused.value.code is ErrorCode.GROUP_ID_NOT_FOUND


def test_an_empty_group_changes_over_to_the_protocol_of_who_comes() -> None:
    """C4: there and back; its offsets stay, and epochs go on where generations were."""
    groups, loading = new_groups(), GroupLoader()
    member_id = stable(groups, "g")
    groups.offsets_to_change("g", 0).commit("orders", 0, Committed(5, -1, "", 0))
    groups.leave("g", [Leaver(member_id)], 4_000)
    answer, effects = groups.consumer_heartbeat("g", heartbeat("ann", 0), 4_000)
    assert answer.member_epoch == 3
    written = load_written(loading, effects)
    assert written[0] == (group_key("g"), None)
    assert list(loading.consumer()) == ["g"]
    assert groups.heartbeat("g", member_id, None, 2, 5_000) is ErrorCode.UNKNOWN_MEMBER_ID
    groups.consumer_heartbeat("g", heartbeat("ann", -1), 5_000)
    (write,) = groups.join("g", join(), 1, 5_000)
    assert isinstance(write, WriteRecords)
    assert groups.find_classic("g") is not None
    assert groups.offsets("g").find("orders", 0) == Committed(5, -1, "", 0)


def test_members_of_server_assigned_groups_that_fall_silent_are_removed_and_that_is_written() -> None:
    """C4: by the same timer, with tombstones; the group goes when nothing is left of it."""
    groups = new_groups()
    with pytest.raises(ApiError) as refused:
        groups.consumer_heartbeat("g", heartbeat("ann", 1), 0)
    assert refused.value.code is ErrorCode.GROUP_ID_NOT_FOUND
    assert len(groups) == 0
    groups.consumer_heartbeat("g", heartbeat("ann", 0), 0)
    groups.check_commit("g", "ann", None, 1, 0, 9)
    groups.check_fetch("g", "ann", 1)
    assert groups.check_offset_delete("g") == {"orders"}
    assert groups.delete("g") == (ErrorCode.NON_EMPTY_GROUP, ())
    assert groups.next_deadline() == 45_000
    (outcome,) = groups.tick(45_000)
    (write,) = outcome.effects
    assert isinstance(write, WriteRecords)
    assert any(value is None for _, value in write.records)
    (expired,) = groups.expired(50_000, 50_000)
    assert expired.group_too
    groups.forget(expired)
    assert len(groups) == 0


def test_changes_that_could_not_be_written_are_written_with_the_next_ones() -> None:
    """C6: a group is never ahead of its records for longer than a failure lasts."""
    groups, loading = new_groups(), GroupLoader()
    groups.consumer_heartbeat("g", heartbeat("ann", 0), 0)
    assert groups.write_failed("g", 0) == []
    _, effects = groups.consumer_heartbeat("g", heartbeat("ann", 1), 0)
    load_written(loading, effects)
    stored = loading.consumer()["g"]
    assert [member.member_id for member in stored.members] == ["ann"]
    assert len(stored.targets["ann"]) == 2


def test_a_store_that_failed_makes_the_members_gather_again() -> None:
    """C4: nobody goes on with an assignment that was not written down."""
    groups = new_groups()
    member_id = stable(groups, "g")
    assert groups.write_failed("g", 4_000) == []
    assert groups.heartbeat("g", member_id, None, 1, 4_100) is ErrorCode.REBALANCE_IN_PROGRESS
    assert joined(groups.join("g", join(member_id), 1, 4_200)).generation == 2
