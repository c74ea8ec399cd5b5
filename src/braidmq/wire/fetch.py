"""Fetch, the broker's side, by hand: requests become plain tuples, and an answer is a list of parts to send.

Record batches never pass through here: a part of the answer that is a file slice is placed between the
bytes around it and counted by its `size`, so that the reactor can hand it to `sendfile`.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct, error
from typing import NamedTuple, Protocol

from braidmq.wire.errors import ProtocolError
from braidmq.wire.moved import Moved
from braidmq.wire.primitives import (
    View,
    check_tag_count,
    finish_string_length,
    finish_uvarint,
    read_uvarint,
    skip_tagged_fields,
    uvarint,
)

FLEXIBLE = 12
TOPIC_IDS = 13
"""From here on topics go by id instead of by name (KIP-516)."""
REPLICA_STATE = 15
"""From here on a follower says who it is in a tagged field, and everybody else says nothing (KIP-903)."""
LEADER_TAG = 1
NODES_FROM = 16
"""From here on an answer says where leaders are; who they are, every flexible version says (KIP-951)."""

CONSUMER = -1
"""The replica id of a client that is no replica."""


class FetchPartition(NamedTuple):
    index: int  # type: ignore[assignment]  # hides tuple.index
    leader_epoch: int
    offset: int
    last_fetched_epoch: int
    log_start_offset: int
    max_bytes: int


Topics = list[tuple[str | None, bytes | None, list[FetchPartition]]]
Forgotten = list[tuple[str | None, bytes | None, list[int]]]


class FetchRequest(NamedTuple):
    replica_id: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation: int
    session_id: int
    session_epoch: int
    topics: Topics
    forgotten: Forgotten
    rack_id: str


class SizedSlice(Protocol):
    """Bytes that lie in a file: the encoder only needs to know how many."""

    @property
    def size(self) -> int: ...


Part = bytes | bytearray | memoryview | SizedSlice
"""A piece of an answer, to be sent as it is."""


class FetchResult(NamedTuple):
    index: int  # type: ignore[assignment]  # hides tuple.index
    code: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: list[tuple[int, int]] | None
    """(producer id, first offset) of aborted transactions; None is null: the reader did not ask."""
    preferred_replica: int
    records: Part | None
    """None and b"" both go out as zero bytes of records, as Kafka answers."""


Results = Sequence[tuple[str | None, bytes | None, Sequence[FetchResult]]]

_new = tuple.__new__
_int16 = Struct(">h").unpack_from
_int32 = Struct(">i").unpack_from
_int64 = Struct(">q").unpack_from
_head_4 = Struct(">iiiib").unpack_from
_head_7 = Struct(">iiiibii").unpack_from
_head_12 = Struct(">iiiibiiB").unpack_from
_head_15 = Struct(">iiibiiB").unpack_from
_partition_4 = Struct(">iqi").unpack_from
_partition_5 = Struct(">iqqi").unpack_from
_partition_9 = Struct(">iiqqi").unpack_from
_partition_12 = Struct(">iiqiqiB").unpack_from


def decode(view: View, at: int, version: int) -> FetchRequest:
    """The request whose body begins at `at` and fills the view; anything else is a ProtocolError."""
    try:
        if version >= FLEXIBLE:
            request, at = _decode_flexible(view, at, version)
        else:
            request, at = _decode_classic(view, at, version)
    except (error, IndexError, UnicodeDecodeError) as reason:
        raise ProtocolError(f"Fetch v{version}: {reason}") from None
    if at != len(view):
        raise ProtocolError(f"Fetch v{version}: the body ends at byte {at}, the request at {len(view)}")
    return request


def _decode_flexible(view: View, at: int, version: int) -> tuple[FetchRequest, int]:
    replica_id = CONSUMER
    if version >= REPLICA_STATE:
        max_wait_ms, min_bytes, max_bytes, isolation, session_id, session_epoch, count = _head_15(view, at)
        at += 22
    else:
        replica_id, max_wait_ms, min_bytes, max_bytes, isolation, session_id, session_epoch, count = _head_12(
            view, at
        )
        at += 26
    topics, at = _decode_topics(view, at, version, count)
    forgotten, at = _decode_forgotten(view, at, version)
    rack_id, at = _compact_string(view, at)
    tags = view[at]
    at += 1
    if tags:
        replica_id, at = _decode_tags(view, at, version, tags, replica_id)
    values = (
        replica_id, max_wait_ms, min_bytes, max_bytes, isolation,
        session_id, session_epoch, topics, forgotten, rack_id,
    )  # fmt: skip
    return _new(FetchRequest, values), at


def _decode_topics(view: View, at: int, version: int, count: int) -> tuple[Topics, int]:
    if count > 127:
        count, at = finish_uvarint(view, at, count)
    topics: Topics = []
    for _ in range(_checked(count - 1, len(view) - at)):
        name, topic_id, at = _decode_topic(view, at, version)
        count, at = read_uvarint(view, at)
        partitions = []
        for _ in range(_checked(count - 1, len(view) - at)):
            index, epoch, offset, fetched_epoch, log_start, max_bytes, tags = _partition_12(view, at)
            at += 33
            if tags:
                at = skip_tagged_fields(view, at, tags)
            values = (index, epoch, offset, fetched_epoch, log_start, max_bytes)
            partitions.append(_new(FetchPartition, values))
        at = _skip_tags(view, at)
        topics.append((name, topic_id, partitions))
    return topics, at


def _decode_forgotten(view: View, at: int, version: int) -> tuple[Forgotten, int]:
    count, at = read_uvarint(view, at)
    forgotten: Forgotten = []
    for _ in range(_checked(count - 1, len(view) - at)):
        name, topic_id, at = _decode_topic(view, at, version)
        count, at = read_uvarint(view, at)
        indexes = []
        for _ in range(_checked(count - 1, len(view) - at)):
            indexes.append(_int32(view, at)[0])
            at += 4
        at = _skip_tags(view, at)
        forgotten.append((name, topic_id, indexes))
    return forgotten, at


def _decode_topic(view: View, at: int, version: int) -> tuple[str | None, bytes | None, int]:
    if version >= TOPIC_IDS:
        return None, bytes(view[at : at + 16]), at + 16
    name, at = _compact_string(view, at)
    return name, None, at


def _decode_tags(view: View, at: int, version: int, count: int, replica_id: int) -> tuple[int, int]:
    """The replica id from the tagged fields (tag 1 from version 15 on) and the position after them all."""
    if count > 127:
        count, at = finish_uvarint(view, at, count)
    check_tag_count(count)
    for _ in range(count):
        tag, at = read_uvarint(view, at)
        size, at = read_uvarint(view, at)
        stop = at + size
        if tag == 1 and version >= REPLICA_STATE:
            (replica_id,) = _int32(view, at)
            # After the id come the replica's epoch, which we have no use for, and tags.
            if _skip_tags(view, at + 12) != stop:
                raise ProtocolError("the replica state has a wrong size")
        at = stop
    return replica_id, at


def _compact_string(view: View, at: int) -> tuple[str, int]:
    length = view[at]
    at += 1
    if length > 127:
        length, at = finish_string_length(view, at, length)
    if not length:
        raise ProtocolError("null in place of a string")
    stop = at + length - 1
    return str(view[at:stop], "utf-8"), stop


def _skip_tags(view: View, at: int) -> int:
    tags = view[at]
    return skip_tagged_fields(view, at + 1, tags) if tags else at + 1


def _decode_classic(view: View, at: int, version: int) -> tuple[FetchRequest, int]:
    session_id, session_epoch = 0, -1
    if version >= 7:
        replica_id, max_wait_ms, min_bytes, max_bytes, isolation, session_id, session_epoch = _head_7(
            view, at
        )
        at += 25
    else:
        replica_id, max_wait_ms, min_bytes, max_bytes, isolation = _head_4(view, at)
        at += 17
    topics, at = _decode_topics_classic(view, at, version)
    forgotten: Forgotten = []
    if version >= 7:
        forgotten, at = _decode_forgotten_classic(view, at)
    rack_id = ""
    if version >= 11:
        rack_id, at = _string(view, at)
    values = (
        replica_id, max_wait_ms, min_bytes, max_bytes, isolation,
        session_id, session_epoch, topics, forgotten, rack_id,
    )  # fmt: skip
    return _new(FetchRequest, values), at


def _decode_topics_classic(view: View, at: int, version: int) -> tuple[Topics, int]:
    (count,) = _int32(view, at)
    at += 4
    topics: Topics = []
    for _ in range(_checked(count, len(view) - at)):
        name, at = _string(view, at)
        (count,) = _int32(view, at)
        at += 4
        partitions = []
        for _ in range(_checked(count, len(view) - at)):
            epoch = log_start = -1
            if version >= 9:
                index, epoch, offset, log_start, max_bytes = _partition_9(view, at)
                at += 28
            elif version >= 5:
                index, offset, log_start, max_bytes = _partition_5(view, at)
                at += 24
            else:
                index, offset, max_bytes = _partition_4(view, at)
                at += 16
            partitions.append(_new(FetchPartition, (index, epoch, offset, -1, log_start, max_bytes)))
        topics.append((name, None, partitions))
    return topics, at


def _decode_forgotten_classic(view: View, at: int) -> tuple[Forgotten, int]:
    (count,) = _int32(view, at)
    at += 4
    forgotten: Forgotten = []
    for _ in range(_checked(count, len(view) - at)):
        name, at = _string(view, at)
        (count,) = _int32(view, at)
        at += 4
        indexes = []
        for _ in range(_checked(count, len(view) - at)):
            indexes.append(_int32(view, at)[0])
            at += 4
        forgotten.append((name, None, indexes))
    return forgotten, at


def _string(view: View, at: int) -> tuple[str, int]:
    (length,) = _int16(view, at)
    if length < 0:
        raise ProtocolError("null in place of a string")
    stop = at + 2 + length
    return str(view[at + 2 : stop], "utf-8"), stop


def _checked(count: int, bytes_left: int) -> int:
    """An element takes a byte at least, so a count above what is left is a lie."""
    if count < 0 or count > bytes_left:
        raise ProtocolError(f"an array of {count} elements in {bytes_left} bytes")
    return count


_NO_TAGS = b"\0"
_size_into = Struct(">i").pack_into
_head_out_4 = Struct(">iii").pack
_head_out_7 = Struct(">iiihi").pack
_head_out_12 = Struct(">iiBihi").pack
_count = Struct(">i").pack
_name_length = Struct(">h").pack
_result_4 = Struct(">ihqq").pack
_result_5 = Struct(">ihqqq").pack
_transaction = Struct(">qq").pack
_transaction_flexible = Struct(">qqB").pack
_replica_and_length = Struct(">ii").pack


class AnswerParts:
    """An answer under construction: the bytes being written, and what is finished before them."""

    __slots__ = ("done", "out", "size")

    def __init__(self, head: bytes) -> None:
        self.done: list[Part] = []
        self.out = bytearray(head)
        self.size = 0

    def place(self, records: Part, size: int) -> None:
        """Puts `records` after what was written so far, as they are."""
        if self.out:
            self.done.append(self.out)
        self.done.append(records)
        self.size += len(self.out) + size
        self.out = bytearray()

    def finished(self) -> list[Part]:
        if self.out:
            self.done.append(self.out)
        self.size += len(self.out)
        first = self.done[0]
        assert isinstance(first, bytearray)
        _size_into(first, 0, self.size - 4)
        return self.done


def encode_response(
    version: int,
    correlation_id: int,
    throttle_ms: int,
    code: int,
    session_id: int,
    topics: Results,
    moved: Moved | None = None,
) -> list[Part]:
    """The whole answer in parts to send one after the other; the first begins with size prefix and header."""
    if version >= FLEXIBLE:
        parts = AnswerParts(_head_out_12(0, correlation_id, 0, throttle_ms, code, session_id))
        parts.out += uvarint(len(topics) + 1)
        for name, topic_id, results in topics:
            _encode_topic(parts.out, version, name, topic_id, len(results))
            for result in results:
                if moved is not None and result.code:
                    topic = topic_id if version >= TOPIC_IDS else name
                    _encode_result(parts, result, moved.leader_tags(LEADER_TAG, topic, result.index))
                else:
                    _encode_result(parts, result)
            parts.out.append(0)
        parts.out += moved.node_tags() if moved is not None and version >= NODES_FROM else _NO_TAGS
        return parts.finished()
    if version >= 7:
        parts = AnswerParts(_head_out_7(0, correlation_id, throttle_ms, code, session_id))
    else:
        parts = AnswerParts(_head_out_4(0, correlation_id, throttle_ms))
    parts.out += _count(len(topics))
    for name, _, results in topics:
        assert name is not None
        encoded = name.encode()
        parts.out += _name_length(len(encoded)) + encoded + _count(len(results))
        for result in results:
            _encode_result_classic(parts, version, result)
    return parts.finished()


def _encode_topic(out: bytearray, version: int, name: str | None, topic_id: bytes | None, count: int) -> None:
    if version >= TOPIC_IDS:
        assert topic_id is not None
        out += topic_id
    else:
        assert name is not None
        encoded = name.encode()
        out += uvarint(len(encoded) + 1)
        out += encoded
    out += uvarint(count + 1)


def _encode_result(parts: AnswerParts, result: FetchResult, tags: bytes = _NO_TAGS) -> None:
    index, code, high_watermark, stable_offset, log_start, aborted, preferred_replica, records = result
    out = parts.out
    out += _result_5(index, code, high_watermark, stable_offset, log_start)
    if aborted is None:
        out.append(0)
    else:
        out += uvarint(len(aborted) + 1)
        for producer_id, first_offset in aborted:
            out += _transaction_flexible(producer_id, first_offset, 0)
    out += _count(preferred_replica)
    size = _records_size(records)
    out += uvarint(size + 1)
    if records is not None and size:
        parts.place(records, size)
    parts.out += tags


def _encode_result_classic(parts: AnswerParts, version: int, result: FetchResult) -> None:
    index, code, high_watermark, stable_offset, log_start, aborted, preferred_replica, records = result
    out = parts.out
    if version >= 5:
        out += _result_5(index, code, high_watermark, stable_offset, log_start)
    else:
        out += _result_4(index, code, high_watermark, stable_offset)
    if aborted is None:
        out += _count(-1)
    else:
        out += _count(len(aborted))
        for transaction in aborted:
            out += _transaction(*transaction)
    size = _records_size(records)
    out += _replica_and_length(preferred_replica, size) if version >= 11 else _count(size)
    if records is not None and size:
        parts.place(records, size)


def _records_size(records: Part | None) -> int:
    if records is None:
        return 0
    return len(records) if isinstance(records, bytes | bytearray | memoryview) else records.size
