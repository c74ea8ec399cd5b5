"""Random identifiers; the only place that asks the system for entropy.

A simulation puts a source of its own in the system's place, so that a seed gives the same identifiers again.
"""

from __future__ import annotations

import os
from collections.abc import Callable

_RESERVED = (bytes(16), bytes(15) + b"\x01")

Source = Callable[[int], bytes]
"""Gives as many random bytes as asked for."""

_source: Source = os.urandom


def replace_source(source: Source) -> Source:
    """Takes all randomness from `source` from now on; the source until now."""
    global _source
    before, _source = _source, source
    return before


def new_uuid() -> bytes:
    """A random (version 4) UUID that is safe to print.

    Kafka's tools print identifiers in URL-safe base64; one that begins with a dash would be taken for an
    option on a command line, and the first two values are reserved for "none" and the metadata topic.
    """
    while True:
        raw = bytearray(_source(16))
        raw[6] = raw[6] & 0x0F | 0x40
        raw[8] = raw[8] & 0x3F | 0x80
        starts_with_dash = raw[0] >> 2 == 0b111110
        if not starts_with_dash and bytes(raw) not in _RESERVED:
            return bytes(raw)


def random_bytes(count: int) -> bytes:
    """Bytes that nobody can guess, for nonces."""
    return _source(count)


def random_below(limit: int) -> int:
    """A number from 0 up to, not including, `limit`."""
    # 64 random bits over any limit used here: the bias is below one in a billion, without loading `secrets`.
    return int.from_bytes(_source(8), "big") % limit
