"""Share sessions (KIP-932): which partitions a member of a share group reads, by requests of rising epochs.

A session begins with epoch 0 and ends with epoch -1, or with the connection: then all that its member holds
goes back at once, so that a crashed consumer costs the others no time.
"""

from __future__ import annotations

from typing import Protocol

from braidmq.wire.errors import ApiError, ErrorCode

FINAL_EPOCH = -1
INITIAL_EPOCH = 0
EPOCH_MAX = 2**31 - 1
PARTITIONS_MAX = 10_000

Key = tuple[bytes, int]
"""Topic id and partition."""


class Waiting(Protocol):
    """A request of the session that waits for records."""

    def expire(self) -> None: ...


class ShareSession:
    """What one member reads, and the connection it does so on."""

    __slots__ = ("connection", "ended", "epoch", "group_id", "member_id", "partitions", "waiting")

    def __init__(self, group_id: str, member_id: str, connection: object) -> None:
        self.group_id = group_id
        self.member_id = member_id
        self.connection = connection
        self.epoch = INITIAL_EPOCH + 1
        self.partitions: dict[Key, None] = {}
        self.waiting: set[Waiting] = set()
        self.ended = False

    def update(self, add: list[Key], forget: list[Key]) -> None:
        """Takes over what a request adds and forgets; what it does both with is forgotten."""
        gone = frozenset(forget)
        for key in gone:
            self.partitions.pop(key, None)
        for key in add:
            if key not in gone and key not in self.partitions:
                if len(self.partitions) >= PARTITIONS_MAX:
                    raise ApiError(ErrorCode.INVALID_REQUEST, "too many partitions in one share session")
                self.partitions[key] = None

    def move_to_end(self, key: Key) -> None:
        """Puts a partition just served last, so that a busy one does not starve the others."""
        if key in self.partitions:
            del self.partitions[key]
            self.partitions[key] = None


class ShareSessions:
    """All sessions, by group and member."""

    def __init__(self, sessions_max: int, partitions_max: int) -> None:
        self._sessions_max = sessions_max
        self._partitions_max = partitions_max
        self._partitions = 0
        self._sessions: dict[tuple[str, str], ShareSession] = {}
        self._of_connection: dict[object, set[ShareSession]] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, group_id: str, member_id: str, connection: object) -> ShareSession:
        """A new session with epoch 0, in place of the one the member had."""
        before = self._sessions.get((group_id, member_id))
        if before is not None:
            self.end(before)
        if len(self._sessions) >= self._sessions_max:
            raise ApiError(
                ErrorCode.SHARE_SESSION_LIMIT_REACHED,
                f"there are already group.share.max.share.sessions={self._sessions_max} share sessions",
            )
        session = self._sessions[group_id, member_id] = ShareSession(group_id, member_id, connection)
        self._of_connection.setdefault(connection, set()).add(session)
        return session

    def go_on(self, group_id: str, member_id: str, epoch: int, connection: object) -> ShareSession:
        """The member's session, if its next epoch, or the final one, is the one given."""
        session = self._sessions.get((group_id, member_id))
        if session is None:
            raise ApiError(
                ErrorCode.SHARE_SESSION_NOT_FOUND, f"{member_id!r} has no share session in {group_id!r}"
            )
        if epoch != FINAL_EPOCH:
            if epoch != session.epoch:
                raise ApiError(
                    ErrorCode.INVALID_SHARE_SESSION_EPOCH,
                    f"the share session is at epoch {session.epoch}, not {epoch}",
                )
            session.epoch = 1 if session.epoch == EPOCH_MAX else session.epoch + 1
        if session.connection != connection:
            self._leave_connection(session)
            session.connection = connection
            self._of_connection.setdefault(connection, set()).add(session)
        return session

    def update(self, session: ShareSession, add: list[Key], forget: list[Key]) -> None:
        """Takes over what a request adds and forgets; ApiError if all sessions would hold too much."""
        before = len(session.partitions)
        room = self._partitions_max - self._partitions
        if len(add) > room and sum(key not in session.partitions for key in add) > room:
            raise ApiError(
                ErrorCode.SHARE_SESSION_LIMIT_REACHED,
                f"share sessions read fetch.sessions.partitions.max={self._partitions_max} partitions",
            )
        try:
            session.update(add, forget)
        finally:
            self._partitions += len(session.partitions) - before

    def end(self, session: ShareSession) -> None:
        if not session.ended:
            self._partitions -= len(session.partitions)
        session.ended = True
        if self._sessions.get((session.group_id, session.member_id)) is session:
            del self._sessions[session.group_id, session.member_id]
        self._leave_connection(session)
        for waiting in list(session.waiting):
            waiting.expire()

    def on_closed(self, connection: object) -> list[ShareSession]:
        """Ends the sessions of a connection that is gone, and gives them."""
        sessions = list(self._of_connection.get(connection, ()))
        for session in sessions:
            self.end(session)
        return sessions

    def _leave_connection(self, session: ShareSession) -> None:
        others = self._of_connection.get(session.connection)
        if others is not None:
            others.discard(session)
            if not others:
                del self._of_connection[session.connection]
