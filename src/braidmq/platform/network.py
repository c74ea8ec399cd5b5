"""Sockets, and files that leave through them.

Connections are plain socket objects whose methods are called directly, without a layer in between. A
simulation puts a network of its own in this place; its sockets have the methods that are used here.
"""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Protocol

from braidmq.platform.page_cache import is_resident, read_through

BACKLOG = 4096


class Network(Protocol):
    """What a broker asks of the network. No call blocks, and no socket, but for `read_through`."""

    def listen(self, host: str, port: int) -> socket.socket:
        """Binds an address, where port 0 stands for a free one, and takes connections there."""
        ...

    async def resolve(self, host: str) -> list[str]:
        """The numeric addresses of a host, in the order in which to try them; OSError if there are none."""
        ...

    def connect(self, host: str, port: int) -> socket.socket:
        """Begins a connection to a numeric address; it is writable once that has succeeded or failed."""
        ...

    def send_file(self, out_fd: int, in_fd: int, position: int, size: int, /) -> int:
        """Sends bytes of a file; how many, which may be fewer."""
        ...

    def is_resident(self, fd: int, position: int, size: int, /) -> bool:
        """Whether bytes of a file can be sent without waiting for the disk."""
        ...

    def read_through(self, fd: int, position: int, size: int, /) -> None:
        """Brings bytes of a file into memory; for a thread, as it waits for the disk."""
        ...


class SocketNetwork:
    """The operating system's network."""

    __slots__ = ()

    send_file = staticmethod(os.sendfile)
    is_resident = staticmethod(is_resident)
    read_through = staticmethod(read_through)

    def listen(self, host: str, port: int) -> socket.socket:
        sock = _new_socket(host)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((host, port))
            sock.listen(BACKLOG)
        except OSError:
            sock.close()
            raise
        return sock

    async def resolve(self, host: str) -> list[str]:
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        return list(dict.fromkeys(str(address[0]) for *_, address in found))

    def connect(self, host: str, port: int) -> socket.socket:
        sock = _new_socket(host)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.connect((host, port))
        except BlockingIOError:
            pass
        except OSError:
            sock.close()
            raise
        return sock


def _new_socket(host: str) -> socket.socket:
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    sock.setblocking(False)
    return sock
