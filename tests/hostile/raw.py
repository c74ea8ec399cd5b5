"""Kafka's wire format by hand, for requests no client library would send.

Everything here is written from the protocol's rules and shares no code with `braidmq.wire`, so that a
misreading there is not repeated here. Requests use classic versions unless an attack needs a flexible one.
A `Connection` is one plain TCP socket; `outcome` is the rule every attack is held to: a response with our
correlation id, or a closed connection, within a time.
"""

from __future__ import annotations

import itertools
import socket
import struct
from types import TracebackType

PRODUCE, FETCH, LIST_OFFSETS, METADATA = 0, 1, 2, 3
API_VERSIONS, CREATE_TOPICS, DELETE_TOPICS, DELETE_RECORDS, INIT_PRODUCER_ID = 18, 19, 20, 21, 22
OFFSET_FOR_LEADER_EPOCH, DESCRIBE_CONFIGS, ALTER_CONFIGS, DESCRIBE_LOG_DIRS = 23, 32, 33, 35
CREATE_PARTITIONS, INCREMENTAL_ALTER_CONFIGS, DESCRIBE_CLUSTER, DESCRIBE_PRODUCERS = 37, 44, 60, 61
DESCRIBE_TOPIC_PARTITIONS = 75
ALTER_REPLICA_LOG_DIRS, ELECT_LEADERS, LIST_PARTITION_REASSIGNMENTS = 34, 43, 46
DESCRIBE_QUORUM, UPDATE_FEATURES, LIST_CONFIG_RESOURCES = 55, 57, 74

WAIT_S = 10.0
CORRELATION_IDS = itertools.count(1_000_000)


def i8(value: int) -> bytes:
    return struct.pack(">b", value)


def i16(value: int) -> bytes:
    return struct.pack(">h", value)


def i32(value: int) -> bytes:
    return struct.pack(">i", value)


def i64(value: int) -> bytes:
    return struct.pack(">q", value)


def uvarint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def varint(value: int) -> bytes:
    return uvarint(value << 1 if value >= 0 else (-value << 1) - 1)


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return i16(len(raw)) + raw


def compact(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return uvarint(len(raw) + 1) + raw


def array(*items: bytes) -> bytes:
    return i32(len(items)) + b"".join(items)


NULL_STRING = i16(-1)
NO_TAGS = b"\x00"


def request(api: int, version: int, body: bytes, *, flexible: bool = False, correlation: int = 1) -> bytes:
    """Header and body, without the size in front."""
    tags = NO_TAGS if flexible else b""
    return i16(api) + i16(version) + i32(correlation) + string("hostile") + tags + body


def framed(payload: bytes) -> bytes:
    return i32(len(payload)) + payload


class Reader:
    """A cursor over a response."""

    def __init__(self, view: bytes) -> None:
        self.view, self.at = view, 0

    def take(self, count: int) -> bytes:
        assert 0 <= count <= len(self.view) - self.at, "the response ends too early"
        self.at += count
        return self.view[self.at - count : self.at]

    def i8(self) -> int:
        return self.take(1)[0]

    def i16(self) -> int:
        return int.from_bytes(self.take(2), "big", signed=True)

    def i32(self) -> int:
        return int.from_bytes(self.take(4), "big", signed=True)

    def i64(self) -> int:
        return int.from_bytes(self.take(8), "big", signed=True)

    def string(self) -> str | None:
        length = self.i16()
        return None if length < 0 else self.take(length).decode()

    def compact(self) -> str | None:
        length = shift = 0
        while (digit := self.i8()) & 0x80:
            length |= (digit & 0x7F) << shift
            shift += 7
        length |= digit << shift
        return None if length == 0 else self.take(length - 1).decode()

    def data(self) -> bytes:
        length = self.i32()
        return b"" if length < 0 else self.take(length)


class Connection:
    """One socket to the broker; everything has a timeout."""

    def __init__(self, bootstrap: str, wait_s: float = WAIT_S) -> None:
        host, _, port = bootstrap.rpartition(":")
        self._address, self._wait_s = (host, int(port)), wait_s
        self.socket = self._connect()

    def _connect(self) -> socket.socket:
        connected = socket.create_connection(self._address, self._wait_s)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connected

    def reopen(self) -> None:
        self.socket.close()
        self.socket = self._connect()

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    def send(self, raw: bytes) -> None:
        """Sends what the broker still accepts; it may close on us in the middle, which is its right."""
        try:
            self.socket.sendall(raw)
        except (BrokenPipeError, ConnectionResetError):
            pass

    def finish(self) -> None:
        """No more from us."""
        try:
            self.socket.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def frame(self) -> bytes | None:
        """The next response without its size; None when the broker closed the connection."""
        head = self._exactly(4)
        if head is None:
            return None
        size = int.from_bytes(head, "big", signed=True)
        assert 4 <= size < 200_000_000, f"a response of {size} bytes"
        return self._exactly(size)

    def _exactly(self, count: int) -> bytes | None:
        received = bytearray()
        while len(received) < count:
            try:
                chunk = self.socket.recv(min(count - len(received), 1 << 20))
            except ConnectionResetError:
                return None
            if not chunk:
                return None
            received += chunk
        return bytes(received)

    def call(self, api: int, version: int, body: bytes) -> Reader:
        """A well-formed classic request and its answer, which must come."""
        correlation = next(CORRELATION_IDS)
        self.send(framed(request(api, version, body, correlation=correlation)))
        answer = self.frame()
        assert answer is not None, "the broker closed the connection on a valid request"
        reader = Reader(answer)
        assert reader.i32() == correlation
        return reader

    def closed(self) -> bool:
        """Whether the broker closes without another response; waits for it."""
        return self.frame() is None


def outcome(bootstrap: str, raw: bytes, correlation: int = 1) -> bytes | None:
    """Sends `raw` on a connection of its own and nothing after it: a response (its body), or None: closed."""
    with Connection(bootstrap) as connection:
        connection.send(raw)
        connection.finish()
        answer = connection.frame()
        if answer is None:
            return None
        assert int.from_bytes(answer[:4], "big", signed=True) == correlation, "a response to nobody's request"
        return answer[4:]


def is_refused(bootstrap: str, raw: bytes) -> bool:
    return outcome(bootstrap, raw) is None
