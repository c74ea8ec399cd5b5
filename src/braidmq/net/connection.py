"""One client's connection: requests in, answers out in the order of the requests.

The reactor calls `on_readable`; bytes go into a pooled buffer, and each whole frame in it is handed to the
session (the protocol's side of the connection) as a memoryview, which is valid only during that call. The
session gives the answer at once, as a list of parts, or a `PendingReply` that it completes later; a later
answer waits for the earlier ones. A part is bytes, or a file slice that leaves through `sendfile`.

Back-pressure is one rule: while more is queued towards the client than the limits allow, or too many
requests wait for their answers, or half-received requests of all connections fill their budget, this
connection is not read. TCP carries that to the client.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from braidmq.net.buffers import FIRST_BYTES, BufferPool, size_class
from braidmq.net.outbox import Outbox, Parts, Sent, bytes_in_memory, release
from braidmq.platform.network import Network
from braidmq.wire.errors import ProtocolError

RECEIVES_PER_EVENT = 4
FRAMES_PER_TURN = 128
QUEUED_PARTS_MAX = 1024
LINGER_S = 1.0

log = logging.getLogger("braid.net")


class Ending(Enum):
    """Why a connection is closed: in the course of things, or because its bytes made no sense."""

    ORDINARY = "ordinary"
    UNREADABLE = "unreadable"


class Session(Protocol):
    """The protocol's side of a connection."""

    def frame_bytes(self, view: memoryview, at: int, filled: int) -> int:
        """Length of the frame that starts at `at`, or 0 if more bytes are needed to tell."""

    def on_frame(self, frame: memoryview) -> Parts | PendingReply | None:
        """Handles one frame; None means that there is no answer."""

    def on_closed(self) -> None:
        """The connection is gone."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one connection, and all together, may hold."""

    requests_max: int
    send_bytes_max: int


ReadAhead = Callable[[Callable[[], None], Callable[[BaseException | None], None]], None]
"""Runs the first in a thread and then the second, with the error if there was one, on the loop."""


class PendingReply:
    """An answer that comes later. Completing it twice is a mistake of the caller."""

    __slots__ = ("_connection", "abandoned", "done", "held_bytes", "on_abandoned", "parts")

    def __init__(self) -> None:
        self._connection: Connection | None = None
        self.on_abandoned: Callable[[], None] | None = None
        self.parts: Parts | None = None
        self.done = False
        self.abandoned = False
        self.held_bytes = 0
        """What its connection counts for it while it is complete and waits for an earlier one."""

    def complete(self, parts: Parts | None) -> None:
        """Gives the answer (None: there is none after all)."""
        assert not self.done, "an answer was given twice"
        self.parts = parts
        self.done = True
        if self.abandoned:
            release(parts)
        elif self._connection is not None:
            self._connection.on_answered(self)

    def attach(self, connection: Connection) -> None:
        self._connection = connection

    def abandon(self) -> None:
        """The client is gone: whatever the answer will be, it goes nowhere."""
        self.abandoned = True
        release(self.parts)
        if self.on_abandoned is not None and not self.done:
            self.on_abandoned()


class Connection:
    """A socket, its half-received request, its waiting answers and its queue of bytes to send."""

    __slots__ = (
        "_answers", "_buffer", "_closed", "_cold", "_draining", "_filled", "_flush_due", "_half_closed",
        "_held_bytes", "_hint", "_limits", "_loop", "_on_close", "_out", "_pool", "_read_ahead", "_reading",
        "_session", "_sock", "_start", "_writing", "fd", "frame_since", "last_active", "peer",
    )  # fmt: skip

    def __init__(
        self,
        sock: socket.socket,
        peer: str,
        network: Network,
        loop: asyncio.AbstractEventLoop,
        pool: BufferPool,
        limits: Limits,
        on_close: Callable[[Connection, str, Ending], None],
        read_ahead: ReadAhead,
    ) -> None:
        self._sock = sock
        self.fd = sock.fileno()
        self.peer = peer
        self._loop = loop
        self._pool = pool
        self._limits = limits
        self._on_close = on_close
        self._session: Session | None = None
        self._buffer: memoryview | None = None
        self._start = self._filled = 0
        self._hint = FIRST_BYTES
        self._answers: list[PendingReply] | None = None
        """Answers still to come, in order; an idle connection does not even hold an empty list."""
        self._held_bytes = 0
        """Of answers that are complete and wait for an earlier one."""
        self._out = Outbox(sock, network)
        self._read_ahead = read_ahead
        self._cold = False
        self._reading = False
        self._writing = False
        self._closed = self._draining = False
        self._flush_due = False
        self._half_closed = False
        self.last_active = loop.time()
        self.frame_since: float | None = None

    def start(self, session: Session) -> None:
        self._session = session
        self._resume()

    @property
    def sent_bytes(self) -> int:
        return self._out.sent_bytes

    def remote(self) -> tuple[str, int]:
        """Host and port of the client; OSError if it is gone."""
        host, port = self._sock.getpeername()[:2]
        return host, port

    # -- receiving ------------------------------------------------------------------------------

    def on_readable(self) -> None:
        """Receives what is there, handles whole frames, keeps the rest."""
        try:
            for _ in range(RECEIVES_PER_EVENT):
                if not self._receive_once() or not self._reading:
                    break
            if self._out and not self._writing:
                self.flush()
        except ProtocolError as error:
            self.close(str(error), Ending.UNREADABLE)
        except (ConnectionError, TimeoutError) as error:
            self.close(error.strerror or "connection lost")
        except Exception:
            self._fail()

    def _receive_once(self) -> bool:
        """One recv; true if the buffer came back full, so that more is likely waiting."""
        buffer = self._buffer
        if buffer is None and not self._pool.may_take(self._hint, self):
            return self._receive_scarcely()
        if buffer is None and self._hint <= FIRST_BYTES:
            # Requests that are small and whole, nearly all, need no buffer of their own.
            buffer = self._pool.scratch
        elif buffer is None or self._filled == len(buffer):
            buffer = self._find_room(buffer)
            if buffer is None:
                return False
        try:
            count = self._sock.recv_into(buffer[self._filled :] if self._filled else buffer)
        except (BlockingIOError, InterruptedError):
            if self._start == self._filled:
                self._drop_buffer()
                self._pool.settle(self)
            return False
        if count == 0:
            self._end_of_requests()
            return False
        self.last_active = self._loop.time()
        self._filled += count
        full = self._filled == len(buffer)
        self._handle_frames(buffer)
        return full and not self._closed

    def _receive_scarcely(self) -> bool:
        """Handles one whole small request without holding any memory; all else waits for room.

        Otherwise large requests that never end would shut everybody out, not only each other.
        """
        scratch = self._pool.scratch
        assert self._session is not None
        try:
            there = self._sock.recv_into(scratch, 0, socket.MSG_PEEK)
            if there == 0:
                self._end_of_requests()
                return False
            size = self._session.frame_bytes(scratch, 0, there)
            if size == 0 or size > there:
                self._wait_for_room()
                return False
            self._sock.recv_into(scratch, size)
        except (BlockingIOError, InterruptedError):
            return False
        self.last_active = self._loop.time()
        answer = self._session.on_frame(scratch[:size])
        if answer is not None and not self._closed:
            self._accept_answer(answer)
            if self._over_limits():
                self._pause()
        return False

    def _wait_for_room(self) -> None:
        self._pause()
        self._pool.when_free(self._maybe_resume)

    def _end_of_requests(self) -> None:
        """The client sends no more; for a moment it may still be reading the answers it is owed.

        A client that has gone altogether looks the same, so the moment is short: nothing is kept for it.
        """
        if self.settled:
            self.close("closed by the client")
            return
        self.stop_reading()
        self._half_closed = True
        self._drop_buffer()
        self._pool.settle(self)
        self._loop.call_later(LINGER_S, self.close, "closed by the client")

    def _handle_frames(self, buffer: memoryview) -> None:
        session = self._session
        assert session is not None
        start, filled = self._start, self._filled
        at = start
        for _ in range(FRAMES_PER_TURN):
            size = session.frame_bytes(buffer, at, filled)
            if size == 0 or filled - at < size:
                break
            answer = session.on_frame(buffer[at : at + size])
            if self._closed:
                return
            at += size
            if size > self._hint:
                self._hint = size
            if answer is not None:
                self._accept_answer(answer)
                if self._over_limits():
                    self._pause()
                    break
        else:
            # Others have waited long enough; the rest of this buffer is handled in the next turn.
            self._pause()
            self._loop.call_soon(self._maybe_resume)
        self._start = at
        if at > start and self._pool.favoured is self:
            self._pool.settle(self)
        if at == filled:
            if self._buffer is None:
                self._start = self._filled = 0
            else:
                self._drop_buffer()
            self.frame_since = None
            return
        if self._buffer is None:
            self._buffer = self._pool.take(2 * (filled - at))
            self._buffer[: filled - at] = buffer[at:filled]
            self._start, self._filled = 0, filled - at
        if self.frame_since is None:
            self.frame_since = self.last_active

    def _accept_answer(self, answer: Parts | PendingReply) -> None:
        if isinstance(answer, PendingReply):
            answer.attach(self)
            self._wait_for(answer)
            if answer.done:
                # What it would have waited for was there before anybody waited.
                self.on_answered(answer)
        elif self._answers:
            waiting = PendingReply()
            waiting.complete(answer)
            self._wait_for(waiting)
            self._hold(waiting)
        else:
            self._out.put(answer)

    def _wait_for(self, answer: PendingReply) -> None:
        if self._answers is None:
            self._answers = []
        self._answers.append(answer)

    def _hold(self, answer: PendingReply) -> None:
        answer.held_bytes = bytes_in_memory(answer.parts)
        self._held_bytes += answer.held_bytes

    def hold(self, size_bytes: int) -> None:
        """Counts what is kept of its requests until they are answered; negative when it is let go."""
        self._held_bytes += size_bytes

    def _find_room(self, buffer: memoryview | None) -> memoryview | None:
        """A buffer with free space at its end; None, and a pause, when all connections hold too much."""
        held = self._filled - self._start
        if buffer is not None and self._start > 0 and held <= len(buffer) // 2:
            buffer[:held] = bytes(buffer[self._start : self._filled])
        else:
            wanted = self._hint if buffer is None else max(held * 2, len(buffer))
            if not self._pool.may_take(wanted, self):
                self._wait_for_room()
                return None
            self._move_to(self._pool.take(wanted))
        self._start, self._filled = 0, held
        return self._buffer

    def _move_to(self, other: memoryview) -> None:
        if self._buffer is not None:
            held = self._filled - self._start
            other[:held] = self._buffer[self._start : self._filled]
            self._pool.give(self._buffer)
        self._buffer = other

    def shrink(self) -> None:
        """Moves a request that arrives slowly into the smallest buffer that holds it."""
        held = self._filled - self._start
        if self._buffer is not None and size_class(held + 1) < len(self._buffer):
            self._move_to(self._pool.take(held + 1))
            self._start, self._filled = 0, held

    def _drop_buffer(self) -> None:
        if self._buffer is not None:
            self._pool.give(self._buffer)
            self._buffer = None
        self._start = self._filled = 0

    # -- flow -----------------------------------------------------------------------------------

    def _over_limits(self) -> bool:
        return (
            self._out.size_bytes + self._held_bytes > self._limits.send_bytes_max
            or (self._answers is not None and len(self._answers) >= self._limits.requests_max)
            or len(self._out) >= QUEUED_PARTS_MAX
        )

    def _pause(self) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self.fd)

    def _resume(self) -> None:
        if not self._reading and not self._closed:
            self._reading = True
            self._loop.add_reader(self.fd, self.on_readable)

    def stop_reading(self) -> None:
        """No more requests are taken; answers under way still go out."""
        self._draining = True
        self._pause()

    @property
    def reading(self) -> bool:
        return self._reading

    @property
    def settled(self) -> bool:
        """Nothing is owed to the client."""
        return self._closed or not (self._answers or len(self._out))

    # -- answering ------------------------------------------------------------------------------

    def on_answered(self, answer: PendingReply) -> None:
        """Queues `answer` and what waits for it alone, unless it has to wait for an earlier one itself."""
        answers = self._answers
        if answers and answers[0] is not answer:
            self._hold(answer)
            return
        while answers and answers[0].done:
            first = answers.pop(0)
            self._held_bytes -= first.held_bytes
            if first.parts is not None:
                self._out.put(first.parts)
        # One send for all answers that become ready in this turn of the loop.
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush_now)

    def _flush_now(self) -> None:
        self._flush_due = False
        if not self._writing:
            self.flush()

    def flush(self) -> None:
        """Sends until the queue is empty or the socket is full."""
        if self._closed or self._cold:
            return
        try:
            sent = self._out.send()
        except OSError as error:
            self.close(error.strerror or str(error))
            return
        self.last_active = self._loop.time()
        if sent is Sent.COLD:
            self._read_first()
            return
        if sent is Sent.FULL:
            if not self._writing:
                self._writing = True
                self._loop.add_writer(self.fd, self.flush)
            return
        if self._writing:
            self._writing = False
            self._loop.remove_writer(self.fd)
        if self._half_closed and self.settled:
            self.close("closed by the client")
        if not self._reading:
            self._maybe_resume()

    def _read_first(self) -> None:
        """Has the next range read in a thread; one read at a time for each connection."""
        if self._writing:
            self._writing = False
            self._loop.remove_writer(self.fd)
        self._cold = True
        wanted = self._out.next_read()

        def done(_: BaseException | None) -> None:
            # What could not be read is met again by sendfile, which says so.
            self._cold = False
            self._out.on_read(wanted.done())
            self.flush()

        self._read_ahead(wanted.run, done)

    def _maybe_resume(self) -> bool:
        """Reads again after a pause, first what already lies in the buffer; whether it does."""
        if self._reading or self._closed or self._draining or self._over_limits():
            return False
        self._resume()
        if self._buffer is not None and self._filled > self._start:
            self._loop.call_soon(self._handle_held)
        return True

    def _handle_held(self) -> None:
        if self._closed or self._buffer is None or not self._reading:
            return
        try:
            self._handle_frames(self._buffer)
            if self._out and not self._writing:
                self.flush()
        except ProtocolError as error:
            self.close(str(error), Ending.UNREADABLE)
        except Exception:
            self._fail()

    # -- ending ---------------------------------------------------------------------------------

    def _fail(self) -> None:
        """A mistake of ours: without this end the same request would be handled again at the next byte."""
        log.exception("%s: a request could not be handled", self.peer)
        self.close("a request could not be handled")

    def close(self, reason: str, ending: Ending = Ending.ORDINARY) -> None:
        """Closes the socket and gives everything back; safe to call again."""
        if self._closed:
            return
        self._closed = True
        if self._reading:
            self._loop.remove_reader(self.fd)
        if self._writing:
            self._loop.remove_writer(self.fd)
        self._reading = self._writing = False
        self._sock.close()
        self._drop_buffer()
        self._pool.settle(self)
        answers, self._answers = self._answers, None
        for answer in answers or ():
            answer.abandon()
        self._out.discard()
        if self._session is not None:
            self._session.on_closed()
        self._on_close(self, reason, ending)
