"""Markers for another broker: batched, repeated until they are written, never twice in the queue."""

from __future__ import annotations

from braidmq.txn.events import Marker, TopicPartition
from braidmq.txn.marker_queue import (
    PAUSE_MS_MAX,
    PAUSE_MS_MIN,
    TOGETHER_MAX,
    DueMarker,
    MarkerQueue,
    by_marker,
)
from braidmq.wire.errors import ErrorCode

OWNER, OTHER = object(), object()
FIRST = Marker(1, 0, True, 3, 2)
SECOND = Marker(2, 5, False, 3, 2)


def due(index: int, marker: Marker = FIRST, owner: object = OWNER) -> DueMarker:
    return DueMarker(("t", index), marker, owner, lambda _: None)


def indexes(found: list[DueMarker]) -> list[int]:
    return [one.topic_partition[1] for one in found]


def test_everything_that_is_due_goes_into_one_request() -> None:
    """T2: what is added while it is under way goes into the next one; asking twice adds nothing."""
    queue = MarkerQueue()
    for index in (2, 0, 2):
        queue.add(due(index))
    queue.add(due(0, SECOND))
    taken = queue.take()
    assert indexes(taken) == [2, 0, 0]
    queue.add(due(7))
    assert (len(queue), by_marker(one.key for one in taken)) == (
        4,
        {FIRST: {"t": [2, 0]}, SECOND: {"t": [0]}},
    )
    done = queue.settle({one.key: ErrorCode.NONE for one in taken}, 0)
    assert [(one.key, code) for one, code in done] == [(one.key, ErrorCode.NONE) for one in taken]
    assert (queue.pause_left_ms(0), indexes(queue.take())) == (0, [7])


def test_a_request_has_a_limit() -> None:
    """T2: the rest goes with the next one."""
    queue = MarkerQueue()
    for index in range(TOGETHER_MAX + 1):
        queue.add(due(index))
    taken = queue.take()
    assert len(taken) == TOGETHER_MAX
    queue.settle({one.key: ErrorCode.NONE for one in taken}, 0)
    assert indexes(queue.take()) == [TOGETHER_MAX]


def test_what_was_not_written_is_tried_again_after_a_pause_that_grows() -> None:
    """T2: a lost answer, an error that passes, a partition the answer left out; a success ends the pause."""
    queue = MarkerQueue()
    queue.add(due(0))
    pauses = []
    for _ in range(8):
        queue.take()
        assert queue.settle({}, 1_000) == []
        pauses.append(queue.pause_left_ms(1_000))
    assert pauses[:3] == [PAUSE_MS_MIN, 2 * PAUSE_MS_MIN, 4 * PAUSE_MS_MIN]
    assert pauses[-1] == PAUSE_MS_MAX
    assert queue.pause_left_ms(1_000 + PAUSE_MS_MAX) == 0
    queue.resume()
    queue.add(due(1))
    queue.add(due(2))
    queue.take()
    codes = {due(0).key: ErrorCode.NONE, due(1).key: ErrorCode.NOT_LEADER_OR_FOLLOWER}
    assert [indexes([one]) for one, _ in queue.settle(codes, 0)] == [[0]]
    queue.add(due(3))
    assert indexes(queue.take()) == [1, 2, 3]


def test_a_refusal_for_good_is_reported() -> None:
    """T2: whoever was replaced as coordinator, or comes with an old epoch, is not repeated here."""
    queue = MarkerQueue()
    refusals = {0: ErrorCode.TRANSACTION_COORDINATOR_FENCED, 1: ErrorCode.INVALID_PRODUCER_EPOCH}
    for index in refusals:
        queue.add(due(index))
    queue.take()
    reported = queue.settle({due(index).key: code for index, code in refusals.items()}, 0)
    assert [code for _, code in reported] == list(refusals.values())
    assert len(queue) == 0


def test_what_moved_and_what_nobody_wants_leaves_the_queue() -> None:
    """T2: another broker leads the partition; a coordinator has resigned, also with a request under way."""
    queue = MarkerQueue()
    for index in range(3):
        queue.add(due(index))
    queue.add(due(3, SECOND, OTHER))

    def is_here(topic_partition: TopicPartition) -> bool:
        return topic_partition[1] != 1

    assert indexes(queue.moved(is_here)) == [1]
    queue.take()
    queue.add(due(4))
    queue.drop(OWNER)
    assert len(queue) == 1
    assert [one.owner for one, _ in queue.settle({due(3, SECOND).key: ErrorCode.NONE}, 0)] == [OTHER]
