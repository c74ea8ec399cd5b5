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
from math import inf
from typing import NamedTuple

from braidmq.group.streams_tasks import NO_TASKS, Role, Task, Tasks
from braidmq.group.streams_topology import Shape

Place = tuple[str, int]


class Thread(NamedTuple):
    """A member as the assignor sees it."""

    process_id: str
    had: Tasks = NO_TASKS


def assign(
    threads: Mapping[str, Thread], shapes: Mapping[str, Shape], standby_replicas: int
) -> dict[str, Tasks]:
    """The tasks of each member. Every task has an active one if there are members."""
    if not threads:
        return {}
    plan = _Plan(threads)
    places = [(name, number) for name, shape in sorted(shapes.items()) for number in range(shape.tasks)]
    left = plan.keep_active(places)
    left = plan.return_to_process(left, _processes_of(threads, Role.ACTIVE), len(places))
    left = plan.return_to_process(left, _processes_of(threads, Role.STANDBY), len(places))
    plan.hand_out(left, Role.ACTIVE)
    stateful = [place for place in places if shapes[place[0]].stateful]
    plan.add_standbys(stateful, standby_replicas)
    return {member_id: frozenset(tasks) for member_id, tasks in plan.tasks.items()}


def _processes_of(threads: Mapping[str, Thread], role: Role) -> dict[Place, list[str]]:
    found: dict[Place, list[str]] = {}
    for _, thread in sorted(threads.items()):
        for task in thread.had:
            if task.role is role:
                found.setdefault(task.place, []).append(thread.process_id)
    return found


class _Plan:
    """An assignment in the making."""

    def __init__(self, threads: Mapping[str, Thread]) -> None:
        self.tasks: dict[str, list[Task]] = {member_id: [] for member_id in sorted(threads)}
        self._threads = threads
        self._members_of: dict[str, list[str]] = {}
        self._load_of: dict[str, int] = {}
        self._places_of: dict[str, set[Place]] = {}
        for member_id in self.tasks:
            process_id = threads[member_id].process_id
            self._members_of.setdefault(process_id, []).append(member_id)
            self._load_of[process_id] = 0
            self._places_of[process_id] = set()

    def keep_active(self, places: list[Place]) -> list[Place]:
        """Leaves tasks where they are, up to an equal share; returns those that need somebody."""
        known, kept = set(places), set[Place]()
        share, larger_shares = divmod(len(places), len(self.tasks))
        for member_id in self.tasks:
            mine = [
                task.place
                for task in self._threads[member_id].had
                if task.role is Role.ACTIVE and task.place in known and task.place not in kept
            ]
            # By partition: who has to give some up keeps tasks of all subtopologies.
            mine.sort(key=lambda place: (place[1], place[0]))
            most = share
            if larger_shares and len(mine) > share:
                most += 1
                larger_shares -= 1
            for place in mine[:most]:
                self._give(member_id, place, Role.ACTIVE)
                kept.add(place)
        return [place for place in places if place not in kept]

    def return_to_process(
        self, places: list[Place], processes: Mapping[Place, list[str]], total: int
    ) -> list[Place]:
        """Gives tasks to members of processes that have their state, if those have less than a share."""
        share, left = total // len(self.tasks), []
        for place in places:
            near = [one for process_id in processes.get(place, ()) for one in self._members_of[process_id]]
            taker = min(near, key=self._rank, default=None)
            if taker is not None and len(self.tasks[taker]) < share:
                self._give(taker, place, Role.ACTIVE)
            else:
                left.append(place)
        return left

    def hand_out(self, places: Iterable[Place], role: Role) -> None:
        """Gives each to the least loaded member of a process that does not have it; none if all have it."""
        queue = self._by_load()
        for place in places:
            taker = self._least_loaded(queue, place)
            if taker is not None:
                self._give(taker, place, role)

    def add_standbys(self, places: list[Place], replicas: int) -> None:
        """Copies of tasks in other processes: where they were, where the task was, then anywhere."""
        wanted = min(replicas, len(self._members_of) - 1)
        total = len(places) * wanted + sum(map(len, self.tasks.values()))
        share = -(-total // len(self.tasks))
        missing = dict.fromkeys(places, wanted)
        for role, most in ((Role.STANDBY, total), (Role.ACTIVE, share)):
            for member_id, mine in self.tasks.items():
                for task in sorted(self._threads[member_id].had):
                    place, is_free = task.place, missing.get(task.place, 0) > 0
                    if task.role is role and is_free and len(mine) < most and not self._has(member_id, place):
                        self._give(member_id, place, Role.STANDBY)
                        missing[place] -= 1
        self.hand_out((place for place, count in missing.items() for _ in range(count)), Role.STANDBY)
        while self._level_standbys():
            pass

    def _level_standbys(self) -> bool:
        """Moves copies from members to others that have at least two tasks less; whether there were any.

        Each move makes the sum of the squares of the loads smaller, so there is an end.
        """
        moved, queue = False, self._by_load()
        for giver in sorted(self.tasks, key=lambda member_id: -len(self.tasks[member_id])):
            process_id = self._threads[giver].process_id
            for task in sorted(task for task in self.tasks[giver] if task.role is Role.STANDBY):
                place, most = task.place, len(self.tasks[giver]) - 2
                if queue[0][0] > most:
                    break
                taker = self._least_loaded(queue, place, most, process_id)
                if taker is not None:
                    self._take(giver, task)
                    self._give(taker, place, Role.STANDBY)
                    moved = True
        return moved

    def _by_load(self) -> list[tuple[int, float, str]]:
        queue = [(*self._rank(member_id), member_id) for member_id in self.tasks]
        heapq.heapify(queue)
        return queue

    def _least_loaded(
        self, queue: list[tuple[int, float, str]], place: Place, most: float = inf, within: str | None = None
    ) -> str | None:
        """The least loaded member with at most `most` tasks, of a process that does not have the task.

        Members of the process `within` count as well. The queue may know members by a load of before; what
        is looked at is corrected.
        """
        passed, found = [], None
        while queue and queue[0][0] <= most and found is None:
            rank = heapq.heappop(queue)
            now = (*self._rank(rank[-1]), rank[-1])
            if now > rank:
                heapq.heappush(queue, now)
                continue
            passed.append(now)
            if self._threads[now[-1]].process_id == within or not self._has(now[-1], place):
                found = now[-1]
        for each in passed:
            heapq.heappush(queue, each)
        return found

    def _has(self, member_id: str, place: Place) -> bool:
        return place in self._places_of[self._threads[member_id].process_id]

    def _rank(self, member_id: str) -> tuple[int, float]:
        process_id = self._threads[member_id].process_id
        return len(self.tasks[member_id]), self._load_of[process_id] / len(self._members_of[process_id])

    def _give(self, member_id: str, place: Place, role: Role) -> None:
        self.tasks[member_id].append(Task(role, *place))
        process_id = self._threads[member_id].process_id
        self._load_of[process_id] += 1
        self._places_of[process_id].add(place)

    def _take(self, member_id: str, task: Task) -> None:
        self.tasks[member_id].remove(task)
        process_id = self._threads[member_id].process_id
        self._load_of[process_id] -= 1
        self._places_of[process_id].discard(task.place)
