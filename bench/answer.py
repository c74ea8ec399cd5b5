"""Reads the answers of the verbs that groups and transactions use: a place in the bytes that moves on."""

from __future__ import annotations

import struct
from collections.abc import Iterator

_int16 = struct.Struct(">h")
_int32 = struct.Struct(">i")
_int64 = struct.Struct(">q")
HEADER_BYTES = 5
"""Correlation id and the (empty) tags of a flexible header."""


class Answer:
    """An answer without its size prefix, read from the front; every verb here is of a flexible version."""

    __slots__ = ("_at", "_view")

    def __init__(self, content: bytes) -> None:
        self._view = content
        self._at = HEADER_BYTES

    def int16(self) -> int:
        self._at += 2
        return int(_int16.unpack_from(self._view, self._at - 2)[0])

    def int32(self) -> int:
        self._at += 4
        return int(_int32.unpack_from(self._view, self._at - 4)[0])

    def int64(self) -> int:
        self._at += 8
        return int(_int64.unpack_from(self._view, self._at - 8)[0])

    def int8(self) -> int:
        self._at += 1
        return int.from_bytes(self._view[self._at - 1 : self._at], signed=True)

    def uvarint(self) -> int:
        value = shift = 0
        while True:
            byte = self._view[self._at]
            self._at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7

    def blob(self) -> bytes:
        """Bytes or text with their size before them; null is taken for empty."""
        size = max(0, self.uvarint() - 1)
        self._at += size
        return self._view[self._at - size : self._at]

    def text(self) -> str:
        return self.blob().decode()

    def uuid(self) -> bytes:
        self._at += 16
        return self._view[self._at - 16 : self._at]

    def items(self) -> Iterator[None]:
        """One turn for each element of an array, whose fields are to be read in it; its tags are skipped."""
        for _ in range(self.uvarint() - 1):
            yield
            self.tags()

    def tags(self) -> None:
        for _ in range(self.uvarint()):
            self.uvarint()
            self._at += self.uvarint()
