"""Reads which topics a classic consumer subscribes to, from what it tells its group.

The broker need not understand what members say to their leader; it looks inside for one thing only: offsets
of a topic that nobody reads any more may expire or be deleted, those of one that is read may not.
"""

from __future__ import annotations

from struct import Struct, error

CONSUMER_PROTOCOL_TYPE = "consumer"
"""The protocol type of groups whose members speak the consumer's embedded protocol."""

_INT16 = Struct(">h")
_HEAD = Struct(">hi")


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """The topics in a ConsumerProtocolSubscription of any version, or None if it is not one."""
    try:
        version, count = _HEAD.unpack_from(metadata)
        if version < 0 or count < 0:
            return None
        topics = set()
        at = _HEAD.size
        for _ in range(count):
            (length,) = _INT16.unpack_from(metadata, at)
            at += _INT16.size
            if length < 0 or at + length > len(metadata):
                return None
            topics.add(metadata[at : at + length].decode())
            at += length
    except (error, UnicodeDecodeError):
        return None
    return frozenset(topics)
