"""Batches of the stock clients' own builders, read by us, and ours, read by their readers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from aiokafka.record import default_records as aiokafka_records
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record import default_records as kafka_python_records

from braidmq.wire import records
from braidmq.wire.compress import Codec
from braidmq.wire.records import NewRecord, build_batch, check_produced

MAX = 1 << 20
NOW = 1_700_000_000_000
ROWS: list[NewRecord] = [
    (b"key %d" % number, b"value " * number, [("number", b"%d" % number), ("null", None)], NOW + number)
    for number in range(300)
]
ROWS += [(None, None, [], NOW - 1), (b"", b"", [("", b"")], NOW + 100_000)]

Builder = Callable[..., Any]
BUILDERS: dict[str, Builder] = {
    "aiokafka compiled": aiokafka_records.DefaultRecordBatchBuilder,
    "aiokafka python": aiokafka_records._DefaultRecordBatchBuilderPy,
    "kafka-python": kafka_python_records.DefaultRecordBatchBuilder,
}
READERS: dict[str, Builder] = {
    "aiokafka compiled": aiokafka_records.DefaultRecordBatch,
    "aiokafka python": aiokafka_records._DefaultRecordBatchPy,
    "kafka-python": kafka_python_records.DefaultRecordBatch,
}

optional_bytes = st.none() | st.binary(max_size=300)
row_lists = st.lists(
    st.tuples(
        optional_bytes,
        optional_bytes,
        st.lists(st.tuples(st.text(max_size=10), optional_bytes), max_size=4),
        st.integers(0, 2**45),
    ),
    min_size=1,
    max_size=30,
)


def stock_batch(build: Builder, rows: list[NewRecord], codec: Codec) -> bytes:
    builder = build(
        magic=2, compression_type=int(codec), is_transactional=0,
        producer_id=4711, producer_epoch=3, base_sequence=40, batch_size=10**9,
    )  # fmt: skip
    for offset, (key, value, headers, timestamp) in enumerate(rows):
        assert builder.append(offset, timestamp, key, value, list(headers)) is not None
    return bytes(builder.build())


def rows_of(batch: bytes) -> list[tuple[object, ...]]:
    return [(record.key, record.value, record.headers, record.timestamp) for record in records.records(batch)]


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("client", BUILDERS)
def test_a_stock_client_s_batch_is_checked_and_read(client: str, codec: Codec) -> None:
    """F1: headers, sequence and every record of what aiokafka and kafka-python write."""
    batch = stock_batch(BUILDERS[client], ROWS, codec)
    header = check_produced(memoryview(batch), MAX)
    assert (header.codec, header.record_count, header.last_offset_delta) == (codec, len(ROWS), len(ROWS) - 1)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (4711, 3, 40)
    assert header.max_timestamp == max(row[3] for row in ROWS)
    assert rows_of(batch) == ROWS


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("client", READERS)
def test_our_batch_is_read_by_a_stock_client(client: str, codec: Codec) -> None:
    """F1: their readers find our CRC right and every record as it was given."""
    batch = build_batch(ROWS, codec, 40, 4711, 3, base_offset=1000)
    reader = READERS[client](bytes(batch))
    assert reader.validate_crc()
    found = list(reader)
    assert [(record.key, record.value, list(record.headers), record.timestamp) for record in found] == ROWS
    assert [record.offset for record in found] == list(range(1000, 1000 + len(ROWS)))


@pytest.mark.parametrize("client", BUILDERS)
@settings(max_examples=40, deadline=None)
@given(rows=row_lists)
def test_uncompressed_batches_are_equal_byte_for_byte(client: str, rows: list[NewRecord]) -> None:
    """F1: the format leaves no choice, so every builder writes the same bytes; only the epoch is free."""
    ours = build_batch(rows, Codec.NONE, 40, 4711, 3)
    theirs = bytearray(stock_batch(BUILDERS[client], rows, Codec.NONE))
    records.stamp(ours, 0, 0)
    records.stamp(theirs, 0, 0)
    assert ours == theirs
