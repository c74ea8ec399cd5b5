"""Incremental fetch sessions (KIP-227): the broker knows what a consumer reads; requests name changes only.

A session is created by a full fetch with epoch 0. Later requests carry the session's id and an epoch one
higher each time; they list partitions to add, move or forget. An answer then has only the partitions with
something new. When the broker holds as many sessions as it may, the idlest gives way, and its client is
told to begin anew.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from braidmq.platform.randomness import random_below
from braidmq.wire.errors import ApiError, ErrorCode
from braidmq.wire.fetch import FetchPartition, FetchRequest

FINAL_EPOCH = -1
INITIAL_EPOCH = 0
EPOCH_MAX = 2**31 - 1
NO_SESSION = 0
PARTITIONS_PER_SESSION_MAX = 100_000

Key = tuple[str | bytes, int]


class Wanted:
    """A partition a client reads: where it is, and what the client was last told about it."""

    __slots__ = ("name", "part", "sent_high", "sent_start", "topic_id")

    def __init__(self, name: str | None, topic_id: bytes | None, part: FetchPartition) -> None:
        self.name = name
        self.topic_id = topic_id
        self.part = part
        self.sent_high = -1
        self.sent_start = -1


class FetchSession:
    """What one client reads."""

    __slots__ = ("epoch", "id", "partitions")

    def __init__(self, session_id: int) -> None:
        self.id = session_id
        self.epoch = INITIAL_EPOCH + 1
        self.partitions: dict[Key, Wanted] = {}

    def update(self, request: FetchRequest) -> None:
        """Takes over what the request adds, moves and forgets."""
        for name, topic_id, indexes in request.forgotten:
            for index in indexes:
                self.partitions.pop((name if name is not None else topic_id or b"", index), None)
        for wanted in wanted_of(request):
            key = _key(wanted)
            known = self.partitions.get(key)
            if known is None:
                if len(self.partitions) >= PARTITIONS_PER_SESSION_MAX:
                    raise ApiError(ErrorCode.INVALID_REQUEST, "too many partitions in one fetch session")
                self.partitions[key] = wanted
            else:
                known.part = wanted.part

    def move_to_end(self, wanted: Wanted) -> None:
        """Puts a partition just served last, so that a busy one does not starve the others."""
        key = _key(wanted)
        if key in self.partitions:
            self.partitions[key] = self.partitions.pop(key)


class Reading(NamedTuple):
    """The partitions one request is about."""

    session: FetchSession | None
    wanted: list[Wanted]
    incremental: bool


class FetchSessions:
    """All sessions, the idlest first."""

    def __init__(self, sessions_max: int) -> None:
        self._sessions_max = sessions_max
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, request: FetchRequest) -> Reading:
        """What this request reads; ApiError FETCH_SESSION_… when it does not fit its session."""
        if request.session_epoch in (FINAL_EPOCH, INITIAL_EPOCH):
            self._sessions.pop(request.session_id, None)
            wanted = wanted_of(request)
            if request.session_epoch == FINAL_EPOCH or self._sessions_max == 0:
                return Reading(None, wanted, incremental=False)
            return Reading(self._create(wanted), wanted, incremental=False)
        session = self._sessions.get(request.session_id)
        if session is None:
            raise ApiError(
                ErrorCode.FETCH_SESSION_ID_NOT_FOUND, f"there is no fetch session {request.session_id}"
            )
        if session.epoch != request.session_epoch:
            raise ApiError(
                ErrorCode.INVALID_FETCH_SESSION_EPOCH,
                f"fetch session {session.id} is at epoch {session.epoch}, not {request.session_epoch}",
            )
        session.epoch = 1 if session.epoch == EPOCH_MAX else session.epoch + 1
        self._sessions.move_to_end(session.id)
        session.update(request)
        return Reading(session, list(session.partitions.values()), incremental=True)

    def _create(self, wanted: list[Wanted]) -> FetchSession:
        while len(self._sessions) >= self._sessions_max:
            self._sessions.popitem(last=False)
        session_id = random_below(EPOCH_MAX)
        while session_id == NO_SESSION or session_id in self._sessions:
            session_id = random_below(EPOCH_MAX)
        session = FetchSession(session_id)
        session.partitions = {_key(each): each for each in wanted[:PARTITIONS_PER_SESSION_MAX]}
        self._sessions[session_id] = session
        return session


def wanted_of(request: FetchRequest) -> list[Wanted]:
    return [Wanted(name, topic_id, part) for name, topic_id, parts in request.topics for part in parts]


def _key(wanted: Wanted) -> Key:
    return (wanted.name if wanted.name is not None else wanted.topic_id or b"", wanted.part.index)
