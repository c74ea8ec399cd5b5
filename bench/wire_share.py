"""The verbs of share groups (KIP-932) that the load generator speaks: heartbeat 1 and ShareFetch 1."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from .answer import Answer
from .wire import compact, frame, uvarint
from .wire_groups import NO_TAGS, NULL, array, expect

SHARE_GROUP_HEARTBEAT, SHARE_FETCH = 76, 78
ACCEPT = b"\1"
FETCH_BYTES_MAX = 52_428_800
Range = tuple[int, int]
"""First and last offset."""


def share_heartbeat_frame(group: str, member_id: str, epoch: int, topic: str | None) -> bytes:
    body = compact(group.encode()) + compact(member_id.encode()) + struct.pack(">i", epoch) + NULL
    body += NULL if topic is None else array([compact(topic.encode())])
    return frame(SHARE_GROUP_HEARTBEAT, 1, body + NO_TAGS)


def share_fetch_frame(
    group: str,
    member_id: str,
    epoch: int,
    topic_id: bytes,
    accepted: Sequence[Range],
    records_max: int,
    wait_ms: int,
) -> bytes:
    """Accepts what was read before and asks for more, of partition 0."""
    given = array(struct.pack(">qq", first, last) + uvarint(2) + ACCEPT + NO_TAGS for first, last in accepted)
    body = compact(group.encode()) + compact(member_id.encode())
    body += struct.pack(">iiiiii", epoch, wait_ms, 1, FETCH_BYTES_MAX, records_max, records_max)
    body += array([topic_id + array([struct.pack(">i", 0) + given + NO_TAGS]) + NO_TAGS])
    return frame(SHARE_FETCH, 1, body + array([]) + NO_TAGS)


class ShareFetched(NamedTuple):
    code: int
    """Of the whole request; a partition's own ends the load."""
    acquired: list[Range]
    record_bytes: int


def share_fetched(answer: bytes) -> ShareFetched:
    read = Answer(answer)
    read.int32()
    code = read.int16()
    read.blob()
    read.int32()
    acquired: list[Range] = []
    record_bytes = 0
    for _ in read.items():
        read.uuid()
        for _ in read.items():
            read.int32()
            expect(read.int16(), "ShareFetch")
            read.blob()
            expect(read.int16(), "an acknowledgement")
            read.blob()
            read.int32()
            read.int32()
            read.tags()
            record_bytes += len(read.blob())
            for _ in read.items():
                acquired.append((read.int64(), read.int64()))
                read.int16()
    return ShareFetched(code, acquired, record_bytes)
