"""How delivery state of share groups is written to its internal topic, and put together again.

A window is one snapshot and the deltas after it, in the order of the log:

    key     version 1 | kind 1 | group id 4 + n | topic id 16 | partition 4 | slot 2, of a delta only
    value   what `braidmq.delivery.window_codec` makes; none: forgotten

A compacted topic keeps the newest record of each key, so every delta has a key of its own, its slot. A new
snapshot makes those before it void, and its deltas take the slots again from the first: so what a window
leaves in the topic is one snapshot and `DELTAS_MAX` deltas, whatever has gone through it.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from braidmq.broker.internal_topic import KeyValue

STATE_TOPIC = "__share_group_state"
DELTAS_MAX = 64

_VERSION = 0
_SNAPSHOT = 0
_DELTA = 1
_HEAD = struct.Struct(">BBI")
_TAIL = struct.Struct(">16si")
_SLOT = struct.Struct(">H")


class SharePartitionKey(NamedTuple):
    """Which group reads which partition: what its delivery state is kept under."""

    group_id: str
    topic_id: bytes
    partition: int


def snapshot_key(of: SharePartitionKey) -> bytes:
    return _key(of, _SNAPSHOT)


def delta_key(of: SharePartitionKey, slot: int) -> bytes:
    return _key(of, _DELTA) + _SLOT.pack(slot)


def tombstones(of: SharePartitionKey) -> list[KeyValue]:
    """Forgets a window: none of its records stays."""
    return [
        (snapshot_key(of), None),
        *((delta_key(of, slot), None) for slot in range(DELTAS_MAX)),
    ]


def _key(of: SharePartitionKey, kind: int) -> bytes:
    group = of.group_id.encode()
    return _HEAD.pack(_VERSION, kind, len(group)) + group + _TAIL.pack(of.topic_id, of.partition)


class StoredWindow(NamedTuple):
    """A snapshot, and what changed after it."""

    snapshot: bytes
    deltas: list[bytes]


class StoredWindows:
    """Takes the records of the topic, oldest first."""

    def __init__(self) -> None:
        self.windows: dict[SharePartitionKey, StoredWindow] = {}
        self.unreadable = 0

    def record(self, key: bytes, value: bytes | None) -> None:
        try:
            of, is_delta = _parse(key)
        except (struct.error, ValueError):
            self.unreadable += 1
            return
        window = self.windows.get(of)
        if is_delta:
            # A delta without a snapshot is left over from one that compaction has removed.
            if window is not None and value is not None:
                window.deltas.append(value)
        elif value is None:
            self.windows.pop(of, None)
        else:
            self.windows[of] = StoredWindow(value, [])


def _parse(key: bytes) -> tuple[SharePartitionKey, bool]:
    version, kind, length = _HEAD.unpack_from(key)
    tail_at = _HEAD.size + length
    topic_id, index = _TAIL.unpack_from(key, tail_at)
    expected = tail_at + _TAIL.size + (_SLOT.size if kind == _DELTA else 0)
    if version != _VERSION or kind not in (_SNAPSHOT, _DELTA) or len(key) != expected:
        raise ValueError("the key is not one of a share group's state")
    return SharePartitionKey(key[_HEAD.size : tail_at].decode(), topic_id, index), kind == _DELTA
