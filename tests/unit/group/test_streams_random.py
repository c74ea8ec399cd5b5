"""A streams group under heartbeats in any order: no task has two active ones, and every task finds one."""

from __future__ import annotations

from itertools import count

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from braidmq.group.settings import GroupSettings
from braidmq.group.streams_group import StreamsBeat, StreamsGroup, StreamsGroupState, StreamsOptions
from braidmq.group.streams_member import StreamsHeartbeat
from braidmq.group.streams_records import StreamsLoader, changed_records
from braidmq.group.streams_tasks import NO_TASKS, Role, Tasks
from braidmq.wire.errors import ApiError
from unit.group.applications import CHANGELOG, REPARTITION, word_count
from unit.group.catalogs import FakeCatalog

CLIENTS = st.integers(0, 4)


class Thread:
    """A thread that works on what it was told to, until it is told or decides otherwise."""

    def __init__(self, number: int, incarnation: int) -> None:
        self.member_id = f"m{number}.{incarnation}"
        self.process_id = f"p{number // 2}"
        self.forget()

    def forget(self) -> None:
        self.epoch = 0
        self.owned: Tasks = NO_TASKS
        self.target: Tasks = NO_TASKS

    def settle(self) -> None:
        """Closes the tasks it has to give up, and begins with new ones."""
        self.owned = self.target


class StreamsGroupModel(RuleBasedStateMachine):
    """Five threads of three processes; answers are lost, threads vanish, topics go, brokers restart."""

    @initialize(replicas=st.integers(0, 2), delay_ms=st.sampled_from((0, 3_000)))
    def begin(self, replicas: int, delay_ms: int) -> None:
        self.now_ms = 0
        self.options = StreamsOptions(num_standby_replicas=replicas, initial_rebalance_delay_ms=delay_ms)
        self.incarnations = count()
        self.catalog = FakeCatalog(lines=3)
        self.loader = StreamsLoader()
        self.group = self.new_group()
        self.threads = [Thread(number, next(self.incarnations)) for number in range(5)]

    def new_group(self) -> StreamsGroup:
        return StreamsGroup("g", GroupSettings(), lambda _: self.options, self.now_ms)

    @rule(number=CLIENTS, lost=st.booleans(), creates=st.booleans())
    def heartbeat(self, number: int, lost: bool, creates: bool) -> None:
        thread = self.threads[number]
        joins = thread.epoch == 0
        request = StreamsHeartbeat(
            thread.member_id,
            thread.epoch,
            rebalance_timeout_ms=30_000 if joins else -1,
            topology=word_count() if joins else None,
            owned=NO_TASKS if joins else thread.owned,
            process_id=thread.process_id if joins else None,
        )
        self.send(thread, request, lost, creates)

    def send(self, thread: Thread, request: StreamsHeartbeat, lost: bool, creates: bool) -> None:
        try:
            answer = self.group.heartbeat(request, self.catalog, self.now_ms)
        except ApiError:
            thread.forget()
            return
        self.store()
        for topic in answer.to_create if creates else ():
            self.catalog.put(topic.name, topic.partitions)
        if not lost:
            self.take(thread, answer)

    def take(self, thread: Thread, answer: StreamsBeat) -> None:
        if answer.member_epoch < 0:
            thread.forget()
            return
        assert answer.member_epoch >= thread.epoch
        assert answer.member_epoch > 0
        thread.epoch = answer.member_epoch
        if answer.tasks is not None:
            thread.target = answer.tasks
            thread.owned |= thread.target

    @rule(number=CLIENTS)
    def settle(self, number: int) -> None:
        self.threads[number].settle()

    @rule(number=CLIENTS)
    def leave(self, number: int) -> None:
        thread = self.threads[number]
        if thread.epoch:
            self.send(thread, StreamsHeartbeat(thread.member_id, -1), lost=False, creates=False)
        self.crash(number)

    @rule(number=CLIENTS)
    def crash(self, number: int) -> None:
        self.threads[number] = Thread(number, next(self.incarnations))

    @rule(topic=st.sampled_from((CHANGELOG.name, REPARTITION.name)))
    def lose_an_internal_topic(self, topic: str) -> None:
        if topic in self.catalog.topics:
            self.catalog.drop(topic)

    @rule(replicas=st.integers(0, 2))
    def set_standbys(self, replicas: int) -> None:
        self.options = self.options._replace(num_standby_replicas=replicas)

    @rule(passed_ms=st.integers(1, 20_000))
    def wait(self, passed_ms: int) -> None:
        self.now_ms += passed_ms
        for gone in self.group.tick(self.now_ms):
            assert gone not in self.group.members
        self.store()

    @rule()
    def restart_broker(self) -> None:
        self.group = self.new_group()
        if (stored := self.loader.groups().get("g")) is not None:
            self.group.restore(stored, self.now_ms)

    def store(self) -> None:
        for record in changed_records(self.group, self.group.take_changes()):
            self.loader.take(*record)

    @invariant()
    def no_task_has_two_active_ones(self) -> None:
        held = [
            task
            for member in self.group.members.values()
            for task in member.assigned | member.revoking
            if task.role is Role.ACTIVE
        ]
        assert len(held) == len(set(held))

    @invariant()
    def no_process_has_a_task_twice(self) -> None:
        held = [
            (member.process_id, task.task_id)
            for member in self.group.members.values()
            for task in member.assigned | member.revoking
        ]
        assert len(held) == len(set(held))

    @invariant()
    def what_a_thread_works_on_is_its_own_in_the_group(self) -> None:
        for thread in self.threads:
            member = self.group.members.get(thread.member_id)
            if member is not None and member.epoch == thread.epoch > 0:
                assert thread.target <= member.assigned | member.revoking

    @invariant()
    def epochs_are_in_order(self) -> None:
        assert self.group.target_epoch <= self.group.epoch
        assert all(one.epoch <= self.group.target_epoch for one in self.group.members.values())

    def teardown(self) -> None:
        """When changes stop and those who vanished are dropped, every task is worked on, and evenly."""
        if not hasattr(self, "group"):
            return
        for _ in range(24):
            self.wait(5_000)
            for number, thread in enumerate(self.threads):
                thread.settle()
                self.heartbeat(number, lost=False, creates=True)
        assert self.group.state is StreamsGroupState.STABLE
        active = [[task for task in one.owned if task.role is Role.ACTIVE] for one in self.threads]
        assert sorted(task.task_id for tasks in active for task in tasks) == [
            (name, number) for name in "01" for number in range(3)
        ]
        assert {len(tasks) for tasks in active} == {1, 2}
        standbys = [task for one in self.threads for task in one.owned if task.role is Role.STANDBY]
        assert len(standbys) == 3 * self.options.num_standby_replicas


StreamsGroupModel.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


class TestAStreamsGroupKeepsItsPromisesInAnyOrderOfHeartbeats(
    StreamsGroupModel.TestCase  # type: ignore[misc]
):
    """C4: see the invariants above."""
