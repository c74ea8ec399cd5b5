"""A connected socket to another broker: questions queued and sent, answers received and matched.

What `net/peer_link.py` makes, proves and replaces. Questions of one turn of the loop leave together; answers
are matched by correlation id, and a large one is received where it stays.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Mapping
from typing import Protocol

from braidmq.net.outbox import Outbox, Sent
from braidmq.platform.network import Network
from braidmq.wire import header, schema
from braidmq.wire.api import response_class
from braidmq.wire.errors import ProtocolError
from braidmq.wire.primitives import skip_tagged_fields
from braidmq.wire.schema import Message

CLIENT_ID = "braid-peer"
QUEUED_BYTES_MAX = 16 * 1024 * 1024
GREETING_BYTES_MAX = 64 * 1024
"""Of an answer, before the other side has proved itself."""
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

    answered: bool
    """Whether there is one; else the question ends, with None, when it has left."""

    def frame(self, versions: Versions, correlation_id: int, client_id: str) -> list[bytes | memoryview]:
        """Header and body, without the size; `PeerUnavailable` if the other side does not serve it."""
        ...

    def read(self, answer: memoryview) -> object:
        """What the asker gets of an answer, which begins with its correlation id."""
        ...


class MessageContent:
    """A request from the message tables, in the newest version that both sides speak."""

    __slots__ = ("_newest", "_request", "_version", "answered")

    def __init__(self, request: Message, newest: int | None = None) -> None:
        self.answered = True
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

    def end(self, answer: object) -> None:
        if self.timer is not None:
            self.timer.cancel()
        if not self.answer.done():
            self.answer.set_result(answer)

    def fail(self, reason: str) -> None:
        if self.timer is not None:
            self.timer.cancel()
        if not self.answer.done():
            self.answer.set_exception(PeerUnavailable(reason, sent=self.sent))


class Broken(Exception):
    """The connection cannot be used any more; the message says why."""


class PeerWire:
    """A socket that is connected, its queue, the questions it owes answers for, and half an answer."""

    def __init__(
        self,
        sock: socket.socket,
        network: Network,
        address: tuple[str, int],
        on_broken: Callable[[PeerWire], None],
        scratch: memoryview,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._fd = sock.fileno()
        self.address = address
        self.epoch = 0
        self.versions: Versions = {}
        self.answer_bytes_max = GREETING_BYTES_MAX
        self.queued_bytes_max: int | None = QUEUED_BYTES_MAX
        self.questions: dict[int, Question] = {}
        self._leaving: list[Question] = []
        """Those without an answer that wait to be sent."""
        self.received_at = self._loop.time()
        self._on_broken = on_broken
        self._out = Outbox(sock, network)
        self._last_id = 0
        self._scratch = scratch
        self._head = bytearray()
        self._frame: memoryview | None = None
        self._filled = 0
        self._flush_due = False
        self._writing = False
        self._closed = False
        self._loop.add_reader(self._fd, self._on_readable)

    @property
    def idle(self) -> bool:
        return not self.questions and not self._leaving

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
        queued = self._out.size_bytes
        if queued and self.queued_bytes_max is not None and queued + size > self.queued_bytes_max:
            question.fail(f"{queued} bytes wait to be sent already")
            return
        self._last_id = question.correlation_id = correlation_id
        if question.content.answered:
            self.questions[correlation_id] = question
        else:
            self._leaving.append(question)
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
        questions = [*self.questions.values(), *self._leaving]
        self.questions, self._leaving = {}, []
        for question in questions:
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
        if sent is Sent.ALL and self._leaving:
            leaving, self._leaving = self._leaving, []
            for question in leaving:
                question.end(None)

    def _on_readable(self) -> None:
        try:
            for _ in range(RECEIVES_PER_EVENT):
                if self._closed or not self._receive():
                    return
        except (BlockingIOError, InterruptedError):
            return
        except (Broken, ProtocolError) as error:
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
            raise Broken("the other broker closed the connection")
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
                    raise Broken(f"an answer of {size} bytes; at most {self.answer_bytes_max} are taken")
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
                raise Broken(f"an answer to a question that was not asked ({correlation_id})")
            return  # given up meanwhile
        try:
            answer = question.content.read(frame)
        except (ProtocolError, IndexError) as error:
            question.fail(f"its answer cannot be read: {error}")
            raise Broken(f"an answer that cannot be read: {error}") from None
        question.end(answer)
