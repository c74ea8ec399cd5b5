"""A topology on the topics there are: tasks, internal topics to create, and what stands in the way."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from braidmq.group.catalog import CatalogTopic
from braidmq.group.streams_records import subtopology, subtopology_message
from braidmq.group.streams_topology import (
    TASKS_MAX,
    ApplicationTopic,
    Configured,
    Shape,
    StatusCode,
    Subtopology,
    Topology,
    check_topology,
    configure,
    digest,
)
from braidmq.wire.errors import ApiError, ErrorCode
from unit.group.applications import CHANGELOG, REPARTITION, word_count
from unit.group.catalogs import topic_id


def topics(**partitions: int) -> dict[str, CatalogTopic]:
    return {name.replace("_", "-"): CatalogTopic(topic_id(name), count) for name, count in partitions.items()}


def made_of(*parts: Subtopology) -> Topology:
    return Topology(0, parts)


def obstacle(topology: Topology, **partitions: int) -> StatusCode | None:
    found = configure(topology, topics(**partitions)).obstacle
    return None if found is None else found.code


def refused(topology: Topology) -> ErrorCode:
    with pytest.raises(ApiError) as error:
        check_topology(topology)
    return error.value.code


def test_internal_topics_get_as_many_partitions_as_their_writers_read() -> None:
    """C4: the repartition topic those of the source, the changelog those of the repartition topic."""
    found = configure(word_count(), topics(lines=6))
    assert found.obstacle is not None
    assert found.obstacle.code is StatusCode.MISSING_INTERNAL_TOPICS
    assert found.missing == (CHANGELOG._replace(partitions=6), REPARTITION._replace(partitions=6))
    assert found.shapes == {"0": Shape(6, False), "1": Shape(6, True)}
    there = topics(lines=6, app_counts_changelog=6, app_words_repartition=6)
    assert configure(word_count(), there).ready


def test_source_topics_that_are_missing_are_named() -> None:
    """C4: nothing can run and nothing is created meanwhile."""
    found = configure(word_count(), {})
    assert found.obstacle is not None
    assert found.obstacle.code is StatusCode.MISSING_SOURCE_TOPICS
    assert "lines" in found.obstacle.detail
    assert found == Configured({}, {}, found.obstacle)


def test_an_internal_topic_of_the_wrong_size_is_said_to_be_wrong() -> None:
    """C4: it is not replaced, because it holds state."""
    wrong = StatusCode.INCORRECTLY_PARTITIONED_TOPICS
    assert obstacle(word_count(), lines=6, app_counts_changelog=5) is wrong
    assert obstacle(word_count(), lines=6, app_words_repartition=12) is wrong


def test_joined_topics_have_equally_many_partitions() -> None:
    """C4: repartition topics follow the external ones; where those differ, nothing can be done."""
    left = ApplicationTopic("left")
    writer = Subtopology("0", ("small",), repartition_sinks=("left",))
    joins = Subtopology("1", ("big",), (left,), copartitioned=(frozenset({"big", "left"}),))
    found = configure(made_of(writer, joins), topics(small=2, big=8))
    assert found.missing == (left._replace(partitions=8),)
    assert found.shapes == {"0": Shape(2, False), "1": Shape(8, False)}
    unequal = Subtopology("0", ("a", "b"), copartitioned=(frozenset({"a", "b"}),))
    assert obstacle(made_of(unequal), a=3, b=4) is StatusCode.INCORRECTLY_PARTITIONED_TOPICS
    assert obstacle(made_of(unequal), a=3, b=3) is None


def test_repartition_topics_that_are_joined_take_the_larger_or_the_fixed_number() -> None:
    """C4: a number the application gives is kept; two different ones cannot be."""

    def joined(first: int, second: int) -> Topology:
        sources = (ApplicationTopic("left", first), ApplicationTopic("right", second))
        return made_of(
            Subtopology("0", ("a",), repartition_sinks=("left",)),
            Subtopology("1", ("b",), repartition_sinks=("right",)),
            Subtopology("2", (), sources, copartitioned=(frozenset({"left", "right"}),)),
        )

    def decided(first: int, second: int) -> set[int]:
        return {topic.partitions for topic in configure(joined(first, second), topics(a=2, b=5)).missing}

    assert decided(0, 0) == {5}
    assert decided(3, 0) == {3}
    assert decided(4, 4) == {4}
    assert obstacle(joined(3, 4), a=2, b=5) is StatusCode.INCORRECTLY_PARTITIONED_TOPICS
    fixed = Subtopology("1", ("big",), (ApplicationTopic("left", 3),), (), (), (frozenset({"big", "left"}),))
    writer = Subtopology("0", ("big",), repartition_sinks=("left",))
    assert obstacle(made_of(writer, fixed), big=8) is StatusCode.INCORRECTLY_PARTITIONED_TOPICS


@pytest.mark.parametrize(
    "topology",
    [
        made_of(Subtopology("0", ("a",)), Subtopology("0", ("b",))),
        made_of(Subtopology("0")),
        made_of(Subtopology("0", ("a",), changelogs=(ApplicationTopic("c", 3),))),
        made_of(Subtopology("0", (), (ApplicationTopic("r", -1),))),
        made_of(Subtopology("0", ("a",)), Subtopology("1", (), (ApplicationTopic("r"),))),
        made_of(
            Subtopology("0", (), (ApplicationTopic("r"),), ("s",)),
            Subtopology("1", (), (ApplicationTopic("s"),), ("r",)),
        ),
    ],
    ids=["twice", "no sources", "fixed changelog", "negative", "never written", "circle"],
)
def test_a_topology_that_no_topics_can_make_right_is_refused(topology: Topology) -> None:
    """C4: at the door, before a group remembers it."""
    assert refused(topology) is ErrorCode.STREAMS_INVALID_TOPOLOGY


def test_an_epoch_below_zero_is_refused() -> None:
    """C4: with a code of its own."""
    assert refused(word_count(epoch=-1)) is ErrorCode.STREAMS_INVALID_TOPOLOGY_EPOCH


def test_the_number_of_tasks_is_bounded() -> None:
    """W4: many subtopologies over one wide topic would be work for minutes."""
    wide = made_of(*(Subtopology(str(number), ("a",)) for number in range(3)))
    assert configure(wide, topics(a=TASKS_MAX // 3)).ready
    with pytest.raises(ApiError) as error:
        configure(wide, topics(a=TASKS_MAX // 2))
    assert error.value.code is ErrorCode.STREAMS_INVALID_TOPOLOGY


def test_the_digest_follows_the_topics_of_the_application_only() -> None:
    """C4: one that appears, grows or is recreated changes it; others do not."""
    before = digest(word_count(), topics(lines=2))
    assert digest(word_count(), topics(lines=2, other=9)) == before
    assert digest(word_count(), topics(lines=3)) != before
    assert digest(word_count(), topics(lines=2, app_counts_changelog=2)) != before
    assert digest(word_count(), {"lines": CatalogTopic(topic_id("again"), 2)}) != before


class Looked(tuple[ApplicationTopic, ...]):
    """Topics of a subtopology; counts how often somebody goes through those of any."""

    __slots__ = ()
    times = 0

    def __iter__(self) -> Iterator[ApplicationTopic]:
        Looked.times += 1
        return super().__iter__()


def test_a_long_chain_of_repartition_topics_is_checked_in_one_pass() -> None:
    """C4: each subtopology reads what the next one writes, the worst order; none is looked at again."""
    length = 300
    chain = [
        Subtopology(
            f"{number:06d}",
            repartition_sources=Looked((ApplicationTopic(f"r{number + 1}"),)),
            repartition_sinks=(f"r{number}",),
        )
        for number in range(length)
    ]
    chain.append(Subtopology("999999", sources=("lines",), repartition_sinks=(f"r{length}",)))
    Looked.times = 0
    check_topology(made_of(*chain))
    assert Looked.times <= 10 * length
    found = configure(made_of(*chain), topics(lines=7))
    assert {topic.partitions for topic in found.missing} == {7}


def test_joined_topics_are_written_down_by_where_they_stand() -> None:
    """C4: what a record or message says of them is read back as it was, whatever else is named."""
    part = Subtopology(
        "0",
        sources=("a", "b", "c"),
        repartition_sources=(ApplicationTopic("r"), ApplicationTopic("s")),
        repartition_sinks=("r", "s"),
        copartitioned=(frozenset({"c", "a", "s"}), frozenset({"b"}), frozenset()),
    )
    message = subtopology_message(part)
    assert [one.source_topics for one in message.copartition_groups] == [[0, 2], [1], []]
    assert [one.repartition_source_topics for one in message.copartition_groups] == [[1], [], []]
    assert subtopology(message) == part
