"""A group that goes back: its last member of the new protocol leaves, and classic ones are left."""

from __future__ import annotations

from itertools import count

import pytest

from braidmq.group.classic import ClassicGroup
from braidmq.group.consumer_group import ConsumerGroup
from braidmq.group.events import (
    Effect,
    Join,
    Joined,
    Leaver,
    MemberProtocol,
    Reply,
    Sync,
    WriteRecords,
    WriteSnapshot,
)
from braidmq.group.groups import Groups
from braidmq.group.loading import GroupLoader
from braidmq.group.rebalance import ClassicGroupState
from braidmq.group.records import group_record
from braidmq.group.settings import GroupSettings, MigrationPolicy
from braidmq.wire.errors import ApiError, ErrorCode
from unit.group.test_migration import CATALOG, Classic, heartbeat, stable_classic, told

BOTH = (MemberProtocol("cooperative-sticky", told([])), MemberProtocol("range", told([])))


class Story:
    """Groups whose writes are kept, so that the broker can be started again."""

    def __init__(self, policy: MigrationPolicy = MigrationPolicy.BIDIRECTIONAL) -> None:
        self.settings = GroupSettings(group_consumer_migration_policy=policy)
        self.groups = self._new()
        self.log = GroupLoader()
        self.old = stable_classic(self.groups)
        self.keep(self.groups.consumer_heartbeat("g", heartbeat("new", 0), 0)[1])

    def _new(self) -> Groups:
        ids = count(1)
        return Groups(self.settings, lambda: str(next(ids)), lambda: CATALOG)

    def keep(self, effects: list[Effect]) -> list[Effect]:
        for effect in effects:
            if isinstance(effect, WriteRecords):
                for key, value in effect.records:
                    self.log.record(key, value)
        return effects

    def settle(self) -> None:
        """The classic member gives up what the new one is to have, and both are at the newest epoch."""
        for _ in range(3):
            if self.old.beat() is ErrorCode.REBALANCE_IN_PROGRESS:
                effects = self.keep(self.groups.join("g", again(self.old), "old", 0))
                (answer,) = [one.answer for one in effects if isinstance(one, Reply)]
                assert isinstance(answer, Joined)
                self.old.generation = answer.generation
                self.old.sync()
            self.keep(self.groups.consumer_heartbeat("g", heartbeat("new", 2), 0)[1])
        assert (self.old.beat(), self.old.owned) == (ErrorCode.NONE, [0, 1, 2])

    def leave(self) -> list[Effect]:
        return self.keep(self.groups.consumer_heartbeat("g", heartbeat("new", -1), 0)[1])

    def restart(self) -> None:
        self.groups = self.old.groups = self._new()
        self.groups.load(self.log, 0, 0)

    @property
    def group(self) -> ClassicGroup:
        found = self.groups.find("g")
        assert isinstance(found, ClassicGroup)
        return found


def again(member: Classic) -> Join:
    """The JoinGroup of a member that has been told to join again."""
    protocols = (MemberProtocol("cooperative-sticky", told(member.owned)),)
    return Join(member.member_id, member.name, "/h", 10_000, 60_000, "consumer", protocols, version=3)


def test_classic_members_that_are_left_are_a_classic_group_again() -> None:
    """C4: they may commit what they have read, are told to gather, and one of them leads."""
    story = Story()
    story.settle()
    assert any(isinstance(one, WriteRecords) for one in story.leave())
    assert story.group.state is ClassicGroupState.PREPARING_REBALANCE
    generation = story.old.generation
    story.groups.check_commit("g", story.old.member_id, None, generation, 0, 8)
    assert story.old.beat() is ErrorCode.REBALANCE_IN_PROGRESS
    answer = story.old.join()
    assert (answer.code, answer.leader) == (ErrorCode.NONE, story.old.member_id)
    assert answer.generation == generation + 1
    assert story.old.sync(told([])).code is ErrorCode.NONE
    assert story.group.state is ClassicGroupState.STABLE


def test_a_member_that_falls_silent_takes_the_new_protocol_with_it() -> None:
    """C4: a crash counts as much as a farewell."""
    story = Story()
    story.settle()
    for now_ms in range(0, 50_000, 5_000):
        story.groups.heartbeat("g", story.old.member_id, None, story.old.generation, now_ms)
        for outcome in story.groups.tick(now_ms):
            story.keep(outcome.effects)
    assert story.group.state is ClassicGroupState.PREPARING_REBALANCE
    assert set(story.group.roster.members) == {story.old.member_id}


def test_members_that_do_not_gather_again_are_dropped_in_time() -> None:
    """C4: the classic group's own clock runs from the moment it is one."""
    story = Story()
    story.settle()
    story.leave()
    while story.group.state is not ClassicGroupState.EMPTY:
        now_ms = story.groups.next_deadline()
        assert now_ms is not None
        story.groups.tick(now_ms)
        assert now_ms <= 70_000


def test_a_broker_that_dies_right_after_finds_the_classic_group() -> None:
    """C6: nothing of the other protocol is left behind, and the members gather when they are heard."""
    story = Story()
    story.settle()
    story.leave()
    story.restart()
    assert set(story.group.roster.members) == {story.old.member_id}
    assert story.old.beat() is ErrorCode.ILLEGAL_GENERATION
    answer = story.old.join()
    assert (answer.code, answer.leader) == (ErrorCode.NONE, story.old.member_id)
    # And forward again: whoever left is not among the members.
    story.keep(story.groups.consumer_heartbeat("g", heartbeat("newer", 0), 0)[1])
    story.restart()
    found = story.groups.find("g")
    assert isinstance(found, ConsumerGroup)
    assert set(found.members) == {story.old.member_id, "newer"}


def test_a_downgrade_that_could_not_be_written_is_made_up_for_by_the_next_record() -> None:
    """C6: a record of the classic group is the last word, whatever tombstones are missing."""
    story = Story()
    story.settle()
    story.groups.consumer_heartbeat("g", heartbeat("new", -1), 0)  # its records are lost
    story.groups.write_failed("g", 0)
    story.old.join()
    sync = Sync(story.old.member_id, story.old.generation, ((story.old.member_id, b""),))
    (store, _) = story.groups.sync("g", sync, 1, 0)
    assert isinstance(store, WriteSnapshot)
    story.log.record(*group_record(store.snapshot, 0))
    story.restart()
    assert story.group.state is ClassicGroupState.STABLE


def test_the_last_static_member_comes_back_with_the_classic_protocol() -> None:
    """C4: under its instance id; the group gathers at once and the one before it is fenced."""
    story = Story()
    story.keep(story.groups.leave("g", [Leaver("new")], 0)[2])
    story.old.join()
    story.old.sync(told([]))
    story.keep(story.groups.consumer_heartbeat("g", heartbeat("new", 0, "one"), 0)[1])
    request = Join("", "c", "/h", 10_000, 60_000, "consumer", BOTH, "one", version=9)
    effects = story.keep(story.groups.join("g", request, "static", 0))
    assert not any(isinstance(one, Reply) for one in effects)  # it waits until the other has joined
    assert len(story.group.roster.members) == 2
    with pytest.raises(ApiError):
        story.groups.consumer_heartbeat("g", heartbeat("new", 2, "one"), 0)
    answers = story.groups.join("g", again(story.old), "old", 0)
    assert {one.token for one in answers if isinstance(one, Reply)} == {"static", "old"}
    story.restart()
    assert isinstance(story.groups.find("g"), ClassicGroup)


def test_a_lone_static_member_comes_back_with_the_classic_protocol() -> None:
    """C4: nobody else is there, so there is nothing to translate for."""
    story = Story()
    story.keep(story.groups.leave("g", [Leaver(story.old.member_id), Leaver("new")], 0)[2])
    story.keep(story.groups.consumer_heartbeat("g", heartbeat("new", 0, "one"), 0)[1])
    request = Join("", "c", "/h", 10_000, 60_000, "consumer", BOTH, "one", version=9)
    story.keep(story.groups.join("g", request, "static", 0))
    assert len(story.group.roster.members) == 1
    story.restart()
    assert story.groups.find("g") is None  # nobody has synced yet, and there are no offsets


@pytest.mark.parametrize("policy", [MigrationPolicy.UPGRADE, MigrationPolicy.BIDIRECTIONAL])
def test_members_without_a_protocol_in_common_stay_as_they_are(policy: MigrationPolicy) -> None:
    """C4: as do those whose operator wants no way back; the broker goes on translating for them."""
    story = Story(policy)
    story.settle()
    if policy is MigrationPolicy.BIDIRECTIONAL:
        other = Join(
            "", "odd", "/h", 10_000, 60_000, "consumer", (MemberProtocol("odd", told([])),), version=3
        )
        (reply,) = [one for one in story.groups.join("g", other, 1, 0) if isinstance(one, Reply)]
        assert reply.answer.code is ErrorCode.NONE
    story.leave()
    assert isinstance(story.groups.find("g"), ConsumerGroup)
    assert story.old.beat() is ErrorCode.REBALANCE_IN_PROGRESS
    assert story.old.join().code is ErrorCode.NONE


@pytest.mark.parametrize("policy", [MigrationPolicy.DOWNGRADE, MigrationPolicy.DISABLED])
def test_a_group_with_members_does_not_change_over_against_the_policy(policy: MigrationPolicy) -> None:
    """C4: the newcomer is told that there is no such group; one without members may always."""
    ids = count(1)
    settings = GroupSettings(group_consumer_migration_policy=policy)
    groups = Groups(settings, lambda: str(next(ids)), lambda: CATALOG)
    old = stable_classic(groups)
    with pytest.raises(ApiError) as refused:
        groups.consumer_heartbeat("g", heartbeat("new", 0), 0)
    assert refused.value.code is ErrorCode.GROUP_ID_NOT_FOUND
    assert old.beat() is ErrorCode.NONE
    groups.leave("g", [Leaver(old.member_id)], 0)
    assert groups.consumer_heartbeat("g", heartbeat("new", 0), 0)[0].member_epoch > 0
