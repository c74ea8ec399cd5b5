"""Records that use every corner of the format, and the codecs they are sent with."""

from __future__ import annotations

from typing import NamedTuple

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
ACKS = (0, 1, "all")


class Sample(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


SAMPLES = [
    Sample(b"plain", b"value", []),
    Sample(None, b"no key", []),
    Sample(b"tombstone", None, []),
    Sample(b"", b"", []),
    Sample(b"\x00\xff" * 20, bytes(range(256)) * 8, []),
    Sample(b"headers", b"three, one name twice", [("trace", b"1"), ("trace", b"2"), ("empty", b"")]),
    Sample("Schlüssel".encode(), "значение".encode(), [("имя", "値".encode())]),
    Sample(b"long", b"0123456789" * 5_000, [("long", b"x" * 1_000)]),
]
SAMPLES_WITH_NULL_HEADER = [*SAMPLES, Sample(b"null header", b"v", [("nothing", None)])]
