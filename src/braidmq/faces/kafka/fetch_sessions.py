"""Incremental fetch sessions (KIP-227): the broker knows what a consumer reads; requests name changes only.

A session is created by a full fetch with epoch 0. Later requests carry the session's id and an epoch one
higher each time; they list partitions to add, move or forget. An answer then has only the partitions with
something new. When the broker remembers as many sessions, or partitions in them, as it may, the idlest
sessions give way, and their clients have to start new ones. What would never fit is answered without a
session: the client names everything in each request.
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

Key = tuple[str | bytes, int]


class SessionPartition:
    """A partition a client reads: its position, and what the last answer said about it."""

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
        self.partitions: dict[Key, SessionPartition] = {}

    def update(self, request: FetchRequest) -> None:
        """Takes over what the request adds, moves and forgets."""
        for name, topic_id, indexes in request.forgotten:
            for index in indexes:
                self.partitions.pop((name if name is not None else topic_id or b"", index), None)
        for wanted in wanted_of(request):
            key = _key(wanted)
            known = self.partitions.get(key)
            if known is None:
                self.partitions[key] = wanted
            else:
                known.part = wanted.part

    def move_to_end(self, wanted: SessionPartition) -> None:
        """Puts a partition just served last, so that a busy one does not starve the others."""
        key = _key(wanted)
        if key in self.partitions:
            self.partitions[key] = self.partitions.pop(key)


class FetchContext(NamedTuple):
    """The partitions one request is about."""

    session: FetchSession | None
    partitions: list[SessionPartition]
    incremental: bool


class FetchSessions:
    """All sessions, the idlest first."""

    def __init__(self, sessions_max: int, partitions_max: int) -> None:
        self._sessions_max = sessions_max
        self._partitions_max = partitions_max
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()
        self.partitions = 0
        """In all sessions together."""

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, request: FetchRequest) -> FetchContext:
        """What this request reads; ApiError FETCH_SESSION_… when it does not fit its session."""
        if request.session_epoch in (FINAL_EPOCH, INITIAL_EPOCH):
            self._drop(request.session_id)
            wanted = wanted_of(request)
            fits = self._sessions_max > 0 and len(wanted) <= self._partitions_max
            if request.session_epoch == FINAL_EPOCH or not fits:
                return FetchContext(None, wanted, incremental=False)
            return FetchContext(self._create(wanted), wanted, incremental=False)
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
        if request.topics or request.forgotten:
            self._update(session, request)
        return FetchContext(session, list(session.partitions.values()), incremental=True)

    def _update(self, session: FetchSession, request: FetchRequest) -> None:
        before = len(session.partitions)
        session.update(request)
        self.partitions += len(session.partitions) - before
        self._make_room(0, 0)
        if session.id not in self._sessions:
            raise ApiError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, "too many partitions for one fetch session")

    def _make_room(self, sessions: int, partitions: int) -> None:
        """Drops the idlest until so many more fit."""
        while self._sessions and (
            len(self._sessions) + sessions > self._sessions_max
            or self.partitions + partitions > self._partitions_max
        ):
            self._drop(next(iter(self._sessions)))

    def _drop(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self.partitions -= len(session.partitions)

    def _create(self, wanted: list[SessionPartition]) -> FetchSession:
        self._make_room(1, len(wanted))
        session_id = random_below(EPOCH_MAX)
        while session_id == NO_SESSION or session_id in self._sessions:
            session_id = random_below(EPOCH_MAX)
        session = FetchSession(session_id)
        session.partitions = {_key(each): each for each in wanted}
        self.partitions += len(session.partitions)
        self._sessions[session_id] = session
        return session


def wanted_of(request: FetchRequest) -> list[SessionPartition]:
    return [
        SessionPartition(name, topic_id, part) for name, topic_id, parts in request.topics for part in parts
    ]


def _key(wanted: SessionPartition) -> Key:
    return (wanted.name if wanted.name is not None else wanted.topic_id or b"", wanted.part.index)
