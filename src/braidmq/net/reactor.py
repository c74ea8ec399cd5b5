"""The reactor: listening sockets, the connections they bring, their limits and their end.

One event loop serves everything; no call here blocks. Connections past a limit are closed as they
arrive. A round every second closes the idle, and those whose request has been arriving for too long, and
says in one line each what was refused: a flood of bad clients must not become a flood of log lines.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from collections import Counter
from collections.abc import Callable

from braidmq.config import Config
from braidmq.net.buffers import BufferPool
from braidmq.net.connection import Connection, Ending, Limits, ReadAhead, Session
from braidmq.platform.network import Network

ACCEPTS_PER_EVENT = 128
ROUND_S = 1.0
TURN_S = 0.01
VISITS_PER_TURN = 256
DRAIN_POLL_S = 0.01

log = logging.getLogger("braid.net")

SessionFactory = Callable[[Connection], Session]


class Reactor:
    """Accepts clients and owns their connections."""

    def __init__(
        self, config: Config, loop: asyncio.AbstractEventLoop, network: Network, read_ahead: ReadAhead
    ) -> None:
        self._config = config
        self._loop = loop
        self._network = network
        self._read_ahead = read_ahead
        self._pool = BufferPool(config.net_inflight_bytes_max)
        self._limits = Limits(config.net_connection_requests_max, config.net_connection_send_bytes_max)
        self._connections: dict[Connection, None] = {}
        self._per_address: Counter[str] = Counter()
        self._listeners: list[socket.socket] = []
        self._to_visit: list[Connection] = []
        self._refused = 0
        self._unreadable = 0
        self._last_unreadable = ""
        self._round: asyncio.TimerHandle | None = None

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    def listen(self, host: str, port: int, sessions: SessionFactory) -> tuple[str, int]:
        """Binds and accepts; returns the address really bound (port 0 picks a free one)."""
        sock = self._network.listen(host, port)
        self._listeners.append(sock)
        self._loop.add_reader(sock.fileno(), self._on_acceptable, sock, sessions)
        if self._round is None:
            self._round = self._loop.call_later(ROUND_S, self._make_round)
        bound = sock.getsockname()
        return str(bound[0]), int(bound[1])

    def _on_acceptable(self, listener: socket.socket, sessions: SessionFactory) -> None:
        for _ in range(ACCEPTS_PER_EVENT):
            try:
                sock, address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                # Out of file descriptors: the backlog keeps the client until one is free again.
                log.error("cannot accept a connection: %s", error.strerror)
                return
            # Interned: ten thousand connections of one address share its text.
            self._admit(sock, sys.intern(str(address[0])), sessions)

    def _admit(self, sock: socket.socket, peer: str, sessions: SessionFactory) -> None:
        if (
            len(self._connections) >= self._config.net_connections_max
            or self._per_address[peer] >= self._config.net_connections_per_ip_max
        ):
            self._refused += 1
            sock.close()
            return
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = Connection(
            sock, peer, self._network, self._loop, self._pool, self._limits, self._on_closed, self._read_ahead
        )
        self._connections[connection] = None
        self._per_address[peer] += 1
        try:
            session = sessions(connection)
        except Exception:
            # A mistake of ours: a client that is let in by nobody would wait for ever.
            log.exception("%s: a connection could not be taken", peer)
            connection.close("a connection could not be taken")
            return
        connection.start(session)

    def _on_closed(self, connection: Connection, reason: str, ending: Ending) -> None:
        self._connections.pop(connection, None)
        self._per_address[connection.peer] -= 1
        if self._per_address[connection.peer] <= 0:
            del self._per_address[connection.peer]
        if ending is Ending.UNREADABLE:
            self._unreadable += 1
            self._last_unreadable = f"{connection.peer}: {reason}"

    def _make_round(self) -> None:
        """Looks at some connections; with many of them a round takes several turns, so that nobody waits."""
        if not self._to_visit:
            self._to_visit = list(self._connections)
            self._tell_refusals()
        now = self._loop.time()
        idle_before = now - self._config.net_idle_ms / 1000
        frame_before = now - self._config.net_frame_timeout_ms / 1000
        slow_before = now - ROUND_S
        for connection in self._to_visit[-VISITS_PER_TURN:]:
            since = connection.frame_since
            if since is not None and connection.reading:
                if since < frame_before:
                    connection.close(
                        f"a request was not complete after {self._config.net_frame_timeout_ms} ms"
                    )
                elif since < slow_before:
                    connection.shrink()
            elif connection.last_active < idle_before:
                connection.close(f"idle for {self._config.net_idle_ms} ms")
        del self._to_visit[-VISITS_PER_TURN:]
        pause_s = TURN_S if self._to_visit else ROUND_S
        self._round = self._loop.call_later(pause_s, self._make_round)

    def _tell_refusals(self) -> None:
        if self._refused:
            log.warning(
                "refused %d connections (net.connections.max=%d, net.connections.per.ip.max=%d)",
                self._refused,
                self._config.net_connections_max,
                self._config.net_connections_per_ip_max,
            )
            self._refused = 0
        if self._unreadable:
            log.warning(
                "closed %d connections whose requests made no sense; the last, %s",
                self._unreadable,
                self._last_unreadable,
            )
            self._unreadable = 0

    def stop_accepting(self) -> None:
        for listener in self._listeners:
            self._loop.remove_reader(listener.fileno())
            listener.close()
        self._listeners.clear()

    async def drain(self) -> None:
        """Takes no more requests, sends the answers under way, then closes everything."""
        self.stop_accepting()
        for connection in self._connections:
            connection.stop_reading()
        deadline = self._loop.time() + self._config.net_drain_ms / 1000
        while self._loop.time() < deadline and not all(c.settled for c in self._connections):
            await asyncio.sleep(DRAIN_POLL_S)
        for connection in list(self._connections):
            connection.close("the broker stops")
        if self._round is not None:
            self._round.cancel()
            self._round = None
