"""Streams groups: topology, tasks, handing over, statuses, time and storage."""

from __future__ import annotations

from dataclasses import replace

import pytest

from braidmq.group.consumer_commits import check_commit, check_fetch
from braidmq.group.settings import GroupSettings
from braidmq.group.streams_group import (
    Located,
    StreamsBeat,
    StreamsGroup,
    StreamsGroupState,
    StreamsOptions,
)
from braidmq.group.streams_member import Endpoint, StreamsHeartbeat
from braidmq.group.streams_records import StreamsLoader, changed_records, ending
from braidmq.group.streams_tasks import NO_TASKS, Role, Task, Tasks
from braidmq.group.streams_topology import StatusCode, Topology
from braidmq.wire.errors import ApiError, ErrorCode
from unit.group.applications import CHANGELOG, REPARTITION, pipe, table, word_count
from unit.group.catalogs import FakeCatalog

AT_ONCE = StreamsOptions(initial_rebalance_delay_ms=0)


def new_group(options: StreamsOptions = AT_ONCE, **settings: int) -> StreamsGroup:
    return StreamsGroup("g", GroupSettings(**settings), lambda _: options, 0)


def tasks(*numbers: int, role: Role = Role.ACTIVE, part: str = "0") -> Tasks:
    return frozenset(Task(role, part, number) for number in numbers)


def joining(
    member_id: str, topology: Topology | None = None, process_id: str | None = None
) -> StreamsHeartbeat:
    return StreamsHeartbeat(
        member_id,
        0,
        "c",
        "/h",
        rebalance_timeout_ms=60_000,
        topology=pipe() if topology is None else topology,
        owned=NO_TASKS,
        process_id=process_id or f"process of {member_id}",
    )


def beat(member_id: str, epoch: int, owned: Tasks | None = None) -> StreamsHeartbeat:
    return StreamsHeartbeat(member_id, epoch, "c", "/h", owned=owned)


def refused(group: StreamsGroup, request: StreamsHeartbeat, catalog: FakeCatalog | None = None) -> ErrorCode:
    with pytest.raises(ApiError) as error:
        group.heartbeat(request, catalog or FakeCatalog(lines=4), 0)
    return error.value.code


def codes(answer: StreamsBeat) -> list[StatusCode]:
    return [status.code for status in answer.statuses]


def reloaded(*groups: StreamsGroup) -> StreamsGroup:
    """The group as it comes from what several groups wrote, one after the other."""
    loader = StreamsLoader()
    for group in groups:
        for record in changed_records(group, group.take_changes()):
            assert loader.take(*record)
    made = new_group()
    made.restore(loader.groups()["g"], 0)
    return made


def test_the_first_member_gets_every_task() -> None:
    """C4: with its first heartbeat, if the group does not wait for others."""
    group, catalog = new_group(), FakeCatalog(lines=4)
    answer = group.heartbeat(joining("ann"), catalog, 0)
    assert (answer.member_epoch, answer.tasks, answer.statuses) == (1, tasks(0, 1, 2, 3), ())
    assert group.state is StreamsGroupState.STABLE
    again = group.heartbeat(beat("ann", 1), catalog, 0)
    assert (again.member_epoch, again.tasks, again.heartbeat_interval_ms) == (1, None, 5_000)


def test_internal_topics_are_named_until_they_are_there() -> None:
    """C4: nobody has a task before; then all are handed out."""
    group, catalog = new_group(), FakeCatalog(lines=2)
    answer = group.heartbeat(joining("ann", word_count()), catalog, 0)
    assert answer.to_create == (CHANGELOG._replace(partitions=2), REPARTITION._replace(partitions=2))
    assert codes(answer) == [StatusCode.MISSING_INTERNAL_TOPICS]
    assert (answer.tasks, group.state) == (NO_TASKS, StreamsGroupState.NOT_READY)
    for topic in answer.to_create:
        catalog.put(topic.name, topic.partitions)
    answer = group.heartbeat(beat("ann", answer.member_epoch), catalog, 0)
    assert answer.tasks == tasks(0, 1) | tasks(0, 1, part="1")
    assert (answer.statuses, answer.to_create) == ((), ())


def test_tasks_are_taken_back_when_a_source_topic_disappears() -> None:
    """C4: the members are told why, and asked to report as often as usual."""
    group, catalog = new_group(), FakeCatalog(lines=2)
    first = group.heartbeat(joining("ann"), catalog, 0)
    catalog.drop("lines")
    answer = group.heartbeat(beat("ann", first.member_epoch, tasks(0, 1)), catalog, 0)
    assert (answer.tasks, codes(answer)) == (NO_TASKS, [StatusCode.MISSING_SOURCE_TOPICS])
    assert answer.heartbeat_interval_ms == 5_000, "clients give up after two of these"
    assert group.state is StreamsGroupState.NOT_READY
    catalog.put("lines", 3)
    answer = group.heartbeat(beat("ann", answer.member_epoch, NO_TASKS), catalog, 0)
    assert answer.tasks == tasks(0, 1, 2)


def test_a_task_is_given_up_before_another_gets_it() -> None:
    """C4: the one who keeps its tasks never stops."""
    group, catalog = new_group(), FakeCatalog(lines=4)
    ann = group.heartbeat(joining("ann"), catalog, 0)
    bob = group.heartbeat(joining("bob"), catalog, 0)
    assert (bob.tasks, bob.heartbeat_interval_ms) == (NO_TASKS, 500), "asked to come back soon"
    ann = group.heartbeat(beat("ann", ann.member_epoch), catalog, 0)
    assert ann.tasks == tasks(0, 1)
    assert group.heartbeat(beat("bob", bob.member_epoch), catalog, 0).tasks is None, "not yet free"
    assert group.heartbeat(beat("ann", ann.member_epoch, tasks(0, 1, 2)), catalog, 0).member_epoch == 1
    group.heartbeat(beat("ann", ann.member_epoch, tasks(0, 1)), catalog, 0)
    assert group.heartbeat(beat("bob", bob.member_epoch), catalog, 0).tasks == tasks(2, 3)
    assert group.state is StreamsGroupState.STABLE


def test_an_empty_group_waits_for_threads_that_join_one_by_one() -> None:
    """C4: nobody gets tasks that it would have to hand over a moment later; members are told of the wait."""
    group, catalog = new_group(StreamsOptions(initial_rebalance_delay_ms=3_000)), FakeCatalog(lines=4)
    ann = group.heartbeat(joining("ann"), catalog, 0)
    assert (ann.tasks, codes(ann)) == (NO_TASKS, [StatusCode.ASSIGNMENT_DELAYED])
    assert ann.heartbeat_interval_ms == 500
    assert group.state is StreamsGroupState.ASSIGNING
    bob = group.heartbeat(joining("bob"), catalog, 2_900)
    assert bob.heartbeat_interval_ms == 100
    bob = group.heartbeat(beat("bob", bob.member_epoch), catalog, 3_000)
    ann = group.heartbeat(beat("ann", ann.member_epoch), catalog, 3_000)
    assert (bob.statuses, ann.statuses) == ((), ())
    assert {len(answer.tasks or ()) for answer in (ann, bob)} == {2}


def test_a_wait_for_members_ends_with_a_restart() -> None:
    """C4: nothing says after it until when to wait."""
    group, catalog = new_group(StreamsOptions()), FakeCatalog(lines=4)
    ann = group.heartbeat(joining("ann"), catalog, 0)
    after = reloaded(group)
    assert after.heartbeat(beat("ann", ann.member_epoch, NO_TASKS), catalog, 0).tasks == tasks(0, 1, 2, 3)


def test_standbys_are_in_other_processes_and_follow_the_option() -> None:
    """C4: raised for the group, each task has a copy; lowered, the copies go."""
    options = [AT_ONCE._replace(num_standby_replicas=1)]
    group = StreamsGroup("g", GroupSettings(), lambda _: options[0], 0)
    catalog = FakeCatalog(lines=2, **{CHANGELOG.name: 2})
    group.heartbeat(joining("ann", table()), catalog, 0)
    bob = group.heartbeat(joining("bob", table()), catalog, 0)
    ann = group.heartbeat(beat("ann", 1), catalog, 0)
    ann = group.heartbeat(beat("ann", ann.member_epoch, ann.tasks), catalog, 0)
    bob = group.heartbeat(beat("bob", bob.member_epoch), catalog, 0)
    assert group.members["ann"].assigned == tasks(0) | tasks(1, role=Role.STANDBY)
    assert group.members["bob"].assigned == tasks(1) | tasks(0, role=Role.STANDBY)
    options[0] = AT_ONCE
    bob = group.heartbeat(beat("bob", bob.member_epoch, group.members["bob"].assigned), catalog, 0)
    assert bob.tasks == tasks(1)


def test_a_standby_becomes_the_active_one_when_its_owner_goes() -> None:
    """C4: the process gives up the copy, then has the task: its state lies in one folder."""
    options = AT_ONCE._replace(num_standby_replicas=1)
    group, catalog = new_group(options), FakeCatalog(lines=1, **{CHANGELOG.name: 1})
    ann = group.heartbeat(joining("ann", table()), catalog, 0)
    bob = group.heartbeat(joining("bob", table()), catalog, 0)
    assert (ann.tasks, bob.tasks) == (tasks(0), tasks(0, role=Role.STANDBY))
    group.heartbeat(beat("ann", -1), catalog, 0)
    bob = group.heartbeat(beat("bob", bob.member_epoch, bob.tasks), catalog, 0)
    assert bob.tasks == NO_TASKS
    assert group.heartbeat(beat("bob", bob.member_epoch, NO_TASKS), catalog, 0).tasks == tasks(0)


def test_a_member_that_missed_an_answer_is_told_again() -> None:
    """C4: it says what it has, which is not what it should have."""
    group, catalog = new_group(), FakeCatalog(lines=2)
    ann = group.heartbeat(joining("ann"), catalog, 0)
    catalog.put("lines", 3)
    group.heartbeat(beat("ann", ann.member_epoch, tasks(0, 1)), catalog, 0)
    again = group.heartbeat(beat("ann", ann.member_epoch, tasks(0, 1)), catalog, 0)
    assert again.tasks == tasks(0, 1, 2)


def test_who_has_lost_track_is_fenced_and_joins_again() -> None:
    """C4: with what it had, because nobody else has it."""
    group, catalog = new_group(), FakeCatalog(lines=2)
    group.heartbeat(joining("ann"), catalog, 0)
    assert refused(group, beat("ann", 9), catalog) is ErrorCode.FENCED_MEMBER_EPOCH
    catalog.put("lines", 3)
    group.heartbeat(beat("ann", 1, tasks(0, 1)), catalog, 0)
    assert refused(group, beat("ann", 1), catalog) is ErrorCode.FENCED_MEMBER_EPOCH
    assert refused(group, beat("bob", 1), catalog) is ErrorCode.UNKNOWN_MEMBER_ID
    assert group.heartbeat(joining("ann"), catalog, 0).tasks == tasks(0, 1, 2)


def test_silence_and_slowness_end_a_membership() -> None:
    """C4: a session, and the rebalance timeout of a member that does not give up what it has to."""
    group, catalog = new_group(), FakeCatalog(lines=2)
    ann = group.heartbeat(joining("ann"), catalog, 0)
    group.heartbeat(joining("bob"), catalog, 0)
    for second in range(0, 60, 10):
        group.heartbeat(beat("ann", ann.member_epoch, tasks(0, 1)), catalog, second * 1000)
        group.heartbeat(beat("bob", group.members["bob"].epoch), catalog, second * 1000)
        assert group.tick(second * 1000) == []
    assert group.tick(60_000) == ["ann"]
    assert group.heartbeat(beat("bob", group.members["bob"].epoch), catalog, 60_000).tasks == tasks(0, 1)
    assert group.tick(105_000) == ["bob"]
    assert (group.state, group.next_deadline()) == (StreamsGroupState.EMPTY, None)


def test_the_topology_of_a_group_changes_when_nobody_is_left_in_it() -> None:
    """C4: with members another one is refused, and an older one is stale."""
    group, catalog = new_group(), FakeCatalog(lines=2, others=3)
    group.heartbeat(joining("ann", pipe()._replace(epoch=2)), catalog, 0)
    assert refused(group, joining("bob", pipe("others")._replace(epoch=2)), catalog) is (
        ErrorCode.INVALID_REQUEST
    )
    assert "bob" not in group.members
    stale = group.heartbeat(joining("bob", pipe()._replace(epoch=1)), catalog, 0)
    assert codes(stale) == [StatusCode.STALE_TOPOLOGY]
    for name in ("ann", "bob"):
        group.heartbeat(beat(name, -1), catalog, 0)
    assert group.heartbeat(joining("cat", pipe("others")), catalog, 0).tasks == tasks(0, 1, 2)
    assert reloaded(group).topology == pipe("others")


def test_an_application_is_shut_down_by_one_of_its_members() -> None:
    """C4: the others are told, also if it has left; a group that was empty begins anew."""
    group, catalog = new_group(), FakeCatalog(lines=2)
    group.heartbeat(joining("ann"), catalog, 0)
    bob = group.heartbeat(joining("bob"), catalog, 0)
    group.heartbeat(replace(beat("ann", -1), ends_application=True), catalog, 0)
    answer = group.heartbeat(beat("bob", bob.member_epoch), catalog, 0)
    assert codes(answer) == [StatusCode.SHUTDOWN_APPLICATION]
    group.heartbeat(beat("bob", -1), catalog, 0)
    assert group.heartbeat(joining("cat"), catalog, 0).statuses == ()


def test_members_are_told_where_state_can_be_queried() -> None:
    """C4: when that has changed since they were told, and after a restart."""
    group, catalog = new_group(AT_ONCE._replace(num_standby_replicas=1)), FakeCatalog(lines=2)
    catalog.put(CHANGELOG.name, 2)
    here = Endpoint("here", 80)
    ann = group.heartbeat(replace(joining("ann", table()), endpoint=here), catalog, 0)
    assert ann.located == [Located(here, [("lines", [0, 1])], [])]
    known = replace(beat("ann", ann.member_epoch), endpoint_epoch=ann.endpoint_epoch)
    assert group.heartbeat(known, catalog, 0).located is None
    bob = group.heartbeat(joining("bob", table()), catalog, 0)
    assert bob.located == ann.located, "who has no endpoint asks the others"
    ann = group.heartbeat(known, catalog, 0)
    assert ann.located == [Located(here, [("lines", [0])], [])]
    after = reloaded(group)
    known = replace(known, endpoint_epoch=after.endpoint_epoch)
    assert after.heartbeat(known, catalog, 0).located is not None


def test_threads_of_one_process_are_one_place_to_ask() -> None:
    """C4: with the state of all of them, since clients keep one entry of each endpoint."""
    group, catalog, here = new_group(), FakeCatalog(lines=2), Endpoint("here", 80)
    ann = group.heartbeat(replace(joining("ann", process_id="p"), endpoint=here), catalog, 0)
    group.heartbeat(replace(joining("bob", process_id="p"), endpoint=here), catalog, 0)
    ann = group.heartbeat(beat("ann", ann.member_epoch, tasks(0, 1)), catalog, 0)
    ann = group.heartbeat(beat("ann", ann.member_epoch, ann.tasks), catalog, 0)
    bob = group.heartbeat(beat("bob", group.members["bob"].epoch), catalog, 0)
    assert bob.located == [Located(here, [("lines", [0, 1])], [])]


def test_a_group_is_the_same_after_a_restart() -> None:
    """C4: epochs, members, targets and what is being handed over; nothing moves."""
    options = AT_ONCE._replace(num_standby_replicas=1)
    group, catalog = new_group(options), FakeCatalog(lines=4, **{CHANGELOG.name: 4})
    full = replace(
        joining("ann", table()), rack_id="r", tags=(("zone", "a"),), endpoint=Endpoint("h", 1), client_id="x"
    )
    ann = group.heartbeat(full, catalog, 0)
    group.heartbeat(joining("bob", table()), catalog, 0)
    group.heartbeat(beat("ann", ann.member_epoch, ann.tasks), catalog, 0)
    after = reloaded(group)
    assert after.epoch == group.epoch
    assert after.target_epoch == group.target_epoch
    assert after.targets == group.targets
    assert after.state is group.state is StreamsGroupState.RECONCILING
    for name, member in group.members.items():
        assert after.members[name].profile() == member.profile()
        assert after.members[name].position() == member.position()
    assert all(after.owner("lines", number) is not None for number in range(4))


def test_an_application_without_tasks_is_a_group_too() -> None:
    """C4: one that has only global tables; it is there after a restart."""
    group, catalog = new_group(), FakeCatalog()
    ann = group.heartbeat(joining("ann", Topology(0, ())), catalog, 0)
    assert (ann.tasks, ann.statuses, group.state) == (NO_TASKS, (), StreamsGroupState.STABLE)
    after = reloaded(group)
    assert after.heartbeat(beat("ann", ann.member_epoch, NO_TASKS), catalog, 0).statuses == ()


def test_a_group_that_has_ended_is_not_loaded() -> None:
    """C4: nor its members."""
    group, catalog = new_group(), FakeCatalog(lines=4)
    group.heartbeat(joining("ann"), catalog, 0)
    loader = StreamsLoader()
    for record in (*changed_records(group, group.take_changes()), *ending(group)):
        loader.take(*record)
    assert loader.groups() == {}


def test_what_could_not_be_written_is_written_again() -> None:
    """C4: with all that there is."""
    group, catalog = new_group(), FakeCatalog(lines=4)
    ann = group.heartbeat(joining("ann"), catalog, 0)
    group.take_changes()
    group.rewrite_all()
    after = reloaded(group)
    assert after.members["ann"].epoch == ann.member_epoch
    assert after.topology == pipe()


def test_records_that_cannot_be_read_cost_their_member_only() -> None:
    """C4: it joins again."""
    group, catalog = new_group(), FakeCatalog(lines=4)
    group.heartbeat(joining("ann"), catalog, 0)
    group.heartbeat(joining("bob"), catalog, 0)
    loader = StreamsLoader()
    for key, value in changed_records(group, group.take_changes()):
        loader.take(key, b"\0\0\1" if b"bob" in key and value is not None else value)
    assert [member.member_id for member in loader.groups()["g"].members] == ["ann"]
    assert loader.unreadable == 1


def test_commits_are_taken_from_who_works_on_the_task() -> None:
    """C4 C6: with its epoch, or an older one since which it has had the task; fetches with its epoch."""
    group, catalog = new_group(), FakeCatalog(lines=2)
    ann = group.heartbeat(joining("ann"), catalog, 0).member_epoch
    catalog.put("other", 1)
    check_commit(group, "ann", ann, 9, [("lines", 0)])
    group.heartbeat(joining("bob"), catalog, 0)
    told = group.heartbeat(beat("ann", ann, tasks(0, 1)), catalog, 0)
    group.heartbeat(beat("ann", ann, told.tasks), catalog, 0)
    assert group.members["ann"].epoch > ann
    check_commit(group, "ann", ann, 9, [("lines", 0)])
    for partitions, version, member, code in (
        ([("lines", 1)], 9, "ann", ErrorCode.STALE_MEMBER_EPOCH),
        ([("lines", 0)], 8, "ann", ErrorCode.UNSUPPORTED_VERSION),
        ([("lines", 0)], 9, "cat", ErrorCode.UNKNOWN_MEMBER_ID),
    ):
        with pytest.raises(ApiError) as error:
            check_commit(group, member, ann, version, partitions)
        assert error.value.code is code
    with pytest.raises(ApiError) as error:
        check_fetch(group, "ann", ann)
    assert error.value.code is ErrorCode.STALE_MEMBER_EPOCH
    check_fetch(group, None, -1)


@pytest.mark.parametrize(
    "request_",
    [
        replace(joining("ann"), member_id=""),
        replace(joining("ann"), topology=None),
        replace(joining("ann"), rebalance_timeout_ms=-1),
        replace(joining("ann"), owned=tasks(0)),
        replace(joining("ann"), rack_id=""),
        replace(joining("ann"), member_epoch=3),
        beat("ann", -3),
    ],
    ids=["no id", "no topology", "no timeout", "owns", "empty rack", "topology later", "epoch"],
)
def test_requests_that_make_no_sense_are_refused(request_: StreamsHeartbeat) -> None:
    """C4: whatever the group looks like."""
    assert refused(new_group(), request_) is ErrorCode.INVALID_REQUEST


def test_nobody_owns_tasks_that_there_cannot_be() -> None:
    """C4: but who was given a task may still have it when its topic was recreated with fewer partitions."""
    group, catalog = new_group(), FakeCatalog(lines=3)
    ann = group.heartbeat(joining("ann"), catalog, 0)
    assert refused(group, beat("ann", ann.member_epoch, tasks(7)), catalog) is ErrorCode.INVALID_REQUEST
    catalog.put("lines", 2)
    assert group.heartbeat(beat("ann", ann.member_epoch, ann.tasks), catalog, 0).tasks == tasks(0, 1)


def test_a_group_has_so_many_members_at_most() -> None:
    """C4: group.streams.max.size; who is one already stays."""
    group, catalog = new_group(group_streams_max_size=1), FakeCatalog(lines=3)
    group.heartbeat(joining("ann"), catalog, 0)
    assert refused(group, joining("bob"), catalog) is ErrorCode.GROUP_MAX_SIZE_REACHED
    group.heartbeat(joining("ann"), catalog, 0)
