"""How a share group is written down in `__consumer_offsets`: that it is there, and no more.

Its members join again when another broker takes over, or this one is started again; but a coordinator that
does not know the group at all would refuse them for good. The record is Kafka's, key version 11.
"""

from __future__ import annotations

from braidmq.group.events import KeyValue
from braidmq.group.records import split, versioned
from braidmq.wire.schema import Message, decode, int32, string

GROUP_KEY = 11


class ShareGroupKey(Message, versions=(GROUP_KEY, GROUP_KEY)):
    group_id: str = string()


class ShareGroupMetadataValue(Message, versions=(0, 0), flexible=0):
    epoch: int = int32()


def share_record(group_id: str, epoch: int) -> KeyValue:
    """The record of a group that is there."""
    return _key(group_id), versioned(ShareGroupMetadataValue(epoch=epoch), 0)


def tombstone(group_id: str) -> KeyValue:
    return _key(group_id), None


def _key(group_id: str) -> bytes:
    return versioned(ShareGroupKey(group_id=group_id), GROUP_KEY)


class ShareLoader:
    """What the records read so far say about share groups."""

    def __init__(self) -> None:
        self.epochs: dict[str, int] = {}
        """Groups that are there, and the epoch in which that was written."""

    def take(self, key: bytes, value: bytes | None) -> bool:
        """Takes in a record; whether it is one of a share group. ProtocolError if it cannot be read."""
        kind, body = split(key)
        if kind != GROUP_KEY:
            return False
        group_id = decode(ShareGroupKey, kind, body).group_id
        if value is None:
            self.epochs.pop(group_id, None)
        else:
            self.epochs[group_id] = decode(ShareGroupMetadataValue, *split(value)).epoch
        return True
