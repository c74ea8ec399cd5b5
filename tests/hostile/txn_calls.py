"""Well-formed requests to a transaction coordinator, in classic versions."""

from __future__ import annotations

from typing import NamedTuple

from tests.hostile import batches, raw
from tests.hostile.group_calls import flexible
from tests.hostile.raw import NO_TAGS, Connection, array, compact, i8, i16, i32, i64, string

NOT_LEADER = 6
ADD_PARTITIONS, ADD_OFFSETS, END_TXN, TXN_OFFSET_COMMIT, LIST_TRANSACTIONS = 24, 25, 26, 28, 66
WRITE_MARKERS = 27


class Producer(NamedTuple):
    """Who writes, under which name."""

    code: int
    transactional_id: str
    producer_id: int
    epoch: int

    @property
    def named(self) -> bytes:
        return string(self.transactional_id) + i64(self.producer_id) + i16(self.epoch)


def init(connection: Connection, transactional_id: str, timeout_ms: int = 60_000) -> Producer:
    """InitProducerId v1."""
    answer = connection.call(raw.INIT_PRODUCER_ID, 1, string(transactional_id) + i32(timeout_ms))
    answer.i32()
    return Producer(answer.i16(), transactional_id, answer.i64(), answer.i16())


def add_partitions(
    connection: Connection, producer: Producer, topic: str, *partitions: int, version: int = 1
) -> dict[int, int]:
    """AddPartitionsToTxn: the code of each partition."""
    body = producer.named + array(string(topic) + array(*map(i32, partitions)))
    answer = connection.call(ADD_PARTITIONS, version, body)
    answer.i32()
    assert answer.i32() == 1
    answer.string()
    return {answer.i32(): answer.i16() for _ in range(answer.i32())}


def add_offsets(connection: Connection, producer: Producer, group: str) -> int:
    """AddOffsetsToTxn v1: the code."""
    answer = connection.call(ADD_OFFSETS, 1, producer.named + string(group))
    answer.i32()
    return answer.i16()


def end(connection: Connection, producer: Producer, *, commit: bool, version: int = 1) -> int:
    """EndTxn: the code."""
    answer = connection.call(END_TXN, version, producer.named + i8(int(commit)))
    answer.i32()
    return answer.i16()


def commit_offset(connection: Connection, producer: Producer, group: str, topic: str, text: str = "") -> int:
    """TxnOffsetCommit v2 of one partition, without a member: the code."""
    spot = i32(0) + i64(5) + i32(-1) + string(text)
    body = string(producer.transactional_id) + string(group) + i64(producer.producer_id)
    body += i16(producer.epoch) + array(string(topic) + array(spot))
    answer = connection.call(TXN_OFFSET_COMMIT, 2, body)
    answer.i32()
    assert answer.i32() == 1
    answer.string()
    assert answer.i32() == 1
    answer.i32()
    return answer.i16()


def produce(
    connection: Connection,
    producer: Producer,
    topic: str,
    *,
    sequence: int = 0,
    attributes: int = batches.TRANSACTIONAL,
    named: str | None = None,
) -> int:
    """Produce v7 of one transactional record: the code.

    Kafka says NOT_LEADER_OR_FOLLOWER while it has no connection to itself over which to ask the coordinator.
    """
    batch = batches.simple(
        b"v", attributes=attributes, producer_id=producer.producer_id, epoch=producer.epoch, sequence=sequence
    )
    name = producer.transactional_id if named is None else named
    records = array(string(topic) + array(i32(0) + i32(len(batch)) + batch))
    code = NOT_LEADER
    while code == NOT_LEADER:
        answer = connection.call(raw.PRODUCE, 7, string(name) + i16(-1) + i32(10_000) + records)
        assert answer.i32() == 1
        answer.string()
        assert answer.i32() == 1
        answer.i32()
        code = answer.i16()
    return code


def list_by_pattern(connection: Connection, pattern: str) -> int:
    """ListTransactions v2: the code."""
    no_filters = b"\x01" + b"\x01" + i64(-1)
    answer = flexible(connection, LIST_TRANSACTIONS, 2, no_filters + compact(pattern) + NO_TAGS)
    answer.i32()
    return answer.i16()


def write_marker(connection: Connection, producer: Producer, topic: str, coordinator_epoch: int) -> int:
    """WriteTxnMarkers v1 of an abort in partition 0: the code."""
    place = compact(topic) + b"\x02" + i32(0) + NO_TAGS
    marker = i64(producer.producer_id) + i16(producer.epoch) + i8(0) + b"\x02" + place
    body = b"\x02" + marker + i32(coordinator_epoch) + NO_TAGS + NO_TAGS
    answer = flexible(connection, WRITE_MARKERS, 1, body)
    assert answer.i8() == 2
    answer.i64()
    assert answer.i8() == 2
    answer.compact()
    assert answer.i8() == 2
    assert answer.i32() == 0
    return answer.i16()
