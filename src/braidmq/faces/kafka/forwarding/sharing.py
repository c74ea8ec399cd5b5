"""ShareFetch and ShareAcknowledge over several leaders: the client has one session, each leader another.

A session is a count that rises with every request (KIP-932). The client's counts its requests to this broker,
a leader's those that were sent there; a leader's session begins when the client first reads a partition of
it, and all end together.

What a leader hands out is held for the member, so no answer may be dropped, as a fetch's may. Leaders are
therefore asked without waiting, all at once, again and again with growing pauses until one has something or
the client's wait is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple, cast

from braidmq.faces.kafka.forwarding.parts import Places, changed, join, refusal, without_addresses
from braidmq.faces.kafka.forwarding.routes import By, Route
from braidmq.faces.kafka.share_sessions import EPOCH_MAX, FINAL_EPOCH, INITIAL_EPOCH, PARTITIONS_MAX, Key
from braidmq.net.peer_wire import PeerUnavailable
from braidmq.wire.errors import ErrorCode
from braidmq.wire.messages.share_fetch import (
    AcknowledgePartition,
    AcknowledgeTopic,
    ForgottenTopic,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareFetchRequest,
    ShareFetchResponse,
)
from braidmq.wire.schema import Message

PAUSE_S_MIN = 0.01
PAUSE_S_MAX = 0.1
SESSIONS_MAX = 100
"""Of one connection: a client has one for each of its consumers."""

ROUTE = Route(By.LEADER, "topics", "responses", ("topics", "responses"), ErrorCode.NOT_LEADER_OR_FOLLOWER)

Ask = Callable[[int, Message], "asyncio.Future[object]"]


class _Session:
    """What a member reads through this broker, and how far its sessions with the leaders are."""

    __slots__ = ("epoch", "leaders", "partitions")

    def __init__(self) -> None:
        self.epoch = INITIAL_EPOCH + 1
        self.leaders: dict[int, int] = {}
        """The next epoch of the session with each leader."""
        self.partitions: dict[Key, None] = {}

    def next_epoch(self, node_id: int) -> int:
        """The epoch of the next request to a leader, which counts it."""
        epoch = self.leaders.get(node_id, INITIAL_EPOCH)
        self.leaders[node_id] = after(epoch)
        return epoch


class _Part(NamedTuple):
    """A request to one leader, and what is refused in its place if no answer comes."""

    request: Message
    asked: Message


class Sharing:
    """The share sessions of one client's connection."""

    def __init__(self, places: Places, ask: Ask, wait_ms_max: int) -> None:
        self._places = places
        self._ask = ask
        self._wait_ms_max = wait_ms_max
        self._closed = False
        self._sessions: dict[tuple[str, str], _Session] = {}

    def close(self) -> None:
        """The client is gone: nobody waits for records any more."""
        self._closed = True

    async def fetch(self, request: ShareFetchRequest, version: int) -> ShareFetchResponse:
        """What the leaders hand out, as soon as one of them has something."""
        found = self._session(request)
        if isinstance(found, ErrorCode):
            return ShareFetchResponse(error_code=int(found), error_message="the share session is another one")
        loop = asyncio.get_running_loop()
        wait_ms = min(request.max_wait_ms, self._wait_ms_max)
        deadline, pause_s = loop.time() + wait_ms / 1000, PAUSE_S_MIN
        answer = await self._fetch_once(request, found, version)
        while not _is_news(request, answer) and loop.time() < deadline and not self._closed:
            await _pause(min(pause_s, deadline - loop.time()))
            pause_s = min(2 * pause_s, PAUSE_S_MAX)
            nothing_new = changed(request, topics=[], forgotten_topics_data=[])
            # Partitions that the first round has named are not named again: the client wants them all only
            # in the answer to its first request, which is `answer`.
            later = await self._fetch_once(nothing_new, found, version)
            answer = join(ROUTE, [answer, later]) if later.responses else answer  # type: ignore[assignment]
            if later.error_code != ErrorCode.NONE:
                return later
            if later.responses:
                return _last_of_each(answer)
        return answer

    async def acknowledge(self, request: ShareAcknowledgeRequest, version: int) -> ShareAcknowledgeResponse:
        """Verdicts, each at the leader that handed the record out."""
        found = self._session(request)
        if isinstance(found, ErrorCode):
            return ShareAcknowledgeResponse(
                error_code=int(found), error_message="the share session is another one"
            )
        parts: dict[int, _Part] = {}
        by_leader = self._by_leader(request.topics)
        final = request.share_session_epoch == FINAL_EPOCH
        for node_id in dict.fromkeys([*by_leader, *(found.leaders if final else ())]):
            asked = changed(request, topics=_topics(by_leader.get(node_id, {})))
            epoch = FINAL_EPOCH if final else found.next_epoch(node_id)
            parts[node_id] = _Part(changed(asked, share_session_epoch=epoch), asked)
        answers = await self._asked(found, parts, version)
        return (
            cast("ShareAcknowledgeResponse", join(ROUTE, answers)) if answers else ShareAcknowledgeResponse()
        )

    # -- sessions -------------------------------------------------------------------------------

    def _session(self, request: ShareFetchRequest | ShareAcknowledgeRequest) -> _Session | ErrorCode:
        """The session that a request belongs to, counted on; or why there is none."""
        name, epoch = (request.group_id or "", request.member_id or ""), request.share_session_epoch
        if epoch == INITIAL_EPOCH and isinstance(request, ShareFetchRequest):
            self._sessions.pop(name, None)
            if len(self._sessions) >= SESSIONS_MAX:
                return ErrorCode.SHARE_SESSION_LIMIT_REACHED
            found = self._sessions[name] = _Session()
        else:
            known = self._sessions.get(name)
            if known is None:
                return ErrorCode.SHARE_SESSION_NOT_FOUND
            if epoch == FINAL_EPOCH:
                del self._sessions[name]
            elif epoch != known.epoch:
                return ErrorCode.INVALID_SHARE_SESSION_EPOCH
            else:
                known.epoch = after(known.epoch)
            found = known
        if isinstance(request, ShareFetchRequest):
            return self._updated(found, request)
        return found

    def _updated(self, session: _Session, request: ShareFetchRequest) -> _Session | ErrorCode:
        for topic in request.topics:
            session.partitions.update(
                ((topic.topic_id, one.partition_index), None) for one in topic.partitions
            )
        for forgotten in request.forgotten_topics_data:
            for index in forgotten.partitions:
                session.partitions.pop((forgotten.topic_id, index), None)
        return ErrorCode.INVALID_REQUEST if len(session.partitions) > PARTITIONS_MAX else session

    # -- leaders --------------------------------------------------------------------------------

    async def _fetch_once(
        self, request: ShareFetchRequest, session: _Session, version: int
    ) -> ShareFetchResponse:
        answers = await self._asked(session, self._fetches(request, session), version)
        return cast("ShareFetchResponse", join(ROUTE, answers)) if answers else ShareFetchResponse()

    def _fetches(self, request: ShareFetchRequest, session: _Session) -> dict[int, _Part]:
        """What to ask of each leader: what the client names, and all it reads there if that is news."""
        final = request.share_session_epoch == FINAL_EPOCH
        named = self._by_leader(request.topics)
        read: dict[int, dict[Key, AcknowledgePartition]] = {}
        for topic_id, index in session.partitions:
            leader = self._places.leader(topic_id, index)
            read.setdefault(leader, {})[topic_id, index] = AcknowledgePartition(partition_index=index)
        forgotten: dict[int, dict[bytes, list[int]]] = {}
        for topic in request.forgotten_topics_data:
            for index in topic.partitions:
                leader = self._places.leader(topic.topic_id, index)
                forgotten.setdefault(leader, {}).setdefault(topic.topic_id, []).append(index)
        wanted = [*session.leaders] if final else [*read, *forgotten]
        nodes = dict.fromkeys([*named, *wanted])
        parts = {}
        for node_id in nodes:
            is_new = node_id not in session.leaders
            if is_new and (final or node_id not in read):
                continue
            # A session that begins acknowledges nothing: what was held in an earlier one went back.
            content = read.get(node_id, {}) if is_new else named.get(node_id, {})
            gone = {} if is_new else forgotten.get(node_id, {})
            asked = changed(
                request,
                topics=_topics(content),
                forgotten_topics_data=[
                    ForgottenTopic(topic_id=topic_id, partitions=indexes)
                    for topic_id, indexes in gone.items()
                ],
                max_wait_ms=0,
                max_records=-(-request.max_records // len(nodes)),
                max_bytes=max(request.max_bytes // len(nodes), 1),
            )
            epoch = FINAL_EPOCH if final else session.next_epoch(node_id)
            everything = changed(request, topics=_topics(read.get(node_id, {}) | named.get(node_id, {})))
            parts[node_id] = _Part(changed(asked, share_session_epoch=epoch), everything)
        return parts

    async def _asked(self, session: _Session, parts: dict[int, _Part], version: int) -> list[Message]:
        asked = [(node_id, part, self._ask(node_id, part.request)) for node_id, part in parts.items()]
        answers: list[Message] = []
        for node_id, part, waiting in asked:
            try:
                answer: Any = without_addresses(cast("Message", await waiting))
            except PeerUnavailable:
                # Its session ended with the connection, and what the member held there went back.
                session.leaders.pop(node_id, None)
                answers.append(refusal(ROUTE, part.asked, version, ErrorCode.NOT_LEADER_OR_FOLLOWER))
                continue
            if answer.error_code != ErrorCode.NONE:
                session.leaders.pop(node_id, None)
            answers.append(answer)
        return answers

    def _by_leader(self, topics: list[AcknowledgeTopic]) -> dict[int, dict[Key, AcknowledgePartition]]:
        found: dict[int, dict[Key, AcknowledgePartition]] = {}
        for topic in topics:
            for one in topic.partitions:
                leader = self._places.leader(topic.topic_id, one.partition_index)
                found.setdefault(leader, {})[topic.topic_id, one.partition_index] = one
        return found


def after(epoch: int) -> int:
    """The epoch that follows in a session; it never comes back to that of a new one."""
    return 1 if epoch == EPOCH_MAX else epoch + 1


def _topics(partitions: dict[Key, AcknowledgePartition]) -> list[AcknowledgeTopic]:
    found: dict[bytes, list[AcknowledgePartition]] = {}
    for (topic_id, _), one in partitions.items():
        found.setdefault(topic_id, []).append(one)
    return [AcknowledgeTopic(topic_id=topic_id, partitions=some) for topic_id, some in found.items()]


def _is_news(request: ShareFetchRequest, answer: ShareFetchResponse) -> bool:
    """Whether the client should have it now: records, errors, or what it wanted no records with."""
    if request.share_session_epoch == FINAL_EPOCH or request.is_renew_ack or request.max_records <= 0:
        return True
    return answer.error_code != ErrorCode.NONE or any(
        one.error_code or one.acquired_records for topic in answer.responses for one in topic.partitions
    )


def _last_of_each(answer: ShareFetchResponse) -> ShareFetchResponse:
    """Each partition once, as it was answered last; what became of verdicts was answered first."""
    for topic in answer.responses:
        found: dict[int, Any] = {}
        for one in topic.partitions:
            before = found.get(one.partition_index)
            if before is not None:
                one.acknowledge_error_code = before.acknowledge_error_code
                one.acknowledge_error_message = before.acknowledge_error_message
            found[one.partition_index] = one
        topic.partitions = list(found.values())
    return answer


async def _pause(seconds: float) -> None:
    """A wait that a handler may make: it has no task for `asyncio.timeout` and its kind."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    loop.call_later(max(seconds, 0.0), _end, ended)
    await ended


def _end(ended: asyncio.Future[None]) -> None:
    if not ended.done():
        ended.set_result(None)
