"""Who gets which task: all of them, evenly, with little moved, and copies elsewhere."""

from __future__ import annotations

import sys
from collections import Counter

from hypothesis import example, given
from hypothesis import strategies as st

from braidmq.group.streams_assignor import Thread, assign
from braidmq.group.streams_tasks import Role, Task, Tasks
from braidmq.group.streams_topology import Shape

threads = st.dictionaries(
    st.sampled_from([f"m{number}" for number in range(8)]),
    st.sampled_from(["p0", "p1", "p2", "p3"]),
    min_size=1,
)
shapes = st.dictionaries(
    st.sampled_from("0123"), st.builds(Shape, st.integers(0, 9), st.booleans()), min_size=1
)


def fresh(processes: dict[str, str]) -> dict[str, Thread]:
    return {member_id: Thread(process_id) for member_id, process_id in processes.items()}


def having(processes: dict[str, str], plan: dict[str, Tasks]) -> dict[str, Thread]:
    return {one: Thread(process_id, plan.get(one, frozenset())) for one, process_id in processes.items()}


def active(plan: dict[str, Tasks]) -> dict[str, set[tuple[str, int]]]:
    return {one: {task.task_id for task in tasks if task.role is Role.ACTIVE} for one, tasks in plan.items()}


def moved(before: dict[str, Tasks], after: dict[str, Tasks]) -> int:
    """Active tasks that have another member than before."""
    owner = {place: one for one, places in active(before).items() for place in places}
    return sum(owner.get(place, one) != one for one, places in active(after).items() for place in places)


@given(threads, shapes, st.integers(0, 3))
def test_every_task_is_active_once_and_shares_are_equal(
    processes: dict[str, str], parts: dict[str, Shape], replicas: int
) -> None:
    """C4: nobody has two tasks more than another, and standbys are where the task is not."""
    plan = assign(fresh(processes), parts, replicas)
    places = [(name, number) for name, shape in parts.items() for number in range(shape.tasks)]
    assert sorted(place for mine in active(plan).values() for place in mine) == sorted(places)
    loads = [len(mine) for mine in active(plan).values()]
    assert max(loads) - min(loads) <= 1
    held = [(processes[one], task.task_id) for one, tasks in plan.items() for task in tasks]
    assert len(held) == len(set(held)), "a process has no task twice"
    copies = Counter(task.task_id for tasks in plan.values() for task in tasks if task.role is Role.STANDBY)
    most = min(replicas, len(set(processes.values())) - 1)
    assert copies == {place: most for place in places if parts[place[0]].stateful and most}


@example(
    processes={"m0": "p1", "m1": "p2", "m2": "p0", "m3": "p0", "m4": "p1", "m5": "p1", "m6": "p1"},
    parts={"0": Shape(4, True), "1": Shape(1, False)},
    replicas=2,
)
@given(threads, shapes, st.integers(0, 2))
def test_nothing_moves_while_nothing_changes(
    processes: dict[str, str], parts: dict[str, Shape], replicas: int
) -> None:
    """C4: standbys stay, too."""
    plan = assign(fresh(processes), parts, replicas)
    again = assign(having(processes, plan), parts, replicas)
    assert again == plan


@given(threads, shapes, st.integers(0, 2), st.data())
def test_when_a_member_goes_only_its_tasks_move(
    processes: dict[str, str], parts: dict[str, Shape], replicas: int, drawn: st.DataObject
) -> None:
    """C4: the others keep all that they have."""
    plan = assign(fresh(processes), parts, replicas)
    gone = drawn.draw(st.sampled_from(sorted(processes)))
    left = {one: process_id for one, process_id in processes.items() if one != gone}
    if not left:
        return
    after = assign(having(left, plan), parts, replicas)
    assert moved({one: plan[one] for one in left}, after) == 0


@given(threads, shapes, st.sampled_from(["p0", "p9"]))
def test_a_newcomer_gets_its_share_and_no_more_moves(
    processes: dict[str, str], parts: dict[str, Shape], process_id: str
) -> None:
    """C4: tasks move to the newcomer only."""
    plan = assign(fresh(processes), parts, 0)
    more = {**processes, "new": process_id}
    after = assign(having(more, plan), parts, 0)
    assert moved(plan, after) == len(active(after)["new"])


def test_tasks_are_spread_over_processes_before_threads() -> None:
    """C4: two tasks, two processes of two threads each: one for each process."""
    processes = {"a1": "a", "a2": "a", "b1": "b", "b2": "b"}
    plan = active(assign(fresh(processes), {"0": Shape(2, False)}, 0))
    assert sorted(processes[one] for one, mine in plan.items() if mine) == ["a", "b"]


def test_who_gives_tasks_up_keeps_some_of_every_subtopology() -> None:
    """C4: one of them may be all the work, so it is shared."""
    had = frozenset(Task(Role.ACTIVE, name, number) for name in "01" for number in range(2))
    plan = active(
        assign({"a": Thread("a", had), "b": Thread("b")}, {"0": Shape(2, False), "1": Shape(2, True)}, 0)
    )
    assert plan == {"a": {("0", 0), ("1", 0)}, "b": {("0", 1), ("1", 1)}}


def test_a_task_goes_where_its_state_is() -> None:
    """C4: to another thread of the same process, and to a process with a standby, before anywhere else."""
    had = frozenset({Task(Role.ACTIVE, "0", 0), Task(Role.ACTIVE, "0", 1)})
    copies = frozenset({Task(Role.STANDBY, "0", 1)})
    sharing = {"a1": Thread("a", had), "a2": Thread("a")}
    assert {len(mine) for mine in active(assign(sharing, {"0": Shape(2, True)}, 0)).values()} == {1}
    others = {"b": Thread("b"), "c": Thread("c", copies), "d": Thread("d", frozenset())}
    after = active(assign(others, {"0": Shape(3, True)}, 0))
    assert ("0", 1) in after["c"]


def test_without_members_there_is_no_plan() -> None:
    """C4: nobody is given anything."""
    assert assign({}, {"0": Shape(4, True)}, 1) == {}


def test_many_threads_of_a_process_do_not_make_each_task_dearer() -> None:
    """C4 L14: an assignment is made on the loop, and clients say of which process they are."""
    parts = {"0": Shape(1_000, True)}

    def calls_per_task(members: int) -> float:
        threads = fresh({f"m{number}": f"p{number % 2}" for number in range(members)})
        calls = 0

        def count(_frame: object, _event: str, _argument: object) -> None:
            nonlocal calls
            calls += 1

        sys.setprofile(count)
        try:
            assign(threads, parts, 1)
        finally:
            sys.setprofile(None)
        return calls / 1_000

    assert calls_per_task(200) < 2 * calls_per_task(4)
