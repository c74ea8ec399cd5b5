"""Random identifiers; the only place that asks the system for entropy."""

from __future__ import annotations

import os

_RESERVED = (bytes(16), bytes(15) + b"\x01")


def new_uuid() -> bytes:
    """A random (version 4) UUID that is safe to print.

    Kafka's tools print identifiers in URL-safe base64; one that begins with a dash would be taken for an
    option on a command line, and the first two values are reserved for "none" and the metadata topic.
    """
    while True:
        raw = bytearray(os.urandom(16))
        raw[6] = raw[6] & 0x0F | 0x40
        raw[8] = raw[8] & 0x3F | 0x80
        starts_with_dash = raw[0] >> 2 == 0b111110
        if not starts_with_dash and bytes(raw) not in _RESERVED:
            return bytes(raw)


def random_bytes(count: int) -> bytes:
    """Bytes that nobody can guess, for nonces."""
    return os.urandom(count)


def random_below(limit: int) -> int:
    """A number from 0 up to, not including, `limit`."""
    # 64 random bits over any limit used here: the bias is below one in a billion, without loading `secrets`.
    return int.from_bytes(os.urandom(8), "big") % limit
