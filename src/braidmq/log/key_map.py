"""Keys and the newest offset of each, in a fixed number of bytes.

A table of slots with a 128-bit hash of the key and an offset, searched linearly from where the hash points:
24 bytes a slot, where a dict of the same would take two hundred. Keys themselves are not kept. Two keys of
one hash would lose a record; with 128 bits and a billion keys the odds are below 1 in 10^20.
"""

from __future__ import annotations

from hashlib import blake2b
from struct import Struct

HASH_BYTES = 16
SLOT_BYTES = 24
FILLED_MAX = 0.75
_SLOTS_MIN = 8
_OFFSET = Struct(">q")


class KeyMap:
    """At most `keys_max` keys; offsets only go up."""

    __slots__ = ("_slots", "_table", "count", "keys_max")

    def __init__(self, keys_max: int) -> None:
        self.keys_max = keys_max
        self.count = 0
        self._slots = max(int(keys_max / FILLED_MAX) + 1, _SLOTS_MIN)
        self._table = bytearray(self._slots * SLOT_BYTES)

    @staticmethod
    def keys_in(memory_bytes: int) -> int:
        """How many keys a map of so many bytes holds."""
        return max(int(memory_bytes // SLOT_BYTES * FILLED_MAX) - 1, 1)

    @property
    def size_bytes(self) -> int:
        return len(self._table)

    def put(self, key: bytes, offset: int) -> bool:
        """Notes the newest offset of `key`; False if there is no room for one more key."""
        digest, at, stored = self._find(key)
        if not stored:
            if self.count >= self.keys_max:
                return False
            self.count += 1
            self._table[at : at + HASH_BYTES] = digest
        _OFFSET.pack_into(self._table, at + HASH_BYTES, offset + 1)
        return True

    def get(self, key: bytes) -> int:
        """The newest offset of `key`, -1 if it is not here."""
        return self._find(key)[2] - 1

    def _find(self, key: bytes) -> tuple[bytes, int, int]:
        """The key's hash, where its slot is or would be, and what is in it: its offset plus one, or 0."""
        digest = blake2b(key, digest_size=HASH_BYTES).digest()
        table = self._table
        at = int.from_bytes(digest[:8], "big") % self._slots * SLOT_BYTES
        while True:
            (stored,) = _OFFSET.unpack_from(table, at + HASH_BYTES)
            if not stored or table[at : at + HASH_BYTES] == digest:
                return digest, at, stored
            at += SLOT_BYTES
            if at == len(table):
                at = 0
