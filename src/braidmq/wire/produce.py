"""Produce, the broker's side, by hand: the one request whose cost is paid for every few messages a user
sends.

The generated codec would make an object for each topic and partition. Here a request becomes plain tuples
whose record batches are slices of the receive buffer, and an answer is written in one go, size prefix and
header included. What is safe in `codec` is safe here for the same reasons: one check at the end refuses
whatever ran past the view.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct, error
from typing import NamedTuple, NoReturn

from braidmq.wire.errors import ProtocolError, RecordError
from braidmq.wire.moved import Moved
from braidmq.wire.primitives import View, finish_string_length, finish_uvarint, skip_tagged_fields, uvarint

FLEXIBLE = 9
TOPIC_IDS = 13
"""From here on topics go by id instead of by name (KIP-516)."""
MOVED_FROM = 10
"""From here on an answer says who leads a partition that was asked of the wrong broker (KIP-951)."""
LEADER_TAG = 0

_int16 = Struct(">h").unpack_from
_int32 = Struct(">i").unpack_from
_index_and_length = Struct(">ii").unpack_from
_index_and_length_flexible = Struct(">iB").unpack_from
_acks_timeout_topics = Struct(">hii").unpack_from
_acks_timeout_topics_flexible = Struct(">hiB").unpack_from
_new = tuple.__new__

Partitions = list[tuple[int, View | None]]


class ProduceRequest(NamedTuple):
    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[tuple[str | None, bytes | None, Partitions]]
    """Of each topic its name, or from version 13 its id, and (partition, records)."""


class ProduceResult(NamedTuple):
    index: int  # type: ignore[assignment]  # hides tuple.index
    code: int
    base_offset: int
    append_time_ms: int
    log_start_offset: int
    message: str | None
    record_errors: Sequence[RecordError] = ()
    """Why the batch was refused, if single records are to blame."""


Results = Sequence[tuple[str | None, bytes | None, Sequence[ProduceResult]]]


def decode(view: View, at: int, version: int) -> ProduceRequest:
    """The request whose body begins at `at` and fills the view; anything else is a ProtocolError."""
    try:
        if version >= FLEXIBLE:
            request, at = _decode_flexible(view, at, version)
        else:
            request, at = _decode_classic(view, at)
    except (error, IndexError, UnicodeDecodeError) as reason:
        raise ProtocolError(f"Produce v{version}: {reason}") from None
    if at != len(view):
        raise ProtocolError(f"Produce v{version}: the body ends at byte {at}, the request at {len(view)}")
    return request


def _decode_flexible(view: View, at: int, version: int) -> tuple[ProduceRequest, int]:
    end = len(view)
    transactional_id = None
    length = view[at]
    at += 1
    if length > 127:
        length, at = finish_string_length(view, at, length)
    if length:
        stop = at + length - 1
        transactional_id = str(view[at:stop], "utf-8")
        at = stop
    acks, timeout_ms, count = _acks_timeout_topics_flexible(view, at)
    at += 7
    if count > 127:
        count, at = finish_uvarint(view, at, count)
    if not 0 < count <= end - at:
        _refuse_count(count - 1, end - at)
    topics: list[tuple[str | None, bytes | None, Partitions]] = []
    for _ in range(count - 1):
        name = topic_id = None
        if version >= TOPIC_IDS:
            stop = at + 16
            topic_id = bytes(view[at:stop])
        else:
            length = view[at]
            at += 1
            if length > 127:
                length, at = finish_string_length(view, at, length)
            if not length:
                raise ProtocolError("a topic without a name")
            stop = at + length - 1
            name = str(view[at:stop], "utf-8")
        partitions, at = _decode_partitions(view, stop, end)
        topics.append((name, topic_id, partitions))
        tags = view[at]
        at += 1
        if tags:
            at = skip_tagged_fields(view, at, tags)
    tags = view[at]
    at += 1
    if tags:
        at = skip_tagged_fields(view, at, tags)
    return _new(ProduceRequest, (transactional_id, acks, timeout_ms, topics)), at


def _decode_partitions(view: View, at: int, end: int) -> tuple[Partitions, int]:
    count = view[at]
    at += 1
    if count > 127:
        count, at = finish_uvarint(view, at, count)
    if not 0 < count <= end - at:
        _refuse_count(count - 1, end - at)
    partitions: Partitions = []
    for _ in range(count - 1):
        index, length = _index_and_length_flexible(view, at)
        at += 5
        if length > 127:
            length, at = finish_uvarint(view, at, length)
        if length:
            stop = at + length - 1
            partitions.append((index, view[at:stop]))
            at = stop
        else:
            partitions.append((index, None))
        tags = view[at]
        at += 1
        if tags:
            at = skip_tagged_fields(view, at, tags)
    return partitions, at


def _decode_classic(view: View, at: int) -> tuple[ProduceRequest, int]:
    end = len(view)
    transactional_id = None
    (length,) = _int16(view, at)
    at += 2
    if length >= 0:
        stop = at + length
        transactional_id = str(view[at:stop], "utf-8")
        at = stop
    elif length != -1:
        raise ProtocolError(f"a transactional id of length {length}")
    acks, timeout_ms, count = _acks_timeout_topics(view, at)
    at += 10
    if not 0 <= count <= end - at:
        _refuse_count(count, end - at)
    topics: list[tuple[str | None, bytes | None, Partitions]] = []
    for _ in range(count):
        (length,) = _int16(view, at)
        if length < 0:
            raise ProtocolError("a topic without a name")
        at += 2
        stop = at + length
        name = str(view[at:stop], "utf-8")
        (count,) = _int32(view, stop)
        at = stop + 4
        if not 0 <= count <= end - at:
            _refuse_count(count, end - at)
        partitions: Partitions = []
        for _ in range(count):
            index, length = _index_and_length(view, at)
            at += 8
            if length >= 0:
                stop = at + length
                partitions.append((index, view[at:stop]))
                at = stop
            elif length == -1:
                partitions.append((index, None))
            else:
                raise ProtocolError(f"records of length {length}")
        topics.append((name, None, partitions))
    return _new(ProduceRequest, (transactional_id, acks, timeout_ms, topics)), at


def _refuse_count(count: int, bytes_left: int) -> NoReturn:
    # An element takes a byte at least, so a count above what is left is a lie.
    raise ProtocolError(f"an array of {count} elements in {bytes_left} bytes")


_size_into = Struct(">i").pack_into
_head = Struct(">ii").pack
_head_flexible = Struct(">iiB").pack
_count = Struct(">i").pack
_name_length = Struct(">h").pack
_result_3 = Struct(">ihqq").pack
_result_5 = Struct(">ihqqq").pack
_result_8 = Struct(">ihqqqih").pack
_result_9 = Struct(">ihqqqBBB").pack
_end_flexible = Struct(">iB").pack


def encode_response(
    version: int, correlation_id: int, topics: Results, throttle_ms: int = 0, moved: Moved | None = None
) -> bytes:
    """The whole answer as it goes out: size prefix, header and body; `moved` is for versions from 10 on."""
    if version < FLEXIBLE:
        return _encode_classic(version, correlation_id, topics, throttle_ms)
    count = len(topics) + 1
    out = bytearray(_head_flexible(0, correlation_id, 0))
    out += bytes((count,)) if count < 128 else uvarint(count)
    for name, topic_id, results in topics:
        if version >= TOPIC_IDS:
            assert topic_id is not None
            out += topic_id
        else:
            assert name is not None
            encoded = name.encode()
            count = len(encoded) + 1
            if count < 128:
                out.append(count)
            else:
                out += uvarint(count)
            out += encoded
        count = len(results) + 1
        if count < 128:
            out.append(count)
        else:
            out += uvarint(count)
        for index, code, base_offset, append_time_ms, log_start_offset, message, blamed in results:
            if message is None and not blamed:
                # No errors of single records (an empty array), no message, no tagged fields.
                out += _result_9(index, code, base_offset, append_time_ms, log_start_offset, 1, 0, 0)
            else:
                out += _result_5(index, code, base_offset, append_time_ms, log_start_offset)
                out += uvarint(len(blamed) + 1)
                for at, why in blamed:
                    out += _count(at) + _compact(why) + b"\0"
                out += _compact(message)
                topic = topic_id if version >= TOPIC_IDS else name
                out += b"\0" if moved is None else moved.leader_tags(LEADER_TAG, topic, index)
        out.append(0)
    if moved is None:
        out += _end_flexible(throttle_ms, 0)
    else:
        out += _count(throttle_ms) + moved.node_tags()
    _size_into(out, 0, len(out) - 4)
    return bytes(out)


def _compact(text: str | None) -> bytes:
    if text is None:
        return b"\0"
    encoded = text.encode()
    return uvarint(len(encoded) + 1) + encoded


def _nullable(text: str | None) -> bytes:
    if text is None:
        return b"\xff\xff"
    encoded = text.encode()
    return _name_length(len(encoded)) + encoded


def _encode_classic(version: int, correlation_id: int, topics: Results, throttle_ms: int) -> bytes:
    out = bytearray(_head(0, correlation_id))
    out += _count(len(topics))
    for name, _, results in topics:
        assert name is not None
        encoded = name.encode()
        out += _name_length(len(encoded))
        out += encoded
        out += _count(len(results))
        for index, code, base_offset, append_time_ms, log_start_offset, message, blamed in results:
            if version < 5:
                out += _result_3(index, code, base_offset, append_time_ms)
            elif version < 8:
                out += _result_5(index, code, base_offset, append_time_ms, log_start_offset)
            elif message is None and not blamed:
                out += _result_8(index, code, base_offset, append_time_ms, log_start_offset, 0, -1)
            else:
                out += _result_5(index, code, base_offset, append_time_ms, log_start_offset)
                out += _count(len(blamed))
                for at, why in blamed:
                    out += _count(at) + _nullable(why)
                out += _nullable(message)
    out += _count(throttle_ms)
    _size_into(out, 0, len(out) - 4)
    return bytes(out)
