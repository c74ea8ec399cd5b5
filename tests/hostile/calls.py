"""Well-formed requests with chosen contents: what an attacker sends, and what the next client needs."""

from __future__ import annotations

from typing import NamedTuple

from tests.hostile import raw
from tests.hostile.raw import Connection, Reader, array, i8, i16, i32, i64, string


class Produced(NamedTuple):
    code: int
    offset: int


class Fetched(NamedTuple):
    code: int
    high_watermark: int
    records: bytes


def produce_body(topic: str | bytes, records: bytes | None, partition: int = 0, acks: int = -1) -> bytes:
    """Produce v7 with one partition."""
    data = i32(-1) if records is None else i32(len(records)) + records
    return raw.NULL_STRING + i16(acks) + i32(10_000) + array(string(topic) + array(i32(partition) + data))


def produce(
    connection: Connection, topic: str | bytes, records: bytes | None, partition: int = 0, acks: int = -1
) -> Produced:
    answer = connection.call(raw.PRODUCE, 7, produce_body(topic, records, partition, acks))
    assert answer.i32() == 1
    answer.string()
    assert answer.i32() == 1
    answer.i32()
    return Produced(answer.i16(), answer.i64())


def produce_message(connection: Connection, topic: str, records: bytes) -> tuple[int, str | None]:
    """Produce v8, whose answer carries a text: (code, text)."""
    answer = connection.call(raw.PRODUCE, 8, produce_body(topic, records))
    assert answer.i32() == 1
    answer.string()
    assert answer.i32() == 1
    answer.i32()
    code = answer.i16()
    answer.take(8 * 3)
    for _ in range(answer.i32()):
        answer.i32()
        answer.string()
    return code, answer.string()


def fetch_body(
    topic: str | bytes,
    offset: int,
    partition: int = 0,
    *,
    replica_id: int = -1,
    wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 1 << 20,
    session: tuple[int, int] = (0, -1),
) -> bytes:
    """Fetch v11 of one partition."""
    head = i32(replica_id) + i32(wait_ms) + i32(min_bytes) + i32(max_bytes) + i8(0)
    home = i32(partition) + i32(-1) + i64(offset) + i64(-1) + i32(max_bytes)
    return (
        head + i32(session[0]) + i32(session[1]) + array(string(topic) + array(home)) + array() + string("")
    )


def fetch(
    connection: Connection, topic: str, offset: int, partition: int = 0, replica_id: int = -1
) -> Fetched:
    body = fetch_body(topic, offset, partition, replica_id=replica_id)
    return fetched(connection.call(raw.FETCH, 11, body))


def fetched(answer: Reader) -> Fetched:
    answer.i32()
    top_code = answer.i16()
    answer.i32()
    if answer.i32() == 0:
        return Fetched(top_code, -1, b"")
    answer.string()
    assert answer.i32() == 1
    answer.i32()
    code, high_watermark = answer.i16(), answer.i64()
    answer.take(16)
    aborted = answer.i32()
    answer.take(max(aborted, 0) * 16)
    answer.i32()
    return Fetched(code, high_watermark, answer.data())


def list_offset(
    connection: Connection, topic: str, stamp_ms: int = -1, partition: int = 0
) -> tuple[int, int]:
    """ListOffsets v1: (code, offset)."""
    body = i32(-1) + array(string(topic) + array(i32(partition) + i64(stamp_ms)))
    answer = connection.call(raw.LIST_OFFSETS, 1, body)
    assert answer.i32() == 1
    answer.string()
    assert answer.i32() == 1
    answer.i32()
    code = answer.i16()
    answer.i64()
    return code, answer.i64()


def create_topic(
    connection: Connection,
    topic: str | bytes,
    partitions: int = 1,
    replicas: int = 1,
    config: dict[str, str] | None = None,
) -> tuple[int, str | None]:
    """CreateTopics v4: (code, text)."""
    entries = array(*(string(name) + string(value) for name, value in (config or {}).items()))
    plan = string(topic) + i32(partitions) + i16(replicas) + array() + entries
    answer = connection.call(raw.CREATE_TOPICS, 4, array(plan) + i32(10_000) + i8(0))
    answer.i32()
    assert answer.i32() == 1
    answer.string()
    return answer.i16(), answer.string()


def delete_topic(connection: Connection, topic: str | bytes) -> int:
    """DeleteTopics v3: the code."""
    answer = connection.call(raw.DELETE_TOPICS, 3, array(string(topic)) + i32(10_000))
    answer.i32()
    assert answer.i32() == 1
    answer.string()
    return answer.i16()


def metadata_code(connection: Connection, topic: str | bytes, create: bool = True) -> int:
    """Metadata v4 of one topic: its code."""
    answer = connection.call(raw.METADATA, 4, array(string(topic)) + i8(int(create)))
    answer.i32()
    for _ in range(answer.i32()):
        answer.i32()
        answer.string()
        answer.i32()
        answer.string()
    answer.string()
    answer.i32()
    assert answer.i32() == 1
    return answer.i16()


def new_producer_id(connection: Connection) -> tuple[int, int, int]:
    """InitProducerId v1 without a transactional id: (code, id, epoch)."""
    answer = connection.call(raw.INIT_PRODUCER_ID, 1, raw.NULL_STRING + i32(60_000))
    answer.i32()
    return answer.i16(), answer.i64(), answer.i16()
