"""What is fuzzed, and what must hold for any input.

A target takes bytes. It returns when every promise held and raises when one was broken: `Broken` for a
promise of ours, anything else for an exception that bytes from outside must not be able to cause. The one
promise that all share: any bytes either parse or raise `ProtocolError` or `ApiError`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from crc32c import crc32c

from braidmq.wire import fetch, header, produce, records
from braidmq.wire.api import REQUESTS, RESPONSES, Api
from braidmq.wire.compress import Codec
from braidmq.wire.errors import ApiError, ProtocolError
from braidmq.wire.schema import Message, decode, encode

Target = Callable[[bytes], None]
REFUSALS = (ProtocolError, ApiError)
BATCH_BYTES_MAX = 1 << 20
# Far below what the broker allows, so that a bomb costs a run little time and stands out in its memory.
INFLATED_BYTES_MAX = 1 << 20
PREFIXED_BYTES_MAX = 160
SELECTOR_BYTES = 2


class Broken(AssertionError):
    """A promise that an input has broken."""


def require(held: bool, promise: str) -> None:
    if not held:
        raise Broken(promise)


def refused(call: Callable[..., Any], *arguments: Any) -> bool:
    """Whether the call refuses its input in one of the two proper ways."""
    try:
        call(*arguments)
    except REFUSALS:
        return True
    return False


# Record batches


def batches(content: bytes) -> None:
    """A batch as it came, and again with length, magic and CRC made right, to reach what lies behind."""
    records.INFLATED_BYTES_MAX = INFLATED_BYTES_MAX
    _judge_batch(content)
    if len(content) >= records.HEADER_BYTES:
        _judge_batch(sealed(content))


def sealed(content: bytes) -> bytes:
    """`content` with the fields that guard a batch in agreement with the rest of it."""
    out = bytearray(content)
    struct.pack_into(">i", out, 8, len(out) - 12)
    out[16] = 2
    struct.pack_into(">I", out, 17, crc32c(bytes(out[21:])))
    return bytes(out)


def _judge_batch(content: bytes) -> None:
    view = memoryview(bytearray(content))
    produced = not refused(records.check_produced, view, BATCH_BYTES_MAX)
    stored = records.check_stored(view, 0, len(view)) is not None
    require(
        (records.fault(view, 0, len(view)) is None) == stored, "a fault is named exactly when there is one"
    )
    require(
        stored or not produced or records.parse_header(view).base_offset < 0, "what is taken in can be stored"
    )
    if stored:
        _judge_stored(view, content)
    if not refused(lambda: list(records.records(view))):
        _judge_readable(view)


def _judge_stored(view: memoryview, content: bytes) -> None:
    size = records.parse_header(view).size
    for end in range(min(size, PREFIXED_BYTES_MAX)):
        require(records.check_stored(view, 0, end) is None, "no part of a batch passes for a batch")
    copy = bytearray(content[:size])
    records.stamp(copy, 7, 3)
    records.restamp_append_time(copy, 1_700_000_000_000)
    require(records.check_stored(copy, 0, size) is not None, "a batch that is stamped stays sound")


def _judge_readable(view: memoryview) -> None:
    found = list(records.records(view))
    for codec in Codec:
        try:
            repacked = records.recompress(view, codec)
        except REFUSALS:
            raise Broken("what can be read can be recompressed") from None
        require(list(records.records(repacked)) == found, "recompressing changes no record")
    if found:
        rows = [(record.key, record.value, record.headers, record.timestamp) for record in found]
        if max(row[3] for row in rows) - min(row[3] for row in rows) < 2**63:
            rebuilt = [tuple(record[1:]) for record in records.records(records.build_batch(rows))]
            require(rebuilt == [tuple(record[1:]) for record in found], "what was read can be built again")


# Messages


def spoken() -> list[tuple[type[Message], int]]:
    """Every message in every version, in a fixed order; an input's first bytes choose one."""
    classes = [table[api] for table in (REQUESTS, RESPONSES) for api in sorted(table)]
    return [(cls, version) for cls in classes for version in range(cls.versions[0], cls.versions[1] + 1)]


SPOKEN = spoken()


def selector(cls: type[Message], version: int) -> bytes:
    """The first bytes of an input that is meant for this message."""
    return SPOKEN.index((cls, version)).to_bytes(SELECTOR_BYTES, "big")


def messages(content: bytes) -> None:
    """The input as a request header, and, after the bytes that choose one, as the body of a message."""
    refused(header.parse_request, memoryview(content))
    cls, version = SPOKEN[int.from_bytes(content[:SELECTOR_BYTES], "big") % len(SPOKEN)]
    body = content[SELECTOR_BYTES:]
    try:
        message = decode(cls, version, memoryview(body))
    except REFUSALS:
        message = None
    if message is not None:
        _judge_message(message, version, body)
    if cls in (REQUESTS[Api.PRODUCE], REQUESTS[Api.FETCH]):
        _judge_by_hand(cls, version, body, message)


def _judge_message(message: Message, version: int, body: bytes) -> None:
    # Unknown tagged fields are dropped on reading, so the second writing is the one that must be stable.
    written = encode(message, version)
    again = decode(type(message), version, written)
    require(encode(again, version) == written, "what was read is written and read the same")
    for end in range(min(len(body), PREFIXED_BYTES_MAX)):
        require(
            refused(decode, type(message), version, body[:end]), "no part of a message passes for a message"
        )


def _judge_by_hand(cls: type[Message], version: int, body: bytes, by_table: Any) -> None:
    """Produce and Fetch have a second reader, written by hand, which must find what the table finds.

    It skips the tagged fields the broker has no use for, so it may take a request the table refuses.
    """
    is_produce = cls is REQUESTS[Api.PRODUCE]
    read: Callable[..., Any] = produce.decode if is_produce else fetch.decode
    try:
        by_hand = read(memoryview(body), 0, version)
    except REFUSALS:
        require(by_table is None, f"{cls.__name__} v{version} is read by hand too")
        return
    if by_table is not None:
        found = _produced(by_table, version) if is_produce else _fetched(by_table, version)
        require(by_hand == found, f"both readers of {cls.__name__} v{version} find the same")


def _produced(message: Any, version: int) -> tuple[Any, ...]:
    topics = [
        (
            *_topic(topic.name, topic.topic_id, version, 13),
            [(each.index, each.records) for each in topic.partition_data],
        )
        for topic in message.topic_data
    ]
    return message.transactional_id, message.acks, message.timeout_ms, topics


def _fetched(message: Any, version: int) -> tuple[Any, ...]:
    topics = [
        (
            *_topic(topic.topic, topic.topic_id, version, 13),
            [
                (
                    each.partition, each.current_leader_epoch, each.fetch_offset,
                    each.last_fetched_epoch, each.log_start_offset, each.partition_max_bytes,
                )
                for each in topic.partitions
            ],
        )
        for topic in message.topics
    ]  # fmt: skip
    forgotten = [
        (*_topic(topic.topic, topic.topic_id, version, 13), topic.partitions)
        for topic in message.forgotten_topics_data
    ]
    state = message.replica_state
    replica_id = message.replica_id if version < 15 else -1 if state is None else state.replica_id
    return (
        replica_id, message.max_wait_ms, message.min_bytes, message.max_bytes, message.isolation_level,
        message.session_id, message.session_epoch, topics, forgotten, message.rack_id,
    )  # fmt: skip


def _topic(name: str, topic_id: bytes, version: int, ids_from: int) -> tuple[str | None, bytes | None]:
    return (None, topic_id) if version >= ids_from else (name, None)
