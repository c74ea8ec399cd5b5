"""What fetch sessions remember, and that all of them together remember no more than they may."""

from __future__ import annotations

import pytest

from braidmq.faces.kafka.fetch_sessions import FINAL_EPOCH, FetchContext, FetchSessions
from braidmq.wire.errors import ApiError, ErrorCode
from braidmq.wire.fetch import FetchPartition, FetchRequest


def request(
    session_id: int = 0, epoch: int = 0, add: range = range(0), forget: range = range(0)
) -> FetchRequest:
    parts = [FetchPartition(index, -1, 0, -1, -1, 1_000) for index in add]
    return FetchRequest(
        -1, 0, 0, 1_000, 0, session_id, epoch, [("t", None, parts)], [("t", None, list(forget))], ""
    )


def begun(sessions: FetchSessions, count: int) -> int:
    context = sessions.begin(request(add=range(count)))
    assert context.session is not None
    return context.session.id


def known(sessions: FetchSessions, session_id: int, epoch: int) -> bool:
    try:
        sessions.begin(request(session_id, epoch))
    except ApiError:
        return False
    return True


def test_the_idlest_sessions_give_way_when_there_are_too_many_partitions() -> None:
    """C9 W5: however many sessions there may be, their memory is bounded."""
    sessions = FetchSessions(1_000, 100)
    first, second = begun(sessions, 40), begun(sessions, 40)
    assert known(sessions, first, 1)
    third = begun(sessions, 40)
    assert sessions.partitions == 80
    assert [known(sessions, first, 2), known(sessions, second, 1), known(sessions, third, 1)] == [
        True, False, True,
    ]  # fmt: skip
    sessions.begin(request(third, 2, add=range(40, 90)))
    assert not known(sessions, first, 3)
    assert sessions.partitions == 90
    sessions.begin(request(third, 3, forget=range(60)))
    assert sessions.partitions == 30
    sessions.begin(request(third, FINAL_EPOCH))
    assert (sessions.partitions, len(sessions)) == (0, 0)


def test_what_never_fits_is_read_without_a_session_and_nothing_is_left_out() -> None:
    """C9: the client goes on by naming everything in each request."""
    sessions = FetchSessions(10, 100)
    context = sessions.begin(request(add=range(150)))
    assert (context.session, len(context.partitions), context.incremental) == (None, 150, False)
    grown = begun(sessions, 90)
    with pytest.raises(ApiError) as refusal:
        sessions.begin(request(grown, 1, add=range(90, 120)))
    assert refusal.value.code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    again: FetchContext = sessions.begin(request(add=range(120)))
    assert (again.session, len(again.partitions)) == (None, 120)
    assert (sessions.partitions, len(sessions)) == (0, 0)
