"""Tasks of a Kafka Streams application, and who has them.

A task is had in a role: the active one processes, standbys and warm-ups keep a copy of its state. There is at
most one active one of a task, and a process has a task in one role only, because its state lies in one folder
of that process whichever of its threads works on it. `TaskOwners` knows who has what, and so what is free.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple, Protocol


class Role(IntEnum):
    ACTIVE = 0
    STANDBY = 1
    WARMUP = 2


class Task(NamedTuple):
    """One partition of a subtopology, in a role."""

    role: Role
    subtopology: str
    partition: int

    @property
    def task_id(self) -> tuple[str, int]:
        """What it works on, whatever the role."""
        return self.subtopology, self.partition


Tasks = frozenset[Task]

NO_TASKS: Tasks = frozenset()


def in_role(tasks: Iterable[Task], role: Role) -> dict[str, list[int]]:
    """The partitions had in a role, by subtopology."""
    found: dict[str, list[int]] = {}
    for task in sorted(tasks):
        if task.role is role:
            found.setdefault(task.subtopology, []).append(task.partition)
    return found


class Worker(Protocol):
    """Who has tasks: a thread of a process."""

    @property
    def member_id(self) -> str: ...

    @property
    def process_id(self) -> str: ...


class Active(NamedTuple):
    """Who has a task as the active one, or has yet to give it up, and the epoch with which it got it."""

    worker: Worker
    since: int

    @property
    def member_id(self) -> str:
        return self.worker.member_id


class TaskOwners:
    """Who has which tasks, those included that a member has to give up and has not yet."""

    def __init__(self) -> None:
        self._active: dict[tuple[str, int], Active] = {}
        self._copies: dict[tuple[str, int], list[Worker]] = {}

    def active(self, task_id: tuple[str, int]) -> Active | None:
        return self._active.get(task_id)

    def claim(self, worker: Worker, wanted: Tasks, since: int) -> Tasks:
        """Gives the worker those of the tasks that are free, and says which these are."""
        free = frozenset(task for task in wanted if self._is_free(worker, task))
        for task in free:
            self.enter(worker, task, since)
        return free

    def enter(self, worker: Worker, task: Task, since: int) -> None:
        """Takes note of what the worker has."""
        if task.role is Role.ACTIVE:
            self._active[task.task_id] = Active(worker, since)
        else:
            self._copies.setdefault(task.task_id, []).append(worker)

    def release(self, worker: Worker, tasks: Tasks) -> None:
        """The worker lets go of tasks, so that others can have them."""
        for task in tasks:
            task_id = task.task_id
            if task.role is not Role.ACTIVE:
                left = [one for one in self._copies.get(task_id, ()) if one is not worker]
                if left:
                    self._copies[task_id] = left
                else:
                    self._copies.pop(task_id, None)
            elif (active := self._active.get(task_id)) is not None and active.worker is worker:
                del self._active[task_id]

    def _is_free(self, worker: Worker, task: Task) -> bool:
        active = self._active.get(task.task_id)
        if active is not None and (task.role is Role.ACTIVE or _same_process(active.worker, worker)):
            return False
        return not any(_same_process(one, worker) for one in self._copies.get(task.task_id, ()))


def _same_process(one: Worker, other: Worker) -> bool:
    return one.process_id == other.process_id
