"""A classic group under requests in any order: what must hold always, and what must come in the end."""

from __future__ import annotations

from itertools import count

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from braidmq.group.classic import ClassicGroup
from braidmq.group.events import (
    Effect,
    Join,
    Joined,
    Leaver,
    MemberProtocol,
    Reply,
    Sync,
    Synced,
    WriteSnapshot,
)
from braidmq.group.rebalance import ClassicGroupState
from braidmq.group.settings import GroupSettings
from braidmq.wire.errors import ErrorCode

CLIENTS = st.integers(0, 4)
LONGEST_WAIT_MS = 400_000
"""Longer than any session, rebalance or first join may take."""


class Client:
    """What a consumer knows: nothing more than the answers it has seen."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.instance = f"static-{number}" if number >= 3 else None
        self.member_id = ""
        self.generation = -1
        self.leader = ""
        self.members: tuple[str, ...] = ()
        self.assignment: bytes | None = None


class ClassicGroupModel(RuleBasedStateMachine):
    """Five clients, two of them static, that join, sync, leave, vanish and come back as they please."""

    @initialize()
    def begin(self) -> None:
        ids, self.tokens = count(), count()
        self.now_ms = 0
        self.group = ClassicGroup("g", GroupSettings(group_max_size=4), lambda: str(next(ids)), self.now_ms)
        self.clients = [Client(number) for number in range(5)]
        self.waiting: dict[object, tuple[Client, type]] = {}
        self.generation = 0

    @rule(number=CLIENTS, version=st.sampled_from([0, 3, 5, 9]), other_topic=st.booleans())
    def join(self, number: int, version: int, other_topic: bool) -> None:
        client = self.clients[number]
        request = Join(
            client.member_id,
            f"c{number}",
            "/h",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=30_000,
            protocol_type="consumer",
            protocols=(MemberProtocol("range", b"b" if other_topic else b"a"),),
            instance_id=client.instance,
            version=version,
        )
        token = self.ask(client, Joined)
        self.take(self.group.join(request, token, self.now_ms))

    @rule(number=CLIENTS, assign=st.booleans())
    def sync(self, number: int, assign: bool) -> None:
        client = self.clients[number]
        assignments = tuple((one, one.encode()) for one in client.members) if assign else ()
        request = Sync(client.member_id, client.generation, assignments, client.instance)
        token = self.ask(client, Synced)
        self.take(self.group.sync(request, token, self.now_ms))

    @rule(number=CLIENTS)
    def heartbeat(self, number: int) -> None:
        client = self.clients[number]
        code = self.group.heartbeat(client.member_id, client.instance, client.generation, self.now_ms)
        if code is ErrorCode.NONE:
            assert client.generation == self.group.generation
            assert client.member_id in self.group.roster.members

    @rule(leavers=st.lists(CLIENTS, max_size=3))
    def leave(self, leavers: list[int]) -> None:
        chosen = [self.clients[number] for number in leavers]
        codes, effects = self.group.leave(
            [Leaver(one.member_id, one.instance) for one in chosen], self.now_ms
        )
        assert len(codes) == len(leavers)
        self.take(effects)

    @rule(number=CLIENTS)
    def crash(self, number: int) -> None:
        self.clients[number] = Client(number)

    @rule(passed_ms=st.integers(1, 40_000))
    def wait(self, passed_ms: int) -> None:
        self.pass_time(self.now_ms + passed_ms)

    @rule()
    def storage_fails(self) -> None:
        self.take(self.group.write_failed(self.now_ms))

    def ask(self, client: Client, answer: type) -> object:
        token = next(self.tokens)
        self.waiting[token] = (client, answer)
        return token

    def pass_time(self, until_ms: int) -> None:
        while (due_ms := self.group.next_deadline()) is not None and due_ms <= until_ms:
            self.now_ms = max(self.now_ms, due_ms)
            self.take(self.group.tick(self.now_ms))
            later_ms = self.group.next_deadline()
            assert later_ms is None or later_ms > self.now_ms, "a tick does all that is due"
        self.now_ms = until_ms

    def take(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, WriteSnapshot):
                assert effect.snapshot.generation == self.group.generation
                continue
            assert isinstance(effect, Reply)
            client, expected = self.waiting.pop(effect.token)
            assert isinstance(effect.answer, expected)
            if isinstance(effect.answer, Joined):
                self.on_joined(client, effect.answer)
            elif effect.answer.code is ErrorCode.NONE:
                client.assignment = effect.answer.assignment

    def on_joined(self, client: Client, answer: Joined) -> None:
        if answer.code in (ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED):
            client.member_id, client.generation = answer.member_id, answer.generation
            client.members = tuple(one.member_id for one in answer.members)
            assert (
                answer.leader in self.group.roster.members
                or answer.code is not ErrorCode.NONE
                or (client.instance is not None)
            )
        elif answer.code is ErrorCode.UNKNOWN_MEMBER_ID:
            client.member_id = ""

    @invariant()
    def generations_only_go_up(self) -> None:
        assert self.group.generation >= self.generation
        self.generation = self.group.generation

    @invariant()
    def a_group_with_members_has_one_leader_and_it_is_one_of_them(self) -> None:
        if self.group.roster.members:
            assert self.group.leader in self.group.roster.members
        else:
            assert self.group.leader is None

    @invariant()
    def states_agree_with_members(self) -> None:
        group = self.group
        members = group.roster.members.values()
        if group.state is ClassicGroupState.EMPTY:
            assert not members
        if group.state in (ClassicGroupState.STABLE, ClassicGroupState.COMPLETING_REBALANCE):
            assert members
            assert all(one.join_token is None for one in members)
        if group.state is ClassicGroupState.STABLE:
            assert all(one.sync_token is None for one in members), "nobody in a stable group waits"
        assert len(group.roster.static) == sum(one.instance_id is not None for one in members)
        assert group.roster.waiting == sum(one.join_token is not None for one in members)
        assert len(members) <= 4 or group.state is ClassicGroupState.PREPARING_REBALANCE

    @invariant()
    def whoever_waits_is_known_and_has_a_deadline(self) -> None:
        kept = {one.join_token for one in self.group.roster.members.values()}
        kept |= {one.sync_token for one in self.group.roster.members.values()}
        assert set(self.waiting) == kept - {None}
        if self.waiting:
            assert self.group.next_deadline() is not None

    def teardown(self) -> None:
        """Everybody falls silent: all who wait are answered, and the group is empty in the end."""
        if not hasattr(self, "group"):
            return
        self.pass_time(self.now_ms + LONGEST_WAIT_MS)
        assert not self.waiting
        assert self.group.state is ClassicGroupState.EMPTY


ClassicGroupModel.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


class TestAClassicGroupKeepsItsPromisesInAnyOrderOfRequests(ClassicGroupModel.TestCase):  # type: ignore[misc]
    """C4: see the invariants above."""


def test_a_group_whose_last_member_leaves_with_an_expected_one_ends_once() -> None:
    """C4: the expected one was all that its rebalance waited for; that must not count as two generations."""
    model = ClassicGroupModel()
    model.begin()
    model.join(number=3, version=0, other_topic=True)
    model.wait(passed_ms=3_000)
    model.join(number=0, version=5, other_topic=False)
    model.join(number=3, version=0, other_topic=False)
    model.leave(leavers=[3, 0])
    assert (model.group.state, model.group.generation) == (ClassicGroupState.EMPTY, 2)
