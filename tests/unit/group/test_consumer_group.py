"""Server-assigned groups: epochs, reconciliation, static members, fencing, time and storage."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest

from braidmq.group.assignors import Partitions
from braidmq.group.consumer_commits import check_commit, check_fetch
from braidmq.group.consumer_group import Beat, ConsumerGroup, ConsumerGroupState
from braidmq.group.consumer_member import Heartbeat
from braidmq.group.consumer_records import ConsumerLoader, changed_records, tombstones
from braidmq.group.settings import GroupSettings
from braidmq.wire.errors import ApiError, ErrorCode
from unit.group.catalogs import FakeCatalog, topic_id

NONE: Partitions = frozenset()
PLACES = [("orders", 0)]


def new_group(**settings: int) -> ConsumerGroup:
    ids = count(1)
    return ConsumerGroup("g", GroupSettings(**settings), lambda: f"id-{next(ids)}", 0)


def orders(*numbers: int) -> Partitions:
    return frozenset((topic_id("orders"), number) for number in numbers)


def joining(member_id: str, instance_id: str | None = None) -> Heartbeat:
    return Heartbeat(member_id, 0, "c", "/h", instance_id, None, 60_000, frozenset({"orders"}), owned=NONE)


def beat(
    member_id: str, epoch: int, owned: Partitions | None = None, instance: str | None = None
) -> Heartbeat:
    return Heartbeat(member_id, epoch, "c", "/h", instance, owned=owned)


def refused(group: ConsumerGroup, request: Heartbeat, catalog: FakeCatalog | None = None) -> ErrorCode:
    with pytest.raises(ApiError) as error:
        group.heartbeat(request, catalog or FakeCatalog(orders=4), 0)
    return error.value.code


def test_the_first_member_gets_everything_with_its_first_heartbeat() -> None:
    """C4: no round of joining and syncing, no initial delay."""
    group = new_group()
    answer = group.heartbeat(joining("ann"), FakeCatalog(orders=4), 0)
    assert answer == Beat("ann", 1, 5_000, orders(0, 1, 2, 3))
    assert group.state is ConsumerGroupState.STABLE
    assert group.heartbeat(beat("ann", 1), FakeCatalog(orders=4), 0).assignment is None


def test_partitions_are_given_up_before_others_get_them() -> None:
    """C4: the one who keeps its partitions never stops; the newcomer gets its own as they come free."""
    group, catalog = new_group(), FakeCatalog(orders=4)
    group.heartbeat(joining("ann"), catalog, 0)
    bob = group.heartbeat(joining("bob"), catalog, 0)
    assert bob == Beat("bob", 2, 500, NONE), "asked to come back soon"
    ann = group.heartbeat(beat("ann", 1), catalog, 0)
    assert (ann.member_epoch, ann.assignment) == (1, orders(0, 1)), "told to give up, still in its epoch"
    assert group.state is ConsumerGroupState.RECONCILING
    assert group.heartbeat(beat("bob", 2), catalog, 0).assignment is None, "not yet free"
    assert group.heartbeat(beat("ann", 1, orders(0, 1, 2)), catalog, 0).member_epoch == 1
    ann = group.heartbeat(beat("ann", 1, orders(0, 1)), catalog, 0)
    assert ann.member_epoch == 2
    bob = group.heartbeat(beat("bob", 2), catalog, 0)
    assert bob == Beat("bob", 2, 5_000, orders(2, 3))
    assert group.state is ConsumerGroupState.STABLE


def test_a_member_that_goes_leaves_its_partitions_to_the_others() -> None:
    """C4: by leaving, and by falling silent for a session."""
    group, catalog = new_group(), FakeCatalog(orders=2)
    for name in ("ann", "bob", "cat"):
        group.heartbeat(joining(name), catalog, 0)
    assert group.heartbeat(beat("cat", -1), catalog, 0) == Beat("cat", -1, 0, None)
    assert group.state is ConsumerGroupState.ASSIGNING
    group.heartbeat(replace(joining("ann"), member_epoch=1), catalog, 30_000)
    assert group.tick(45_000) == ["bob"]
    answer = group.heartbeat(joining("ann"), catalog, 46_000)
    assert answer.assignment == orders(0, 1)
    assert group.next_deadline() is not None
    assert group.tick(91_000) == ["ann"]
    assert group.state is ConsumerGroupState.EMPTY
    assert group.next_deadline() is None


def test_a_member_that_does_not_give_up_in_time_is_removed() -> None:
    """C4: the rebalance timeout, although its heartbeats go on."""
    group, catalog = new_group(), FakeCatalog(orders=2)
    group.heartbeat(joining("ann"), catalog, 0)
    group.heartbeat(joining("bob"), catalog, 0)
    for second in range(0, 60, 10):
        group.heartbeat(beat("ann", 1, orders(0, 1)), catalog, second * 1000)
        group.heartbeat(beat("bob", 2), catalog, second * 1000)
        assert group.tick(second * 1000) == []
    assert group.tick(60_000) == ["ann"]
    assert refused(group, beat("ann", 1)) is ErrorCode.UNKNOWN_MEMBER_ID
    assert group.heartbeat(beat("bob", 2), catalog, 60_000).assignment == orders(0, 1)


def test_new_partitions_and_topics_are_noticed_with_the_next_heartbeat() -> None:
    """C4: a topic that is deleted is taken away again."""
    group, catalog = new_group(), FakeCatalog(orders=1)
    group.heartbeat(replace(joining("ann"), topics=frozenset({"orders", "later"})), catalog, 0)
    catalog.put("orders", 3)
    assert group.heartbeat(beat("ann", 1), catalog, 0) == Beat("ann", 2, 5_000, orders(0, 1, 2))
    catalog.put("other", 3)
    assert group.heartbeat(beat("ann", 2), catalog, 0).member_epoch == 2, "nobody reads that one"
    catalog.put("later", 1)
    answer = group.heartbeat(beat("ann", 2), catalog, 0)
    assert answer.assignment == orders(0, 1, 2) | {(topic_id("later"), 0)}
    catalog.drop("orders")
    answer = group.heartbeat(beat("ann", 3, answer.assignment), catalog, 0)
    assert answer.assignment == {(topic_id("later"), 0)}
    assert group.subscribed() == {"later"}


def test_a_pattern_subscribes_to_what_it_matches_now_and_later() -> None:
    """C4: and a pattern that is none is refused before anything is changed."""
    group, catalog = new_group(), FakeCatalog(orders=1, other=1)
    request = replace(joining("ann"), topics=None, pattern="ord.*")
    assert group.heartbeat(request, catalog, 0).assignment == orders(0)
    catalog.put("ordinary", 1)
    assert group.heartbeat(beat("ann", 1), catalog, 0).assignment == orders(0) | {(topic_id("ordinary"), 0)}
    bad = replace(joining("bob"), topics=None, pattern="(")
    assert refused(group, bad, catalog) is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert list(group.members) == ["ann"]


def test_an_answer_that_was_lost_is_given_again() -> None:
    """C4: a member may come back with its previous epoch and a part of what it has; no other is believed."""
    group, catalog = new_group(), FakeCatalog(orders=2)
    group.heartbeat(joining("ann"), catalog, 0)
    catalog.put("orders", 3)
    group.heartbeat(beat("ann", 1), catalog, 0)
    full = replace(joining("ann"), member_epoch=1, owned=orders(0, 1))
    assert group.heartbeat(full, catalog, 0) == Beat("ann", 2, 5_000, orders(0, 1, 2))
    assert refused(group, beat("ann", 1)) is ErrorCode.FENCED_MEMBER_EPOCH
    assert refused(group, beat("ann", 1, orders(7))) is ErrorCode.FENCED_MEMBER_EPOCH
    assert refused(group, beat("ann", 3)) is ErrorCode.FENCED_MEMBER_EPOCH
    assert refused(group, beat("eve", 1)) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_that_lost_track_may_begin_again() -> None:
    """C4: epoch 0 from a known member means that it owns nothing any more."""
    group, catalog = new_group(), FakeCatalog(orders=2)
    group.heartbeat(joining("ann"), catalog, 0)
    assert group.heartbeat(joining("ann"), catalog, 0) == Beat("ann", 1, 5_000, orders(0, 1))


def test_a_static_member_that_leaves_for_a_while_gets_its_partitions_back() -> None:
    """C4: under a new id, in the same group epoch, and nobody else hears of it."""
    group, catalog = new_group(), FakeCatalog(orders=4)
    group.heartbeat(joining("ann", "one"), catalog, 0)
    group.heartbeat(joining("bob", "two"), catalog, 0)
    group.heartbeat(beat("ann", 1, orders(0, 1, 2, 3), "one"), catalog, 0)
    group.heartbeat(beat("ann", 1, orders(0, 1), "one"), catalog, 0)
    group.heartbeat(beat("bob", 2, NONE, "two"), catalog, 0)
    epoch = group.epoch
    assert refused(group, joining("eve", "two")) is ErrorCode.UNRELEASED_INSTANCE_ID
    assert group.heartbeat(beat("bob", -2, None, "two"), catalog, 0).member_epoch == -2
    assert refused(group, beat("bob", 2, None, "two")) is ErrorCode.FENCED_MEMBER_EPOCH
    answer = group.heartbeat(joining("bob-again", "two"), catalog, 0)
    assert answer.assignment == orders(2, 3)
    assert (group.epoch, answer.member_epoch) == (epoch, epoch)
    assert refused(group, beat("bob", 2, None, "two")) is ErrorCode.FENCED_INSTANCE_ID
    assert refused(group, beat("bob", 2, None, "three")) is ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (replace(joining("a"), rebalance_timeout_ms=-1), ErrorCode.INVALID_REQUEST),
        (replace(joining("a"), owned=None), ErrorCode.INVALID_REQUEST),
        (replace(joining("a"), owned=orders(0)), ErrorCode.INVALID_REQUEST),
        (replace(joining("a"), topics=None), ErrorCode.INVALID_REQUEST),
        (replace(joining("a"), instance_id=""), ErrorCode.INVALID_REQUEST),
        (replace(joining("a"), assignor="best"), ErrorCode.UNSUPPORTED_ASSIGNOR),
        (beat("", 1), ErrorCode.INVALID_REQUEST),
        (beat("a", -3), ErrorCode.INVALID_REQUEST),
        (beat("a", -2), ErrorCode.INVALID_REQUEST),
        (beat("a", -1), ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_requests_that_cannot_be_right_are_refused(request_: Heartbeat, code: ErrorCode) -> None:
    """C4: with the codes of Kafka, and without a trace in the group."""
    group = new_group()
    assert refused(group, request_) is code
    assert not group.members
    assert not group.take_changes()


def test_a_group_has_a_size() -> None:
    """C4: GROUP_MAX_SIZE_REACHED for the one too many."""
    group, catalog = new_group(group_consumer_max_size=1), FakeCatalog(orders=1)
    group.heartbeat(joining("ann"), catalog, 0)
    assert refused(group, joining("bob"), catalog) is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_most_members_choose_the_assignor() -> None:
    """C5: uniform unless they say otherwise."""
    group, catalog = new_group(), FakeCatalog(orders=4)
    group.heartbeat(joining("ann"), catalog, 0)
    assert group.assignor == "uniform"
    group.heartbeat(replace(joining("bob"), assignor="range"), catalog, 0)
    assert group.assignor == "range"


def test_commits_and_fetches_need_the_epoch_of_the_member() -> None:
    """C6: anybody may commit to an empty group; members need their epoch, and OffsetCommit 9."""
    group = new_group()
    check_commit(group, "", -1, 9, PLACES)
    group.heartbeat(joining("ann"), FakeCatalog(orders=1), 0)
    check_commit(group, "ann", 1, 9, PLACES)
    check_fetch(group, "ann", 1)
    check_fetch(group, None, -1)
    for member_id, epoch, version, code in [
        ("", -1, 9, ErrorCode.UNKNOWN_MEMBER_ID),
        ("eve", 1, 9, ErrorCode.UNKNOWN_MEMBER_ID),
        ("ann", 0, 9, ErrorCode.STALE_MEMBER_EPOCH),
        ("ann", 1, 8, ErrorCode.UNSUPPORTED_VERSION),
    ]:
        with pytest.raises(ApiError) as error:
            check_commit(group, member_id, epoch, version, PLACES)
        assert error.value.code is code
    with pytest.raises(ApiError) as error:
        check_fetch(group, "ann", 2)
    assert error.value.code is ErrorCode.STALE_MEMBER_EPOCH


def test_a_member_commits_with_an_older_epoch_what_it_has_had_since_then() -> None:
    """C6: KIP-1251, also when the broker was restarted meanwhile. What came later needs the later epoch."""
    group, catalog = new_group(), FakeCatalog(orders=2)
    for request in (
        joining("ann"),
        joining("bob"),
        beat("ann", 1),
        beat("ann", 1, orders(0)),
        beat("bob", 2),
    ):
        group.heartbeat(request, catalog, 0)
    loader = ConsumerLoader()
    for record in changed_records(group, group.take_changes()):
        loader.take(*record)
    loaded = new_group()
    loaded.restore(loader.groups()["g"], 0)
    loaded.heartbeat(beat("ann", 2), catalog, 0)
    first, second, elsewhere = ("orders", 0), ("orders", 1), ("payments", 0)
    for one in (group, loaded):
        check_commit(one, "ann", 1, 9, [first])
        check_commit(one, "bob", 2, 9, [second])
        for member_id, epoch, partitions in [
            ("ann", 1, [second]),
            ("ann", 1, [first, second]),
            ("ann", 1, [elsewhere]),
            ("ann", 0, [first]),
            ("ann", 4, [first]),
            ("ann", 1, []),
            ("bob", 1, [second]),
        ]:
            with pytest.raises(ApiError) as error:
                check_commit(one, member_id, epoch, 9, partitions)
            assert error.value.code is ErrorCode.STALE_MEMBER_EPOCH


def test_a_group_comes_back_from_its_records_as_it_was() -> None:
    """C6: in the middle of a reconciliation, with a member gone before."""
    group, catalog, loader = new_group(), FakeCatalog(orders=4), ConsumerLoader()

    def store() -> None:
        for record in changed_records(group, group.take_changes()):
            assert loader.take(*record)

    for request in (
        joining("ann", "one"),
        joining("bob"),
        joining("cat"),
        beat("ann", 1, orders(0, 1, 2, 3), "one"),
        beat("cat", -1),
        beat("bob", 2),
    ):
        group.heartbeat(request, catalog, 0)
        store()
    loaded = new_group()
    loaded.restore(loader.groups()["g"], 0)
    assert loaded.expirable(0) is None
    assert (loaded.epoch, loaded.target_epoch, loaded.targets) == (
        group.epoch,
        group.target_epoch,
        group.targets,
    )
    assert loaded.members.keys() == group.members.keys()
    for name, member in group.members.items():
        assert loaded.members[name].position() == member.position()
        assert loaded.members[name].profile() == member.profile()
    assert loaded.static == {"one": "ann"}
    assert loaded.tick(44_999) == []
    assert sorted(loaded.tick(45_000)) == ["ann", "bob"]
    for record in tombstones("g"):
        loader.take(*record)
    assert loader.groups() == {}
    assert not loader.take(b"\x00\x02\x00\x01g", None), "records of other kinds are not its own"
