"""From columns to record batches: what is accepted, what is refused and how, and where rows end up."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from braidmq.client.cluster import TopicPartition
from braidmq.spark.options import OptionError
from braidmq.spark.sink import batches as sink_batches
from braidmq.spark.sink.batches import Batches, Records
from braidmq.spark.sink.columns import RowError, layout
from braidmq.spark.sink.options import Guarantee, parse_sink
from braidmq.wire.compress import Codec
from braidmq.wire.kernel import murmur2
from braidmq.wire.records import Record, records, seal_batch

NOW_MS = 1_800_000_000_000
ALL_COLUMNS = (
    "key binary, value binary, partition int, headers array<struct<key:string,value:binary>>,"
    " timestamp timestamp, tag string, deliverAt bigint"
)
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
TIME = pa.timestamp("us", "UTC")


TYPES = {
    "string": StringType(),
    "binary": BinaryType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "timestamp": TimestampType(),
    "map<string,binary>": MapType(StringType(), BinaryType()),
    "struct<a:int>": StructType([StructField("a", IntegerType())]),
} | {
    f"array<struct<{name}:string,value:binary>>": ArrayType(
        StructType([StructField(name, StringType()), StructField("value", BinaryType())])
    )
    for name in ("key", "name")
}


def schema(ddl: str) -> StructType:
    """Columns as in SQL; Spark's own parser would need a JVM."""
    columns = [column.split(" ") for column in ddl.split(", ")]
    return StructType([StructField(name, TYPES[kind]) for name, kind in columns])


class Sent:
    """Takes finished batches, packed or not, and gives them back as records."""

    def __init__(self, codec: Codec = Codec.NONE) -> None:
        self.codec = codec
        self.sizes: list[int] = []
        self.records: dict[TopicPartition, list[Record]] = defaultdict(list)

    def __call__(self, at: TopicPartition, batch: Records) -> bool:
        self.sizes.append(len(batch.close()))
        times = (batch.base_timestamp_ms, batch.max_timestamp_ms)
        sealed = seal_batch(batch.close(), batch.count, *times, codec=self.codec)
        self.records[at] += records(sealed)
        return sealed is not batch.out

    def values(self, topic: str = "t") -> dict[int, list[bytes | None]]:
        return {
            at.partition: [r.value for r in rows] for at, rows in self.records.items() if at.topic == topic
        }


def pour(
    ddl: str,
    frames: Sequence[pa.RecordBatch],
    *,
    topic: str | None = "t",
    partitions: int = 4,
    batch_bytes: int = 10_000,
    record_bytes_max: int = 100_000,
    first_partition: int = 0,
    codec: Codec = Codec.NONE,
) -> tuple[Sent, Batches]:
    sent = Sent(codec)
    batches = Batches(
        layout(schema(ddl), topic), sent, lambda _: partitions,
        batch_bytes=batch_bytes, record_bytes_max=record_bytes_max, first_partition=first_partition,
        digests=True,
    )  # fmt: skip
    for frame in frames:
        batches.add(frame, NOW_MS)
    batches.finish()
    return sent, batches


def frame(**columns: Any) -> pa.RecordBatch:
    return pa.record_batch(list(columns.values()), names=list(columns))


optional_bytes = st.none() | st.binary(max_size=30)
rows_of_all = st.lists(
    st.fixed_dictionaries(
        {
            "key": optional_bytes,
            "value": optional_bytes,
            "partition": st.none() | st.integers(0, 3),
            "headers": st.none()
            | st.lists(
                st.fixed_dictionaries({"key": st.text(max_size=4), "value": optional_bytes}), max_size=3
            ),
            "timestamp": st.none() | st.integers(0, 2_000_000_000_000_000),
            "tag": st.none() | st.text(max_size=5),
            "deliverAt": st.none() | st.integers(0, 2_000_000_000_000),
        }
    ),
    min_size=1,
    max_size=40,
).map(
    lambda rows: [
        row | ({"key": b""} if row["key"] is None and row["partition"] is None else {}) for row in rows
    ]
)
ARROW_TYPES = {
    "key": pa.binary(), "value": pa.large_binary(), "partition": pa.int32(), "headers": HEADERS,
    "timestamp": TIME, "tag": pa.string(), "deliverAt": pa.int64(),
}  # fmt: skip


@settings(deadline=None)
@given(
    rows=rows_of_all,
    cut=st.integers(0, 5),
    batch_bytes=st.integers(100, 600),
    codec=st.sampled_from([Codec.NONE, Codec.ZSTD]),
)
def test_every_row_becomes_the_record_it_describes(
    rows: list[dict[str, Any]], cut: int, batch_bytes: int, codec: Codec
) -> None:
    """S3: in its partition, in its order, with all its fields; also from slices of Arrow's arrays.

    Packed, the room of a batch is used again for the next.
    """
    columns = {
        name: pa.array([None] * cut + [row[name] for row in rows], kind).slice(cut)
        for name, kind in ARROW_TYPES.items()
    }
    sent, batches = pour(ALL_COLUMNS, [frame(**columns)], batch_bytes=batch_bytes, codec=codec)
    wanted: dict[int, list[tuple[Any, ...]]] = defaultdict(list)
    for row in rows:
        headers = [(each["key"], each["value"]) for each in row["headers"] or ()]
        headers += [("braid.tag", row["tag"].encode())] if row["tag"] is not None else []
        headers += [("braid.deliver-at", b"%d" % row["deliverAt"])] if row["deliverAt"] is not None else []
        hashed = (murmur2(row["key"] or b"") & 0x7FFFFFFF) % 4
        when = NOW_MS if row["timestamp"] is None else row["timestamp"] // 1000
        place = hashed if row["partition"] is None else row["partition"]
        wanted[place].append((row["key"], row["value"], headers, when))
    found = {
        at.partition: [(r.key, r.value, r.headers, r.timestamp) for r in got]
        for at, got in sent.records.items()
    }
    assert found == wanted
    assert batches.rows == len(rows)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_batches_stay_within_their_size_and_large_rows_have_their_own(codec: Codec) -> None:
    """S3: cut by size; a row larger than a batch is sent alone."""
    values = [b"x" * 700] * 50 + [b"y" * 30_000] + [b"z"] * 3
    sent, _ = pour("value binary", [frame(value=pa.array(values))], partitions=1, codec=codec)
    assert sent.values() == {0: values}
    assert max(sent.sizes) > 30_000
    assert all(size <= 10_000 for size in sent.sizes if size < 30_000)
    assert len(sent.sizes) == 6


def test_keyless_rows_move_on_when_a_batch_is_full_and_the_same_way_each_time() -> None:
    """S3: few large batches over all partitions; a task done again does the same again."""
    frames = [frame(value=pa.array([b"%d" % number + b"." * 200 for number in range(100)]))] * 6
    runs = [pour("value binary", frames, first_partition=7) for _ in range(2)]
    assert runs[0][0].values() == runs[1][0].values()
    assert runs[0][1].digest == runs[1][1].digest
    assert next(iter(runs[0][0].values())) == 3
    assert len(runs[0][0].values()) == 4
    other = [frame(value=pa.array([b"%d" % number + b"," * 200 for number in range(100)]))] * 6
    assert pour("value binary", other, first_partition=7)[1].digest != runs[0][1].digest


def test_what_is_held_back_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """S3: many partitions with a little each are sent off before they are full."""
    monkeypatch.setattr(sink_batches, "BUFFERED_BYTES_MAX", 20_000)
    keys = pa.array([b"%d" % number for number in range(100)])
    sent = Sent()
    batches = Batches(
        layout(schema("key binary, value binary"), "t"), sent, lambda _: 50,
        batch_bytes=10_000, record_bytes_max=100_000, first_partition=0, digests=False,
    )  # fmt: skip
    for _ in range(10):
        batches.add(frame(key=keys, value=pa.array([b"v" * 100] * 100)), NOW_MS)
    assert len(sent.sizes) > 50


def test_rows_go_to_the_topics_they_name_unless_the_option_does() -> None:
    """S3: as in Spark's Kafka sink, the option wins."""
    rows = frame(topic=pa.array(["b", "a", "b"]), value=pa.array([b"1", b"2", b"3"]))
    sent, _ = pour("topic string, value binary", [rows], topic=None)
    assert sent.values("a") == {0: [b"2"]}
    assert sent.values("b") == {0: [b"1", b"3"]}
    assert pour("topic string, value binary", [rows])[0].values() == {0: [b"1", b"2", b"3"]}


@pytest.mark.parametrize(
    ("ddl", "rows", "message"),
    [
        ("topic string, value binary", {"topic": ["a", None], "value": [b"", b""]}, "row 1 .* has no topic"),
        (
            "value binary, partition int",
            {"value": [b""], "partition": [4]},
            r"a row has partition 4 of .* 0 to 3",
        ),
        ("value binary, partition int", {"value": [b""], "partition": [-1]}, "a row has partition -1"),
        (
            "value binary",
            {"value": [b"x" * 200_000]},
            r"200,\d+ bytes, more than max.request.size \(100,000\)",
        ),
    ],
)
def test_rows_that_cannot_be_written_say_why(ddl: str, rows: dict[str, list[Any]], message: str) -> None:
    """S3: in the message of the task that fails."""
    columns = {name: pa.array(cells) for name, cells in rows.items()}
    with pytest.raises(RowError, match=message):
        pour(ddl, [frame(**columns)], topic=None if "topic" in rows else "t")


def test_a_record_that_was_read_without_a_time_gets_that_of_writing() -> None:
    """S3: the source shows -1 ms there."""
    read = frame(value=pa.array([b"a", b"b", b"c"]), timestamp=pa.array([-1_000, 7_000, None], TIME))

    sent, _ = pour("value binary, timestamp timestamp", [read])

    (found,) = sent.records.values()
    assert [each.timestamp for each in found] == [NOW_MS, 7, NOW_MS]


def test_times_and_headers_that_no_record_can_have_are_refused() -> None:
    """S3: a time before 1970; a header without a key."""
    old = frame(value=pa.array([b""]), timestamp=pa.array([-1], TIME))
    with pytest.raises(RowError, match="before 1970"):
        pour("value binary, timestamp timestamp", [old])
    nameless = frame(value=pa.array([b""]), headers=pa.array([[{"key": None, "value": b""}]], HEADERS))
    with pytest.raises(RowError, match="a header has no key"):
        pour("value binary, headers array<struct<key:string,value:binary>>", [nameless])


@pytest.mark.parametrize(
    ("ddl", "message"),
    [
        ("valeu string", "no column named value.*did you mean 'valeu'"),
        ("a int, b int", r"no column named value.*a, b.*to_json\(struct\(\*\)\)"),
        ("value int", "column value is int; it must be a string or binary; write CAST"),
        ("value struct<a:int>", r"column value is struct<a:int>.*to_json"),
        ("value string, partition string", "column partition is string; it must be an int"),
        ("value string, timestamp string", "column timestamp is string; it must be a timestamp"),
        ("value string, headers map<string,binary>", "column headers is map<string,binary>"),
        ("value string, headers array<struct<name:string,value:binary>>", "column headers is array"),
        ("value string, deliverAt int", "column deliverAt is int; it must be a timestamp, or a bigint"),
        ("value string, VALUE string", "two columns named value"),
    ],
)
def test_frames_that_cannot_be_written_say_why(ddl: str, message: str) -> None:
    """S3: on the driver, before anything runs."""
    with pytest.raises(OptionError, match=message):
        layout(schema(ddl), "t")


def test_a_frame_without_any_topic_is_refused() -> None:
    """S3: neither option nor column."""
    with pytest.raises(OptionError, match="no topic to write to"):
        layout(schema("value string"), None)


GIVEN = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topik": "t"}, "has no option 'topik'; did you mean 'topic'"),
        ({"kafka.compresion.type": "lz4"}, "did you mean 'compression.type'"),
        ({"kafka.compression.type": "brotli"}, "must be one of none, gzip, snappy, lz4, zstd"),
        ({"kafka.acks": "1"}, "acks must be all for exactly-once"),
        ({"deliveryGuarantee": "at-most-once"}, "one of exactly-once, at-least-once"),
        ({"kafka.batch.size": "0"}, "batch.size is '0'"),
        ({"writeId": "a/b"}, "writeId is 'a/b'; it must not contain a slash"),
        ({"writeId": "a", "deliveryGuarantee": "at-least-once"}, "writeId names an exactly-once batch write"),
        ({"kafka.bootstrap.servers": "127.0.0.1:http"}, "bootstrap.servers"),
    ],
)
def test_wrong_options_name_what_is_right(options: dict[str, str], message: str) -> None:
    """S3: nothing is silently ignored."""
    with pytest.raises(OptionError, match=message):
        parse_sink(GIVEN | options, streaming=False, overwrite=False)


def test_options_of_kafka_s_producer_are_understood() -> None:
    """S3: so that a query moves over by changing its format."""
    moved = {"kafka.compression.type": "zstd", "kafka.batch.size": "65536", "kafka.linger.ms": "50"}
    options = parse_sink(
        GIVEN | moved | {"checkpointLocation": "/x", "kafka.acks": "-1"}, streaming=True, overwrite=False
    )
    assert (options.codec, options.batch_bytes) == (Codec.ZSTD, 65_536)
    assert options.guarantee is Guarantee.EXACTLY_ONCE
    with pytest.raises(OptionError, match="a stream is known by its checkpoint"):
        parse_sink(GIVEN | {"writeId": "a"}, streaming=True, overwrite=False)
    with pytest.raises(OptionError, match="cannot be overwritten"):
        parse_sink(GIVEN, streaming=False, overwrite=True)
