"""The verbs of transactions that the load generator speaks, as librdkafka does: partitions are added first.

InitProducerId 4, AddPartitionsToTxn 3, Produce 9 with a producer's sequence, EndTxn 3.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from crc32c import crc32c

from .answer import Answer
from .wire import ATTRIBUTES_AT, PRODUCE, PRODUCE_VERSION, compact, frame, uvarint
from .wire_groups import NO_TAGS, array

INIT_PRODUCER_ID, ADD_PARTITIONS_TO_TXN, END_TXN = 22, 24, 26
TIMEOUT_MS = 60_000
TRANSACTIONAL = 0x10
CRC_AT, PRODUCER_AT = 17, 43
_producer = struct.Struct(">qhi")


class Producer(NamedTuple):
    id: int
    epoch: int


def init_producer_frame(transactional_id: str) -> bytes:
    body = compact(transactional_id.encode()) + struct.pack(">iqh", TIMEOUT_MS, -1, -1)
    return frame(INIT_PRODUCER_ID, 4, body + NO_TAGS)


def inited(answer: bytes) -> tuple[int, Producer]:
    read = Answer(answer)
    read.int32()
    return read.int16(), Producer(read.int64(), read.int16())


def add_partitions_frame(transactional_id: str, producer: Producer, topic: str, partitions: range) -> bytes:
    numbers = uvarint(len(partitions) + 1) + struct.pack(f">{len(partitions)}i", *partitions)
    body = compact(transactional_id.encode()) + struct.pack(">qh", *producer)
    return frame(
        ADD_PARTITIONS_TO_TXN, 3, body + array([compact(topic.encode()) + numbers + NO_TAGS]) + NO_TAGS
    )


def added_error(answer: bytes) -> int:
    """The first error code of any partition."""
    read = Answer(answer)
    read.int32()
    found = 0
    for _ in read.items():
        read.blob()
        for _ in read.items():
            read.int32()
            code = read.int16()
            found = found or code
    return found


def end_frame(transactional_id: str, producer: Producer) -> bytes:
    """Commits."""
    body = compact(transactional_id.encode()) + struct.pack(">qhb", *producer, 1)
    return frame(END_TXN, 3, body + NO_TAGS)


def end_error(answer: bytes) -> int:
    return int(struct.unpack_from(">h", answer, 9)[0])


def transactional_batch(batch: bytes, producer: Producer, sequence: int) -> bytes:
    """A plain batch as the transactional producer sends it."""
    made = bytearray(batch)
    struct.pack_into(">h", made, ATTRIBUTES_AT, TRANSACTIONAL)
    _producer.pack_into(made, PRODUCER_AT, producer.id, producer.epoch, sequence)
    struct.pack_into(">I", made, CRC_AT, crc32c(memoryview(made)[ATTRIBUTES_AT:]))
    return bytes(made)


def transactional_produce_frame(transactional_id: str, topic: str, partition: int, batch: bytes) -> bytes:
    body = compact(transactional_id.encode()) + struct.pack(">hi", -1, TIMEOUT_MS)
    body += uvarint(2) + compact(topic.encode()) + uvarint(2)
    body += struct.pack(">i", partition) + uvarint(len(batch) + 1) + batch + b"\0\0\0"
    return frame(PRODUCE, PRODUCE_VERSION, body)
