"""Which member of a streams group gets which task: evenly over members and processes, with little moved.

A member is a thread, and threads of a process share its folder of state. Active tasks come first: a task
stays with its member, then with its process, then goes to a process that has a standby of it, as long as
nobody gets more than an equal share; the rest goes to the least loaded. Standbys of tasks that have state are
then spread over other processes in the same way. `assign` is a pure function; everything is sorted first.

There are no warm-up tasks: a task that moves is restored by its new owner, as with Kafka's own assignor.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from braidmq.group.streams_tasks import NO_TASKS, Role, Task, Tasks
from braidmq.group.streams_topology import Shape

SETTLING_ROUNDS_MAX = 8

TaskId = tuple[str, int]


class Thread(NamedTuple):
    """A member as the assignor sees it."""

    process_id: str
    had: Tasks = NO_TASKS


def assign(
    threads: Mapping[str, Thread], shapes: Mapping[str, Shape], standby_replicas: int
) -> dict[str, Tasks]:
    """The tasks of each member. Every task has an active one if there are members.

    Where processes differ in size, handing out standbys again may place them better than before. That is
    repeated until it changes nothing: then nothing moves the next time either.
    """
    seen = [{member_id: thread.had for member_id, thread in threads.items()}]
    plan = _assign(threads, shapes, standby_replicas)
    while standby_replicas and plan not in seen and len(seen) <= SETTLING_ROUNDS_MAX:
        seen.append(plan)
        settled = {one: Thread(thread.process_id, plan[one]) for one, thread in threads.items()}
        plan = _assign(settled, shapes, standby_replicas)
    return plan


def _assign(
    threads: Mapping[str, Thread], shapes: Mapping[str, Shape], standby_replicas: int
) -> dict[str, Tasks]:
    if not threads:
        return {}
    plan = _Plan(threads)
    task_ids = [(name, number) for name, shape in sorted(shapes.items()) for number in range(shape.tasks)]
    left = plan.keep_active(task_ids)
    left = plan.return_to_process(left, _processes_of(threads, Role.ACTIVE), len(task_ids))
    left = plan.return_to_process(left, _processes_of(threads, Role.STANDBY), len(task_ids))
    plan.hand_out(left, Role.ACTIVE)
    stateful = [task_id for task_id in task_ids if shapes[task_id[0]].stateful]
    plan.add_standbys(stateful, standby_replicas)
    return {member_id: frozenset(tasks) for member_id, tasks in plan.tasks.items()}


def _processes_of(threads: Mapping[str, Thread], role: Role) -> dict[TaskId, list[str]]:
    found: dict[TaskId, list[str]] = {}
    for _, thread in sorted(threads.items()):
        for task in thread.had:
            if task.role is role:
                found.setdefault(task.task_id, []).append(thread.process_id)
    return found


class _Rank(NamedTuple):
    """Who of a process is next, in the order in which tasks are handed out."""

    load: int
    load_of_process: float
    """For each of its members."""
    member_id: str
    process_id: str


class _Plan:
    """An assignment in the making."""

    def __init__(self, threads: Mapping[str, Thread]) -> None:
        self.tasks: dict[str, list[Task]] = {member_id: [] for member_id in sorted(threads)}
        self._threads = threads
        self._members_of: dict[str, list[str]] = {}
        self._load_of: dict[str, int] = {}
        self._task_ids_of: dict[str, set[TaskId]] = {}
        self._by_load: dict[str, list[tuple[int, str]]] = {}
        """The members of each process as a heap, with outdated entries for loads that they had before."""
        for member_id in self.tasks:
            process_id = threads[member_id].process_id
            self._members_of.setdefault(process_id, []).append(member_id)
            self._by_load.setdefault(process_id, []).append((0, member_id))
            self._load_of[process_id] = 0
            self._task_ids_of[process_id] = set()

    def keep_active(self, task_ids: list[TaskId]) -> list[TaskId]:
        """Leaves tasks where they are, up to an equal share; returns those that need somebody."""
        known, kept = set(task_ids), set[TaskId]()
        share, larger_shares = divmod(len(task_ids), len(self.tasks))
        for member_id in self.tasks:
            mine = [
                task.task_id
                for task in self._threads[member_id].had
                if task.role is Role.ACTIVE and task.task_id in known and task.task_id not in kept
            ]
            # By partition: who has to give some up keeps tasks of all subtopologies.
            mine.sort(key=lambda task_id: (task_id[1], task_id[0]))
            most = share
            if larger_shares and len(mine) > share:
                most += 1
                larger_shares -= 1
            for task_id in mine[:most]:
                self._give(member_id, task_id, Role.ACTIVE)
                kept.add(task_id)
        return [task_id for task_id in task_ids if task_id not in kept]

    def return_to_process(
        self, task_ids: list[TaskId], processes: Mapping[TaskId, list[str]], total: int
    ) -> list[TaskId]:
        """Gives tasks to members of processes that have their state, if those have less than a share."""
        share, left = total // len(self.tasks), []
        for task_id in task_ids:
            near = map(self._rank, processes.get(task_id, ()))
            taker = min(near, key=lambda rank: rank[:2], default=None)
            if taker is not None and taker.load < share:
                self._give(taker.member_id, task_id, Role.ACTIVE)
            else:
                left.append(task_id)
        return left

    def hand_out(self, task_ids: Iterable[TaskId], role: Role) -> None:
        """Gives each to the least loaded member of a process that does not have it; none if all have it."""
        queue = [self._rank(process_id) for process_id in self._members_of]
        heapq.heapify(queue)
        for task_id in task_ids:
            passed = []
            while queue:
                rank = heapq.heappop(queue)
                if task_id in self._task_ids_of[rank.process_id]:
                    passed.append(rank)
                else:
                    self._give(rank.member_id, task_id, role)
                    passed.append(self._rank(rank.process_id))
                    break
            for each in passed:
                heapq.heappush(queue, each)

    def add_standbys(self, task_ids: list[TaskId], replicas: int) -> None:
        """Copies of tasks in other processes: with members that had one, then with the least loaded."""
        total = len(task_ids) * replicas + sum(map(len, self.tasks.values()))
        share = -(-total // len(self.tasks))
        had: dict[TaskId, list[str]] = {}
        for role in (Role.ACTIVE, Role.STANDBY):
            for member_id in self.tasks:
                for task in self._threads[member_id].had:
                    if task.role is role:
                        had.setdefault(task.task_id, []).append(member_id)
        for _ in range(min(replicas, len(self._members_of) - 1)):
            left = []
            for task_id in task_ids:
                for member_id in had.get(task_id, ()):
                    if len(self.tasks[member_id]) < share and not self._has(member_id, task_id):
                        self._give(member_id, task_id, Role.STANDBY)
                        break
                else:
                    left.append(task_id)
            self.hand_out(left, Role.STANDBY)

    def _has(self, member_id: str, task_id: TaskId) -> bool:
        return task_id in self._task_ids_of[self._threads[member_id].process_id]

    def _rank(self, process_id: str) -> _Rank:
        """The least loaded member of a process."""
        heap = self._by_load[process_id]
        while heap[0][0] != len(self.tasks[heap[0][1]]):
            heapq.heappop(heap)
        load, member_id = heap[0]
        return _Rank(
            load, self._load_of[process_id] / len(self._members_of[process_id]), member_id, process_id
        )

    def _give(self, member_id: str, task_id: TaskId, role: Role) -> None:
        self.tasks[member_id].append(Task(role, *task_id))
        process_id = self._threads[member_id].process_id
        heapq.heappush(self._by_load[process_id], (len(self.tasks[member_id]), member_id))
        self._load_of[process_id] += 1
        self._task_ids_of[process_id].add(task_id)
