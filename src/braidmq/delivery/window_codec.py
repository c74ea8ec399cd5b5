"""The stored form of a delivery window: a start offset and runs of offsets, in a few bytes.

    version 1 | start offset 8 | then for each run, as varints:
    distance from the end of the run before | length - 1 | deliveries << 3 | state

A snapshot holds the whole window, a delta the runs that changed; applying a delta
twice does no harm. There is no checksum: the bytes travel as the value of a record, whose batch has one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from braidmq.delivery.status import DeliveryState

VERSION = 1
STATE_BITS = 3
OFFSET_MAX = 2**63 - 1

_STATES = {
    int(state): state for state in (DeliveryState.AVAILABLE, DeliveryState.ACKED, DeliveryState.ARCHIVED)
}
_START_END = 9
_VARINT_BITS_MAX = 63


class BadState(Exception):
    """Bytes that no window has written."""


class StoredRun(NamedTuple):
    """Offsets [first, last] as a restart shall find them."""

    first: int
    last: int
    state: DeliveryState
    deliveries: int


def encode(start_offset: int, runs: Iterable[StoredRun]) -> bytes:
    """The bytes for a start offset and runs in ascending order."""
    out = bytearray((VERSION,))
    out += start_offset.to_bytes(8, "big")
    reached = start_offset
    for first, last, state, deliveries in runs:
        for number in (first - reached, last - first, deliveries << STATE_BITS | state):
            while number > 127:
                out.append(number & 127 | 128)
                number >>= 7
            out.append(number)
        reached = last + 1
    return bytes(out)


def decode(content: bytes) -> tuple[int, list[StoredRun]]:
    """Start offset and runs; BadState for anything that `encode` does not give."""
    if len(content) < _START_END or content[0] != VERSION:
        raise BadState(f"these {len(content)} bytes are not a delivery state of version {VERSION}")
    reached = start_offset = int.from_bytes(content[1:_START_END], "big")
    runs: list[StoredRun] = []
    at = _START_END
    while at < len(content):
        distance, at = _varint(content, at)
        length, at = _varint(content, at)
        packed, at = _varint(content, at)
        state = _STATES.get(packed & (1 << STATE_BITS) - 1)
        first = reached + distance
        reached = first + length + 1
        if state is None or reached > OFFSET_MAX:
            raise BadState(
                f"the run that ends at byte {at} has an unknown state or ends past the largest offset"
            )
        runs.append(StoredRun(first, reached - 1, state, packed >> STATE_BITS))
    return start_offset, runs


def start_of(content: bytes) -> int:
    """The start offset alone."""
    return int.from_bytes(content[1:_START_END], "big")


def _varint(content: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while at < len(content) and shift < _VARINT_BITS_MAX:
        byte = content[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, at
        shift += 7
    raise BadState(f"the varint that ends at byte {at} is cut off or too long")
