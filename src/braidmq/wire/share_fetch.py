"""The answer to ShareFetch, by hand: its records are ranges of files, which are sent and not read.

The generated codec would need them in memory. What it gives for records in memory is what this gives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from struct import Struct

from braidmq.wire.fetch import AnswerParts, Part, SizedSlice
from braidmq.wire.messages.share_fetch import ShareFetchPartitionData, ShareFetchResponse
from braidmq.wire.primitives import uvarint

Key = tuple[bytes, int]
"""Topic id and partition."""
Records = Mapping[Key, Sequence[SizedSlice]]

_head = Struct(">iiBih").pack
_int32 = Struct(">i").pack
_int16 = Struct(">h").pack
_index_and_code = Struct(">ih").pack
_leader = Struct(">iiB").pack
_acquired = Struct(">qqhB").pack
_NO_ENDPOINTS = b"\x01"
_NO_TAGS = b"\x00"


def encode_response(correlation_id: int, response: ShareFetchResponse, records: Records) -> list[Part]:
    """The whole answer in parts to send one after the other; `records` are those of its partitions."""
    assert not response.node_endpoints, "there is one broker"
    parts = AnswerParts(_head(0, correlation_id, 0, response.throttle_time_ms, response.error_code))
    parts.out += _text(response.error_message)
    parts.out += _int32(response.acquisition_lock_timeout_ms)
    parts.out += uvarint(len(response.responses) + 1)
    for topic in response.responses:
        parts.out += topic.topic_id
        parts.out += uvarint(len(topic.partitions) + 1)
        for part in topic.partitions:
            _encode_partition(parts, part, records.get((topic.topic_id, part.partition_index), ()))
        parts.out += _NO_TAGS
    parts.out += _NO_ENDPOINTS + _NO_TAGS
    return parts.finished()


def _encode_partition(
    parts: AnswerParts, part: ShareFetchPartitionData, records: Sequence[SizedSlice]
) -> None:
    out = parts.out
    out += _index_and_code(part.partition_index, part.error_code) + _text(part.error_message)
    out += _int16(part.acknowledge_error_code) + _text(part.acknowledge_error_message)
    out += _leader(part.current_leader.leader_id, part.current_leader.leader_epoch, 0)
    out += uvarint(sum(one.size for one in records) + 1)
    for one in records:
        parts.place(one, one.size)
    out = parts.out
    out += uvarint(len(part.acquired_records) + 1)
    for run in part.acquired_records:
        out += _acquired(run.first_offset, run.last_offset, run.delivery_count, 0)
    out += _NO_TAGS


def _text(text: str | None) -> bytes:
    if text is None:
        return b"\x00"
    encoded = text.encode()
    return uvarint(len(encoded) + 1) + encoded
