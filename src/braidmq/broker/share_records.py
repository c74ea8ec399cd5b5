"""How delivery state of share groups is written to its internal topic, and put together again.

A window is one snapshot and the deltas after it, in the order of the log:

    key     version 1 | kind 1 | group id 4 + n | topic id 16 | partition 4 | slot 2, of a delta only
    value   version 1 | state epoch 4 | leader epoch 4 | what `braidmq.delivery.window_codec` makes
            none: forgotten

Before there were epochs, a value was the window alone, which begins with a version of its own. Such a value
is read with both epochs 0.

A compacted topic keeps the newest record of each key, so every delta has a key of its own, its slot. A new
snapshot makes those before it void, and its deltas take the slots again from the first: so what a window
leaves in the topic is one snapshot and `DELTAS_MAX` deltas, whatever has gone through it.
"""

from __future__ import annotations

import struct
from base64 import urlsafe_b64encode
from dataclasses import dataclass, field
from typing import NamedTuple

from braidmq.broker.internal_partition import KeyValue
from braidmq.delivery import window_codec

STATE_TOPIC = "__share_group_state"
DELTAS_MAX = 64

_VERSION = 0
_SNAPSHOT = 0
_DELTA = 1
_HEAD = struct.Struct(">BBI")
_TAIL = struct.Struct(">16si")
_SLOT = struct.Struct(">H")
_EPOCHS_VERSION = 2
_EPOCHS = struct.Struct(">Bii")


class SharePartitionKey(NamedTuple):
    """Which group reads which partition: what its delivery state is kept under."""

    group_id: str
    topic_id: bytes
    partition: int

    @property
    def coordinator_key(self) -> str:
        """What the share coordinator is found by, in Kafka's form."""
        topic_id = urlsafe_b64encode(self.topic_id).rstrip(b"=").decode()
        return f"{self.group_id}:{topic_id}:{self.partition}"


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


@dataclass(slots=True)
class StoredWindow:
    """A snapshot, what changed after it, and who may write the next change."""

    state_epoch: int
    leader_epoch: int
    snapshot: bytes
    deltas: list[bytes] = field(default_factory=list)

    @property
    def start_offset(self) -> int:
        """Where the window begins, after all changes."""
        return window_codec.start_of(self.deltas[-1] if self.deltas else self.snapshot)


def stored_value(state_epoch: int, leader_epoch: int, content: bytes) -> bytes:
    return _EPOCHS.pack(_EPOCHS_VERSION, state_epoch, leader_epoch) + content


def parse_value(value: bytes) -> tuple[int, int, bytes]:
    """State epoch, leader epoch and content. struct.error if it is cut off."""
    if value[:1] != bytes((_EPOCHS_VERSION,)):
        return 0, 0, value
    _, state_epoch, leader_epoch = _EPOCHS.unpack_from(value)
    return state_epoch, leader_epoch, value[_EPOCHS.size :]


class StoredWindows:
    """Takes the records of a partition, oldest first."""

    def __init__(self) -> None:
        self.windows: dict[SharePartitionKey, StoredWindow] = {}
        self.unreadable = 0

    def record(self, key: bytes, value: bytes | None) -> None:
        try:
            of, is_delta = _parse(key)
            state_epoch, leader_epoch, content = (0, 0, b"") if value is None else parse_value(value)
        except (struct.error, ValueError):
            self.unreadable += 1
            return
        window = self.windows.get(of)
        if is_delta:
            # A delta without a snapshot is left over from one that compaction has removed.
            if window is not None and value is not None:
                window.deltas.append(content)
                window.state_epoch, window.leader_epoch = state_epoch, leader_epoch
        elif value is None:
            self.windows.pop(of, None)
        else:
            self.windows[of] = StoredWindow(state_epoch, leader_epoch, content)


def _parse(key: bytes) -> tuple[SharePartitionKey, bool]:
    version, kind, length = _HEAD.unpack_from(key)
    tail_at = _HEAD.size + length
    topic_id, index = _TAIL.unpack_from(key, tail_at)
    expected = tail_at + _TAIL.size + (_SLOT.size if kind == _DELTA else 0)
    if version != _VERSION or kind not in (_SNAPSHOT, _DELTA) or len(key) != expected:
        raise ValueError("the key is not one of a share group's state")
    return SharePartitionKey(key[_HEAD.size : tail_at].decode(), topic_id, index), kind == _DELTA
