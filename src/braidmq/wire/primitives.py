"""The few encodings that every message shares: unsigned varints, tagged fields to skip, and the zero UUID.

Flexible versions (KIP-482) write lengths as unsigned varints of at most five bytes: seven bits per byte,
lowest first, the top bit set on all but the last. Readers take a position and return the next one. They
never check that a slice lies within the view: the reader of a whole message checks once, at its end, that
the position did not run past it.
"""

from __future__ import annotations

from braidmq.wire.errors import ProtocolError

ZERO_UUID = bytes(16)

TAGGED_FIELDS_MAX = 128
"""Tagged fields one structure may carry. Kafka 4.3 defines at most four; a flood only burns our time."""

STRING_BYTES_MAX = 0x7FFF
"""Bytes of a string. Compact lengths could say more, but Kafka reads no more either (and what is stored
under such a name could not be written in the classic encoding)."""

UVARINT_BYTES_MAX = 5
UVARINT_MAX = 0xFFFF_FFFF

View = memoryview | bytes
"""What messages are read from."""


def uvarint(value: int) -> bytes:
    """`value` as an unsigned varint."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_uvarint(view: View, at: int) -> tuple[int, int]:
    """The varint at `at` and the position after it; IndexError where the view ends before it does."""
    first = view[at]
    at += 1
    if first < 0x80:
        return first, at
    return finish_uvarint(view, at, first)


def finish_uvarint(view: View, at: int, first: int) -> tuple[int, int]:
    """The rest of a varint whose first byte was read already and says that more follow."""
    value = first & 0x7F
    for shift in range(7, 7 * UVARINT_BYTES_MAX, 7):
        byte = view[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > UVARINT_MAX:
                raise ProtocolError(f"varint at byte {at - UVARINT_BYTES_MAX} does not fit in 32 bits")
            return value, at
    raise ProtocolError(f"varint at byte {at - UVARINT_BYTES_MAX} is longer than {UVARINT_BYTES_MAX} bytes")


def finish_string_length(view: View, at: int, first: int) -> tuple[int, int]:
    """As `finish_uvarint`, for the length of a string."""
    length, at = finish_uvarint(view, at, first)
    if length > STRING_BYTES_MAX + 1:
        raise ProtocolError(f"a string of {length - 1} bytes; at most {STRING_BYTES_MAX} are read")
    return length, at


def skip_tagged_fields(view: View, at: int, count: int) -> int:
    """The position after `count` tagged fields, their count being read already."""
    if count > 127:
        count, at = finish_uvarint(view, at, count)
    check_tag_count(count)
    for _ in range(count):
        _tag, at = read_uvarint(view, at)
        size, at = read_uvarint(view, at)
        at += size
    return at


def check_tag_count(count: int) -> None:
    if count > TAGGED_FIELDS_MAX:
        raise ProtocolError(f"{count} tagged fields in one structure; at most {TAGGED_FIELDS_MAX} are read")
