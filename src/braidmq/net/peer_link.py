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
from dataclasses import dataclass

from braidmq.net.peer_proof import MECHANISM, CallerProof, PeerDirectory, ProofRefused, Purpose
from braidmq.net.peer_wire import (
    QUEUED_BYTES_MAX,
    Broken,
    Content,
    MessageContent,
    PeerUnavailable,
    PeerWire,
    Question,
)
from braidmq.platform.network import Network
from braidmq.wire import schema
from braidmq.wire.errors import ErrorCode, ProtocolError
from braidmq.wire.messages.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from braidmq.wire.messages.versions import ApiVersionsRequest, ApiVersionsResponse
from braidmq.wire.schema import Message

QUESTIONS_MAX = 1000
ANSWER_BYTES_MAX = 256 * 1024 * 1024
CONNECT_S_MAX = 3.0
PAUSE_S_MIN = 0.05
PAUSE_S_MAX = 1.0
REFUSED_PAUSE_S_MAX = 10.0
"""Between attempts while the proof is refused: people have to change something first."""
SILENCE_S = 2.0
"""A link that was silent for this long, and owes an answer that is late, is taken for dead."""

log = logging.getLogger("braid.peer")


@dataclass(frozen=True, slots=True)
class Target:
    """Whom a link connects to, what for, and for which client if for one."""

    node_id: int
    purpose: Purpose
    client_host: str = ""


class PeerLink:
    """See the module. `ask` is called on the loop, from a task or a handler."""

    def __init__(
        self,
        network: Network,
        directory: PeerDirectory,
        target: Target,
        scratch: memoryview,
        queued_bytes_max: int | None = QUEUED_BYTES_MAX,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._network = network
        self._directory = directory
        self._target = target
        self._scratch = scratch
        """To receive into; shared, as nothing stays in it."""
        self._queued_bytes_max = queued_bytes_max
        self._connecting: asyncio.Task[None] | None = None
        self._wire: PeerWire | None = None
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
        return not self._waiting and (self._wire is None or self._wire.idle)

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

    def _usable_wire(self) -> PeerWire | None:
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
        except (OSError, Broken, PeerUnavailable, ProtocolError, IndexError) as error:
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

    async def _connected(self) -> PeerWire:
        address = self._tried = self._directory.address_of(self._target.node_id)
        if address is None:
            raise Broken("it does not run")
        wire = PeerWire(
            await self._open_socket(address), self._network, address, self._on_broken, self._scratch
        )
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
        raise Broken(failure.strerror or str(failure))

    async def _writable(self, sock: socket.socket) -> None:
        fd, waited = sock.fileno(), asyncio.Event()
        self._loop.add_writer(fd, waited.set)
        try:
            await waited.wait()
        finally:
            self._loop.remove_writer(fd)

    async def _agree(self, wire: PeerWire) -> None:
        """Versions first, then both proofs; then the versions of what is between brokers alone, too."""
        wire.versions = {ApiVersionsRequest.api: (0, 0)}
        await self._learn_versions(wire)
        handshake = await self._greet(wire, SaslHandshakeRequest(mechanism=MECHANISM), SaslHandshakeResponse)
        if handshake.error_code != ErrorCode.NONE:
            raise ProofRefused(f"it does not take {MECHANISM}")
        target = self._target
        proof = CallerProof(self._directory, target.node_id, target.purpose, target.client_host)
        mine = proof.answer(await self._say(wire, proof.hello))
        await self._say(wire, mine)
        wire.epoch, wire.answer_bytes_max = proof.epoch, ANSWER_BYTES_MAX
        wire.queued_bytes_max = self._queued_bytes_max
        await self._learn_versions(wire)

    async def _learn_versions(self, wire: PeerWire) -> None:
        served = await self._greet(wire, ApiVersionsRequest(), ApiVersionsResponse)
        if served.error_code != ErrorCode.NONE:
            raise Broken(f"it does not say which versions it serves (error {served.error_code})")
        wire.versions = {row.api_key: (row.min_version, row.max_version) for row in served.api_keys}

    async def _say(self, wire: PeerWire, message: bytes) -> bytes:
        said = await self._greet(wire, SaslAuthenticateRequest(auth_bytes=message), SaslAuthenticateResponse)
        if said.error_code != ErrorCode.NONE:
            raise ProofRefused(said.error_message or f"error {said.error_code}")
        return said.auth_bytes

    async def _greet(self, wire: PeerWire, request: Message, kind: type[schema.M]) -> schema.M:
        question = Question(MessageContent(request), self._loop)
        wire.send(question)
        answer = await question.answer
        assert isinstance(answer, kind), "the answer is read by the request's own table"
        return answer

    def _on_broken(self, wire: PeerWire) -> None:
        if self._wire is wire:
            self._wire = None
