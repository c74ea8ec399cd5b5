"""A network in memory: TCP between simulated machines, with everything that may go wrong between two of them.

Inside a connection no byte is lost or overtakes another; between connections anything goes. A *link* is one
direction between two machines: how long a piece takes, how large pieces are (so frames arrive in halves, or a
reader is slow), and whether it is cut. What is sent over a cut link waits, as TCP would send it again and
again. A machine that dies resets its connections, at once or when it is back, as after a power loss.
"""

from __future__ import annotations

import errno
import socket
import zlib
from collections import deque
from dataclasses import dataclass
from typing import Any

from tests.sim.disk import SimFile
from tests.sim.loop import VirtualLoop

WINDOW_BYTES = 64 * 1024
FIRST_PORT = 40_000
FIRST_FD = 1_000_000
END = b""
"""Stands for the end of what a side sends."""


@dataclass(slots=True)
class Link:
    """One direction between two machines."""

    delay_s: float = 0.0005
    piece_bytes: int = WINDOW_BYTES
    cut: bool = False


class SimSocket:
    """One end of a connection, or a listener; with the methods that are called of a socket."""

    def __init__(self, network: SimNetwork, machine: str, address: tuple[str, int]) -> None:
        self._network = network
        self.machine = machine
        self.address = address
        self.fd = network.register(self)
        self.peer: SimSocket | None = None
        self.backlog: deque[SimSocket] | None = None
        self.inbox = bytearray()
        self.ended = False
        """The other side sends no more."""
        self.error = 0
        self.connected = False
        self.closed = False
        self._out: deque[bytes] = deque()
        self._out_bytes = 0
        self._pumping = False

    # -- as a broker and a client see it --------------------------------------------------------

    def fileno(self) -> int:
        return -1 if self.closed else self.fd

    def setblocking(self, _: bool) -> None: ...
    def setsockopt(self, *_: object) -> None: ...

    def getsockopt(self, *_: object) -> int:
        found, self.error = self.error, 0
        return found

    def getsockname(self) -> tuple[str, int]:
        return self.address

    def accept(self) -> tuple[SimSocket, tuple[str, int]]:
        self._network.check_alive(self.machine)
        if not self.backlog:
            raise BlockingIOError
        accepted = self.backlog.popleft()
        assert accepted.peer is not None
        return accepted, accepted.peer.address

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        self._check()
        view = memoryview(buffer)
        count = min(nbytes or len(view), len(view), len(self.inbox))
        if count == 0:
            if self.ended:
                return 0
            raise BlockingIOError
        view[:count] = self.inbox[:count]
        if not flags & socket.MSG_PEEK:
            del self.inbox[:count]
            if self.peer is not None:
                # There is room again, which lets the other side send.
                self._network.loop.poke(self.peer.fd)
        return count

    def send(self, content: Any, _flags: int = 0) -> int:
        self._check()
        if not self.connected:
            raise BlockingIOError
        room = self.room
        if room <= 0:
            raise BlockingIOError
        accepted = bytes(memoryview(content)[:room])
        link = self._link()
        for at in range(0, len(accepted), link.piece_bytes):
            self._put(accepted[at : at + link.piece_bytes])
        return len(accepted)

    def sendmsg(self, buffers: list[Any], _ancillary: object = (), _flags: int = 0) -> int:
        return self.send(b"".join(bytes(one) for one in buffers))

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        self._network.unregister(self)
        if self.peer is not None:
            self._put(END)

    # -- what the network does ------------------------------------------------------------------

    @property
    def room(self) -> int:
        taken = self._out_bytes + (len(self.peer.inbox) if self.peer is not None else 0)
        return WINDOW_BYTES - taken

    def is_ready(self, what: str) -> bool:
        if self.backlog is not None:
            return bool(self.backlog)
        if what == "read":
            return bool(self.inbox) or self.ended or self.error != 0
        return self.error != 0 or (self.connected and self.room > 0)

    def reset(self, code: int = errno.ECONNRESET) -> None:
        """The connection is no more."""
        if self.closed or self.error:
            return
        self.error = code
        self.inbox.clear()
        self._out.clear()
        self._out_bytes = 0
        self._network.loop.poke(self.fd)

    def _check(self) -> None:
        self._network.check_alive(self.machine)
        if self.error:
            raise ConnectionResetError(self.error, "the connection was reset")

    def _link(self) -> Link:
        assert self.peer is not None
        return self._network.link(self.machine, self.peer.machine)

    def _put(self, piece: bytes) -> None:
        self._out.append(piece)
        self._out_bytes += len(piece)
        if not self._pumping:
            self._pumping = True
            self._network.later(self._link(), self._pump)

    def _pump(self) -> None:
        """One piece arrives."""
        self._pumping = False
        if not self._out or self.peer is None or self.peer.error:
            return
        link = self._link()
        if link.cut or self._network.is_dead(self.peer.machine):
            self._pumping = True
            self._network.wait(self.machine, self.peer.machine, self._pump)
            return
        piece = self._out.popleft()
        self._out_bytes -= len(piece)
        if self.peer.closed:
            if piece is not END:
                self.reset()
            return
        if piece is END:
            self.peer.ended = True
        else:
            self._network.loop.note(f"{self.machine}>{self.peer.machine}{zlib.crc32(piece)}")
            self.peer.inbox += piece
        self._network.loop.poke(self.peer.fd)
        self._network.loop.poke(self.fd)
        if self._out:
            self._pumping = True
            self._network.later(link, self._pump)


class SimNetwork:
    """All machines, their links and sockets."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop
        loop.is_ready = self._is_ready
        self.descriptors: dict[int, SimFile] = {}
        self._sockets: dict[int, SimSocket] = {}
        self._next_fd = FIRST_FD
        self._next_port = FIRST_PORT
        self._links: dict[tuple[str, str], Link] = {}
        self._waiting: dict[tuple[str, str], list[Any]] = {}
        self._listeners: dict[tuple[str, int], SimSocket] = {}
        self._dead: dict[str, None] = {}

    def of(self, machine: str) -> MachineNetwork:
        """The network as one machine has it."""
        return MachineNetwork(self, machine)

    def link(self, source: str, target: str) -> Link:
        return self._links.setdefault((source, target), Link())

    def cut(self, source: str, target: str) -> None:
        """Nothing gets from one to the other until `heal`."""
        self.link(source, target).cut = True

    def heal(self, machine: str) -> None:
        """All links of a machine are as they should be."""
        for ends in [ends for ends in self._links if machine in ends]:
            self._links[ends] = Link()
        self._go_on()

    def reset_between(self, one: str, other: str) -> None:
        """Every connection between two machines is reset, on both sides."""
        for sock in list(self._sockets.values()):
            if sock.peer is not None and {sock.machine, sock.peer.machine} == {one, other}:
                sock.reset()

    def kill(self, machine: str, silently: bool) -> None:
        """A machine dies. Silently: its peers learn of it only when it is back."""
        self._dead[machine] = None
        for address in [at for at, sock in self._listeners.items() if sock.machine == machine]:
            del self._listeners[address]
        if not silently:
            self._reset_peers(machine)

    def close_all(self, machine: str) -> None:
        """A process has ended: whatever it has left open is closed."""
        for sock in [sock for sock in self._sockets.values() if sock.machine == machine]:
            sock.close()

    def revive(self, machine: str) -> None:
        """The machine is back, and knows nothing of its earlier connections."""
        self._reset_peers(machine)
        for fd in [fd for fd, sock in self._sockets.items() if sock.machine == machine]:
            del self._sockets[fd]
        del self._dead[machine]
        self._go_on()

    def _reset_peers(self, machine: str) -> None:
        for sock in list(self._sockets.values()):
            if sock.machine == machine and sock.peer is not None:
                sock.peer.reset()

    def is_dead(self, machine: str) -> bool:
        return machine in self._dead

    def check_alive(self, machine: str) -> None:
        if machine in self._dead:
            raise OSError(errno.ENETDOWN, f"{machine} is dead")

    # -- what sockets need ----------------------------------------------------------------------

    def register(self, sock: SimSocket) -> int:
        self._next_fd += 1
        self._sockets[self._next_fd] = sock
        return self._next_fd

    def unregister(self, sock: SimSocket) -> None:
        self._sockets.pop(sock.fd, None)
        if self._listeners.get(sock.address) is sock:
            del self._listeners[sock.address]

    def socket(self, fd: int) -> SimSocket:
        return self._sockets[fd]

    def later(self, link: Link, call: Any) -> None:
        delay_s = link.delay_s * self.loop.chance.uniform(0.5, 1.5)
        # In no strand: a paused machine still receives.
        self.loop.world_later(delay_s, call)

    def wait(self, source: str, target: str, call: Any) -> None:
        self._waiting.setdefault((source, target), []).append(call)

    def _go_on(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for (source, target), calls in waiting.items():
            for call in calls:
                self.later(self.link(source, target), call)

    def _is_ready(self, fd: int, what: str) -> bool:
        found = self._sockets.get(fd)
        return found is not None and found.is_ready(what)

    def free_port(self) -> int:
        self._next_port += 1
        return self._next_port

    # -- connections ----------------------------------------------------------------------------

    def listen(self, machine: str, host: str, port: int) -> SimSocket:
        address = (host, port or self.free_port())
        if address in self._listeners:
            raise OSError(errno.EADDRINUSE, "address in use")
        sock = SimSocket(self, machine, address)
        sock.backlog = deque()
        self._listeners[address] = sock
        return sock

    def connect(self, machine: str, host: str, port: int) -> SimSocket:
        self.check_alive(machine)
        sock = SimSocket(self, machine, (machine, self.free_port()))
        self.later(self.link(machine, host), lambda: self._arrive(sock, (host, port)))
        return sock

    def _arrive(self, sock: SimSocket, address: tuple[str, int]) -> None:
        """A connection request is there."""
        source, target = sock.machine, address[0]
        if self.link(source, target).cut or self.is_dead(target):
            self.wait(source, target, lambda: self._arrive(sock, address))
            return
        if sock.closed:
            return
        listener = self._listeners.get(address)
        if listener is None or listener.backlog is None:
            sock.reset(errno.ECONNREFUSED)
            return
        theirs = SimSocket(self, listener.machine, address)
        theirs.peer, sock.peer = sock, theirs
        theirs.connected = True
        listener.backlog.append(theirs)
        self.loop.poke(listener.fd)
        self.later(self.link(target, source), lambda: self._established(sock))

    def _established(self, sock: SimSocket) -> None:
        if self.link(sock.peer.machine, sock.machine).cut:  # type: ignore[union-attr]
            self.wait(sock.peer.machine, sock.machine, lambda: self._established(sock))  # type: ignore
            return
        sock.connected = True
        self.loop.poke(sock.fd)


class MachineNetwork:
    """`platform.network.Network` on one simulated machine, whose name is its address."""

    def __init__(self, network: SimNetwork, machine: str) -> None:
        self._network = network
        self._machine = machine

    def listen(self, host: str, port: int) -> Any:
        return self._network.listen(self._machine, host, port)

    async def resolve(self, host: str) -> list[str]:
        return [host]

    def connect(self, host: str, port: int) -> Any:
        return self._network.connect(self._machine, host, port)

    def send_file(self, out_fd: int, in_fd: int, position: int, size: int, /) -> int:
        content = self._network.descriptors[in_fd].read_at(size, position)
        return self._network.socket(out_fd).send(content) if content else 0

    def is_resident(self, _fd: int, _position: int, _size: int, /) -> bool:
        return self._network.loop.chance.random() < 0.8

    def read_through(self, fd: int, position: int, size: int, /) -> None:
        self._network.descriptors[fd].read_at(size, position)
