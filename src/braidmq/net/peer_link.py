"""One connection to another broker: questions out, answers in, matched by correlation id.

The sibling of `net/connection.py`, for the side that asks. A link connects when the first question is
asked, agrees on versions, proves itself (`net/peer_proof.py`), and then sends questions as they come, without
waiting for earlier answers. A question asked meanwhile waits. When the connection breaks, every question
under way fails; the link connects again for the next question, after a pause that grows while that does not
succeed. Until the pause is over, questions fail at once with the reason.

A question fails as `PeerUnavailable`. If its bytes may have left, nobody knows whether the other broker has
acted on it; `sent` says so.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from braidmq.net.outbox import Outbox, Sent
from braidmq.net.peer_proof import MECHANISM, CallerProof, PeerDirectory, ProofRefused, Purpose
from braidmq.platform.network import Network
from braidmq.wire import header, schema
from braidmq.wire.api import response_class
from braidmq.wire.errors import ErrorCode, ProtocolError
from braidmq.wire.messages.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from braidmq.wire.messages.versions import ApiVersionsRequest, ApiVersionsResponse
from braidmq.wire.primitives import skip_tagged_fields
from braidmq.wire.schema import Message

CLIENT_ID = "braid-peer"
QUESTIONS_MAX = 1000
QUEUED_BYTES_MAX = 16 * 1024 * 1024
ANSWER_BYTES_MAX = 256 * 1024 * 1024
GREETING_BYTES_MAX = 64 * 1024
"""Of an answer, before the other side has proved itself."""
CONNECT_S_MAX = 3.0
PAUSE_S_MIN = 0.05
PAUSE_S_MAX = 1.0
REFUSED_PAUSE_S_MAX = 10.0
"""Between attempts while the proof is refused: people have to change something first."""
SILENCE_S = 2.0
"""A link that was silent for this long, and owes an answer that is late, is taken for dead."""
RECEIVE_BYTES = 64 * 1024
RECEIVES_PER_EVENT = 4

log = logging.getLogger("braid.peer")

Versions = Mapping[int, tuple[int, int]]


class PeerUnavailable(Exception):
    """A broker did not answer. If `sent`, it may have acted on the question all the same."""

    def __init__(self, reason: str, *, sent: bool) -> None:
        super().__init__(reason)
        self.sent = sent


class Content(Protocol):
    """A question and how to read its answer."""

    def frame(self, versions: Versions, correlation_id: int, client_id: str) -> list[bytes | memoryview]:
        """Header and body, without the size; `PeerUnavailable` if the other side does not serve it."""
        ...

    def read(self, answer: memoryview) -> object:
        """What the asker gets of an answer, which begins with its correlation id."""
        ...


class MessageContent:
    """A request from the message tables, in the newest version that both sides speak."""

    __slots__ = ("_newest", "_request", "_version")

    def __init__(self, request: Message, newest: int | None = None) -> None:
        self._request = request
        self._newest = newest
        self._version = 0

    def frame(self, versions: Versions, correlation_id: int, client_id: str) -> list[bytes | memoryview]:
        request = self._request
        ours_oldest, ours_newest = request.versions
        theirs_oldest, theirs_newest = versions.get(request.api, (0, -1))
        version = min(ours_newest, theirs_newest, ours_newest if self._newest is None else self._newest)
        if version < max(ours_oldest, theirs_oldest):
            raise PeerUnavailable(f"it does not serve a version of {request.api.name} we know", sent=False)
        self._version = version
        head = header.request(request.api, version, correlation_id, client_id)
        return [head, schema.encode(request, version)]

    def read(self, answer: memoryview) -> Message:
        api, version, at = self._request.api, self._version, 4
        if header.has_response_tags(api, version):
            at = skip_tagged_fields(answer, at + 1, answer[at])
        return schema.decode(response_class(api), version, answer[at:])


class Question:
    """One question, from when it is asked until `answer` is there."""

    __slots__ = ("answer", "asked_at", "content", "correlation_id", "timer")

    def __init__(self, content: Content, loop: asyncio.AbstractEventLoop) -> None:
        self.content = content
        self.answer: asyncio.Future[object] = loop.create_future()
        self.asked_at = loop.time()
        self.timer: asyncio.TimerHandle | None = None
        self.correlation_id = 0
        """0 until it is sent."""

    @property
    def sent(self) -> bool:
        return self.correlation_id != 0

    def fail(self, reason: str) -> None:
        if self.timer is not None:
            self.timer.cancel()
        if not self.answer.done():
            self.answer.set_exception(PeerUnavailable(reason, sent=self.sent))


class _Broken(Exception):
    """The connection cannot be used any more; the message says why."""


@dataclass(frozen=True, slots=True)
class Target:
    """Whom a link connects to, what for, and for which client if for one."""

    node_id: int
    purpose: Purpose
    client_host: str = ""


class PeerLink:
    """See the module. `ask` is called on the loop, from a task or a handler."""

    def __init__(self, network: Network, directory: PeerDirectory, target: Target) -> None:
        self._loop = asyncio.get_running_loop()
        self._network = network
        self._directory = directory
        self._target = target
        self._connecting: asyncio.Task[None] | None = None
        self._wire: _Wire | None = None
        self._waiting: dict[Question, None] = {}
        self._pause_s = 0.0
        self._retry_at = 0.0
        self._tried: tuple[str, int] | None = None
        self._why = ""
        """Why it could not connect the last time; empty when it could."""
        self._closed = False

    def ask(self, content: Content, timeout_s: float) -> asyncio.Future[object]:
        """The answer to come, which fails as `PeerUnavailable`."""
        question = Question(content, self._loop)
        wire = self._usable_wire()
        if self._closed:
            question.fail("this broker is stopping")
        elif wire is None and self._connecting is None and self._pausing:
            question.fail(self._why)
        elif len(self._waiting) + (0 if wire is None else len(wire.questions)) >= QUESTIONS_MAX:
            question.fail(f"broker {self._target.node_id} owes {QUESTIONS_MAX} answers already")
        elif wire is not None:
            wire.send(question)
        else:
            self._waiting[question] = None
            if self._connecting is None:
                self._connecting = self._loop.create_task(
                    self._connect(), name=f"peer-{self._target.node_id}"
                )
        if not question.answer.done():
            question.timer = self._loop.call_later(timeout_s, self._on_late, question, timeout_s)
        return question.answer

    @property
    def _pausing(self) -> bool:
        """Whether the last attempt failed a moment ago; a broker that has moved is tried at once."""
        if self._loop.time() >= self._retry_at:
            return False
        return self._tried == self._directory.address_of(self._target.node_id)

    @property
    def idle(self) -> bool:
        """Whether nothing is asked, so that nobody misses it when it is closed."""
        return not self._waiting and (self._wire is None or not self._wire.questions)

    def close(self, reason: str) -> asyncio.Task[None] | None:
        """Ends it for good; a task that is still to end, if there is one."""
        self._closed = True
        if self._wire is not None:
            self._wire.close(reason)
        connecting, self._connecting = self._connecting, None
        if connecting is not None:
            connecting.cancel()
        self._fail_waiting(reason)
        return connecting

    def _usable_wire(self) -> _Wire | None:
        """The connection, unless the broker has moved, or one of both has registered again."""
        wire = self._wire
        if wire is None:
            return None
        address = self._directory.address_of(self._target.node_id)
        if wire.address != address or wire.epoch != self._directory.epoch:
            wire.close(f"broker {self._target.node_id} has moved, or a registration was renewed")
            return None
        return wire

    def _on_late(self, question: Question, timeout_s: float) -> None:
        self._waiting.pop(question, None)
        wire = self._wire
        question.fail(f"broker {self._target.node_id} did not answer within {timeout_s:g} s")
        if wire is not None and wire.questions.get(question.correlation_id) is question:
            del wire.questions[question.correlation_id]
            quiet_since = max(wire.received_at, question.asked_at)
            if self._loop.time() - quiet_since >= min(SILENCE_S, timeout_s) - 1e-6:
                wire.close(f"broker {self._target.node_id} is silent")

    def _fail_waiting(self, reason: str) -> None:
        waiting, self._waiting = self._waiting, {}
        for question in waiting:
            question.fail(reason)

    # -- connecting -----------------------------------------------------------------------------

    async def _connect(self) -> None:
        node_id = self._target.node_id
        try:
            async with asyncio.timeout(CONNECT_S_MAX):
                wire = await self._connected()
        except ProofRefused as error:
            self._pause(f"the proof between this broker and broker {node_id} failed: {error}", error)
        except (OSError, _Broken, PeerUnavailable, ProtocolError, IndexError) as error:
            reason = "no answer" if isinstance(error, TimeoutError) else str(error)
            self._pause(f"broker {node_id} cannot be reached: {reason}", error)
        except Exception as error:
            log.exception("connecting to broker %d failed", node_id)
            self._pause(f"broker {node_id} cannot be reached: {error!r}", error)
        else:
            if self._why:
                log.info("broker %d is reached again", node_id)
            self._why, self._pause_s = "", 0.0
            self._connecting, self._wire = None, wire
            waiting, self._waiting = self._waiting, {}
            for question in waiting:
                if not question.answer.done():
                    wire.send(question)

    def _pause(self, reason: str, error: Exception) -> None:
        """Waits longer each time; says why when the reason is a new one."""
        refused = isinstance(error, ProofRefused)
        if reason != self._why:
            (log.error if refused else log.warning)("%s", reason)
        self._why = reason
        longest = REFUSED_PAUSE_S_MAX if refused else PAUSE_S_MAX
        self._pause_s = min(max(2 * self._pause_s, PAUSE_S_MIN), longest)
        self._retry_at = self._loop.time() + self._pause_s
        self._connecting = None
        self._fail_waiting(reason)

    async def _connected(self) -> _Wire:
        address = self._tried = self._directory.address_of(self._target.node_id)
        if address is None:
            raise _Broken("it does not run")
        wire = _Wire(await self._open_socket(address), self._network, address, self._on_broken)
        try:
            await self._agree(wire)
        except BaseException as error:
            wire.close(str(error) or type(error).__name__)
            raise
        return wire

    async def _open_socket(self, address: tuple[str, int]) -> socket.socket:
        failure: OSError = ConnectionRefusedError("it has no address")
        for host in await self._network.resolve(address[0]):
            sock = self._network.connect(host, address[1])
            try:
                await self._writable(sock)
                code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if code == 0:
                    return sock
            except BaseException:
                sock.close()
                raise
            sock.close()
            failure = OSError(code, f"{host}:{address[1]}: {os.strerror(code)}")
        raise _Broken(failure.strerror or str(failure))

    async def _writable(self, sock: socket.socket) -> None:
        fd, waited = sock.fileno(), asyncio.Event()
        self._loop.add_writer(fd, waited.set)
        try:
            await waited.wait()
        finally:
            self._loop.remove_writer(fd)

    async def _agree(self, wire: _Wire) -> None:
        """Versions first, then both proofs."""
        wire.versions = {ApiVersionsRequest.api: (0, 0)}
        served = await self._greet(wire, ApiVersionsRequest(), ApiVersionsResponse)
        if served.error_code != ErrorCode.NONE:
            raise _Broken(f"it does not say which versions it serves (error {served.error_code})")
        wire.versions = {row.api_key: (row.min_version, row.max_version) for row in served.api_keys}
        handshake = await self._greet(wire, SaslHandshakeRequest(mechanism=MECHANISM), SaslHandshakeResponse)
        if handshake.error_code != ErrorCode.NONE:
            raise ProofRefused(f"it does not take {MECHANISM}")
        target = self._target
        proof = CallerProof(self._directory, target.node_id, target.purpose, target.client_host)
        mine = proof.answer(await self._say(wire, proof.hello))
        await self._say(wire, mine)
        wire.epoch, wire.answer_bytes_max = proof.epoch, ANSWER_BYTES_MAX

    async def _say(self, wire: _Wire, message: bytes) -> bytes:
        said = await self._greet(wire, SaslAuthenticateRequest(auth_bytes=message), SaslAuthenticateResponse)
        if said.error_code != ErrorCode.NONE:
            raise ProofRefused(said.error_message or f"error {said.error_code}")
        return said.auth_bytes

    async def _greet(self, wire: _Wire, request: Message, kind: type[schema.M]) -> schema.M:
        question = Question(MessageContent(request), self._loop)
        wire.send(question)
        answer = await question.answer
        assert isinstance(answer, kind), "the answer is read by the request's own table"
        return answer

    def _on_broken(self, wire: _Wire) -> None:
        if self._wire is wire:
            self._wire = None


class _Wire:
    """A socket that is connected, its queue, the questions it owes answers for, and half an answer."""

    def __init__(
        self,
        sock: socket.socket,
        network: Network,
        address: tuple[str, int],
        on_broken: Callable[[_Wire], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._fd = sock.fileno()
        self.address = address
        self.epoch = 0
        self.versions: Versions = {}
        self.answer_bytes_max = GREETING_BYTES_MAX
        self.questions: dict[int, Question] = {}
        self.received_at = self._loop.time()
        self._on_broken = on_broken
        self._out = Outbox(sock, network)
        self._last_id = 0
        self._scratch = memoryview(bytearray(RECEIVE_BYTES))
        self._head = bytearray()
        self._frame: memoryview | None = None
        self._filled = 0
        self._flush_due = False
        self._writing = False
        self._closed = False
        self._loop.add_reader(self._fd, self._on_readable)

    def send(self, question: Question) -> None:
        """Queues a question; those of one turn of the loop leave together."""
        if self._closed:
            question.fail("the connection was closed")
            return
        correlation_id = self._last_id % 0x7FFF_FFFF + 1
        try:
            parts = question.content.frame(self.versions, correlation_id, CLIENT_ID)
        except PeerUnavailable as error:
            question.fail(str(error))
            return
        size = sum(len(part) for part in parts)
        if self._out.size_bytes and self._out.size_bytes + size > QUEUED_BYTES_MAX:
            question.fail(f"{self._out.size_bytes} bytes wait to be sent already")
            return
        self._last_id = question.correlation_id = correlation_id
        self.questions[correlation_id] = question
        self._out.put([size.to_bytes(4, "big"), *parts])
        if not self._flush_due and not self._writing:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    def close(self, reason: str) -> None:
        """Closes the socket; every question under way fails. Safe to call again."""
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._fd)
        if self._writing:
            self._loop.remove_writer(self._fd)
        self._sock.close()
        self._out.discard()
        questions, self.questions = self.questions, {}
        for question in questions.values():
            question.fail(reason)
        self._on_broken(self)

    def _flush(self) -> None:
        self._flush_due = False
        if self._closed:
            return
        try:
            sent = self._out.send()
        except OSError as error:
            self.close(error.strerror or str(error))
            return
        if sent is Sent.FULL and not self._writing:
            self._writing = True
            self._loop.add_writer(self._fd, self._flush)
        elif sent is Sent.ALL and self._writing:
            self._writing = False
            self._loop.remove_writer(self._fd)

    def _on_readable(self) -> None:
        try:
            for _ in range(RECEIVES_PER_EVENT):
                if self._closed or not self._receive():
                    return
        except (BlockingIOError, InterruptedError):
            return
        except (_Broken, ProtocolError) as error:
            self.close(str(error))
        except OSError as error:
            self.close(error.strerror or "the connection was lost")
        except Exception as error:
            log.exception("an answer could not be taken")
            self.close(repr(error))

    def _receive(self) -> bool:
        """One recv; whether more is likely waiting."""
        frame = self._frame
        # A large answer is received where it stays.
        room = self._scratch if frame is None else frame[self._filled :]
        direct = frame is not None and len(room) >= RECEIVE_BYTES
        if not direct:
            room = self._scratch
        count = self._sock.recv_into(room)
        if count == 0:
            raise _Broken("the other broker closed the connection")
        self.received_at = self._loop.time()
        if direct:
            self._filled += count
            self._finish_frame()
        else:
            self._take(room[:count])
        return count == len(room)

    def _take(self, view: memoryview) -> None:
        at = 0
        while at < len(view) and not self._closed:
            if self._frame is None:
                missing = 4 - len(self._head)
                self._head += view[at : at + missing]
                at += missing
                if len(self._head) < 4:
                    return
                size = int.from_bytes(self._head, "big", signed=True)
                if not 4 <= size <= self.answer_bytes_max:
                    raise _Broken(f"an answer of {size} bytes; at most {self.answer_bytes_max} are taken")
                self._head.clear()
                self._frame, self._filled = memoryview(bytearray(size)), 0
            piece = view[at : at + len(self._frame) - self._filled]
            self._frame[self._filled : self._filled + len(piece)] = piece
            self._filled += len(piece)
            at += len(piece)
            self._finish_frame()

    def _finish_frame(self) -> None:
        frame = self._frame
        if frame is None or self._filled < len(frame):
            return
        self._frame = None
        correlation_id = int.from_bytes(frame[:4], "big")
        question = self.questions.pop(correlation_id, None)
        if question is None:
            if correlation_id > self._last_id:
                raise _Broken(f"an answer to a question that was not asked ({correlation_id})")
            return  # given up meanwhile
        try:
            answer = question.content.read(frame)
        except (ProtocolError, IndexError) as error:
            question.fail(f"its answer cannot be read: {error}")
            raise _Broken(f"an answer that cannot be read: {error}") from None
        if question.timer is not None:
            question.timer.cancel()
        if not question.answer.done():
            question.answer.set_result(answer)
