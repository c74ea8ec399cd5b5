"""Why a value is bad; Avro values; progress reports; failures in one sentence."""

from __future__ import annotations

import json
from datetime import UTC, datetime, time
from decimal import Decimal
from pathlib import Path

import pytest

from braidmq.spark import avro
from braidmq.spark.avro import AvroError, AvroSchema, Framing
from braidmq.spark.pipelines import loads
from braidmq.spark.pipelines.failures import understand_failure
from braidmq.spark.pipelines.model import ValueFormat
from braidmq.spark.pipelines.progress import update
from braidmq.spark.pipelines.reasons import explain
from braidmq.spark.pipelines.status import QueryStatus


def field(name: str, kind: object, nullable: bool = True) -> dict[str, object]:
    return {"name": name, "type": kind, "nullable": nullable, "metadata": {}}


ITEM = {"type": "struct", "fields": [field("sku", "string", False), field("count", "integer")]}
SCHEMA = {
    "type": "struct",
    "fields": [
        field("id", "long", False),
        field("amount", "double"),
        field("paid", "boolean"),
        field("at", "timestamp"),
        field("items", {"type": "array", "elementType": ITEM, "containsNull": True}),
    ],
}


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "there is no value"),
        (b"", "the value is empty"),
        (b"\xff\xfe", "not UTF-8: invalid start byte at byte 0"),
        (b'{"id": 1', "not JSON: Expecting ',' delimiter at character 8"),
        (b'{"id": 1}{"id": 2}', "not JSON: Extra data at character 9"),
        (b"[1, 2]", "a JSON object is expected, not [1, 2]"),
        (b"{}", "column id is missing"),
        (b'{"id": "seven"}', "column id: 'seven' is not BIGINT"),
        (b'{"id": 1, "amount": "much"}', "column amount: 'much' is not DOUBLE"),
        (b'{"id": 1, "paid": 1}', "column paid: 1 is not BOOLEAN"),
        (b'{"id": 1, "at": "noon"}', "column at: 'noon' is not TIMESTAMP"),
        (b'{"id": 1, "items": {}}', "column items: {} is not a list"),
        (b'{"id": 1, "items": [{"sku": "a"}, {"count": 2}]}', "column items[1].sku is missing"),
        (
            b'{"id": 1, "items": [{"sku": "a", "count": 3000000000}]}',
            "column items[0].count: 3000000000 is not INT",
        ),
        (b'{"id": 9300000000000000000}', "column id: 9300000000000000000 is not BIGINT"),
        (b'{"id": 1, "amount": NaN}', "not JSON: NaN is not a number in JSON"),
        (b'{"id": 1, "amount": -Infinity}', "not JSON: -Infinity is not a number in JSON"),
        (b'{"id": "x", "amount": "NaN"}', "column id: 'x' is not BIGINT"),
    ],
)
def test_the_reason_names_the_column_and_what_is_wrong(value: bytes | None, reason: str) -> None:
    """S4: in one sentence."""
    assert explain(value, ValueFormat.JSON, SCHEMA) == reason


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"1", "1 columns, expected 2: id, amount"),
        (b"x,1.5", "column id: 'x' is not BIGINT"),
        (b",1.5", "column id is missing"),
        (b"1,much", "column amount: 'much' is not DOUBLE"),
    ],
)
def test_csv_has_its_reasons_too(value: bytes, reason: str) -> None:
    """S4: columns counted, then looked at."""
    schema = {"type": "struct", "fields": [field("id", "long", False), field("amount", "double")]}
    assert explain(value, ValueFormat.CSV, schema) == reason


@pytest.mark.parametrize(
    ("value", "options", "reason"),
    [
        (b"1;much", {"sep": ";"}, "column amount: 'much' is not DOUBLE"),
        (b"1\t2\t3", {"Delimiter": "\\t"}, "3 columns, expected 2: id, amount"),
        (b"1||x", {"sep": "||"}, "column amount: 'x' is not DOUBLE"),
        (b"'a,b',1", {"quote": "'"}, "column id: 'a,b' is not BIGINT"),
        (b"NO,1.5", {"nullValue": "NO"}, "column id is missing"),
    ],
)
def test_csv_is_looked_at_with_the_options_it_was_read_with(
    value: bytes, options: dict[str, str], reason: str
) -> None:
    """S4: or the reason would be a false one."""
    schema = {"type": "struct", "fields": [field("id", "long", False), field("amount", "double")]}
    assert explain(value, ValueFormat.CSV, schema, options) == reason


def test_what_options_let_spark_read_is_not_called_wrong() -> None:
    """S4: times in a form of their own, JSON that is none by the book."""
    times = {"timestampFormat": "dd.MM.yyyy"}
    assert explain(b'{"id": 1, "at": "noon"}', ValueFormat.JSON, SCHEMA, times) == "does not fit the schema"
    both = explain(b'{"id": "x", "at": "15.11.2026"}', ValueFormat.JSON, SCHEMA, times)
    assert both == "column id: 'x' is not BIGINT"
    loose = {"allowSingleQuotes": "true"}
    assert explain(b"{'id': 'x'}", ValueFormat.JSON, SCHEMA, loose) == "does not fit the schema"


AVRO = AvroSchema(
    json.dumps(
        {
            "type": "record",
            "name": "Order",
            "fields": [
                {"name": "id", "type": "long"},
                {"name": "note", "type": ["null", "string"]},
                {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
                {
                    "name": "price",
                    "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
                },
                {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
                {"name": "other", "type": "Kind"},
                {"name": "tags", "type": {"type": "map", "values": "string"}},
                {
                    "name": "lines",
                    "type": {
                        "type": "array",
                        "items": {
                            "type": "record",
                            "name": "Line",
                            "fields": [{"name": "sku", "type": "string"}],
                        },
                    },
                },
            ],
        }
    )
)
ORDER = {
    "id": 7,
    "note": None,
    "at": datetime(2026, 11, 15, 21, tzinfo=UTC),
    "price": Decimal("12.50"),
    "kind": "A",
    "other": "B",
    "tags": {"a": "b"},
    "lines": [{"sku": "x"}],
}


def test_an_avro_record_goes_to_bytes_and_back() -> None:
    """S4: with every kind of field."""
    pytest.importorskip("fastavro")
    assert avro.decoder(AVRO)(avro.encoder(AVRO)(ORDER)) == ORDER


def test_an_avro_schema_becomes_columns() -> None:
    """S4: unions with null may be null, the others not."""
    pytest.importorskip("fastavro")
    ddl = avro.ddl(AVRO)
    assert (
        "`id` bigint NOT NULL, `note` string, `at` timestamp NOT NULL, `price` decimal(9, 2) NOT NULL" in ddl
    )
    assert "`tags` map<string, string> NOT NULL, `lines` array<struct<`sku`: string>> NOT NULL" in ddl


@pytest.mark.parametrize(
    ("value", "reason"),
    [(b"", "ends too early"), (b"\x02", "ends too early")],
)
def test_bytes_that_are_not_of_the_schema_are_told(value: bytes, reason: str) -> None:
    """S4: as a reason for the side topic."""
    pytest.importorskip("fastavro")
    with pytest.raises(ValueError, match=reason):
        avro.decoder(AVRO)(value)
    with pytest.raises(ValueError, match="left over"):
        avro.decoder(AVRO)(avro.encoder(AVRO)(ORDER) + b"x")


def test_the_header_of_a_schema_registry_is_stepped_over() -> None:
    """S4: framing: registry."""
    pytest.importorskip("fastavro")
    framed = AvroSchema(AVRO.text, Framing.REGISTRY)
    assert avro.decoder(framed)(b"\0\0\0\0\x07" + avro.encoder(AVRO)(ORDER)) == ORDER
    with pytest.raises(ValueError, match="no schema registry header"):
        avro.decoder(framed)(avro.encoder(AVRO)(ORDER))


def test_a_value_with_another_registry_id_is_refused_though_it_decodes() -> None:
    """S4: two schemas of the same shape: the bytes fit, and the columns would be wrong."""
    pytest.importorskip("fastavro")
    written = json.dumps({"type": "record", "name": "R", "fields": [{"name": "cents", "type": "long"}]})
    read = AvroSchema(written.replace("cents", "euros"), Framing.REGISTRY, registry_id=7)
    value = avro.encoder(AvroSchema(written))({"cents": 1250})
    assert avro.decoder(read)(b"\0\0\0\0\x07" + value) == {"euros": 1250}
    with pytest.raises(ValueError, match="has schema registry id 8, but the schema in use has id 7"):
        avro.decoder(read)(b"\0\0\0\0\x08" + value)


def avro_of(precision: int) -> AvroSchema:
    """A price, and the times of day it holds from and until."""
    fields = {
        "price": {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": 2},
        "begin": {"type": "int", "logicalType": "time-millis"},
        "end": {"type": "long", "logicalType": "time-micros"},
    }
    columns = [{"name": name, "type": kind} for name, kind in fields.items()]
    return AvroSchema(json.dumps({"type": "record", "name": "R", "fields": columns}))


def test_an_avro_value_without_room_in_its_column_is_bad_by_itself() -> None:
    """S4: the others of its batch are read, times of day as the numbers they are sent as."""
    pytest.importorskip("fastavro")
    pa = pytest.importorskip("pyarrow")
    numbers = [("price", pa.decimal128(5, 2)), ("begin", pa.int32()), ("end", pa.int64())]
    kind = pa.struct([*numbers, ("bad", pa.string())])
    encode = avro.encoder(avro_of(20))
    times = {"begin": time(0, 0, 1, 5000), "end": time(23, 59, 59, 999_999)}
    values = [encode({"price": Decimal(price), **times}) for price in ("1.50", "1234567.00")]
    batch = pa.RecordBatch.from_pydict({"value": values})
    (read,) = avro.decode_batches(iter([batch]), avro_of(5), kind, ("parsed", "bad"))
    good, bad = read.column("parsed").to_pylist()
    assert good == {"price": Decimal("1.50"), "begin": 1005, "end": 86_399_999_999, "bad": None}
    assert bad["bad"].startswith("not this Avro schema: ")
    assert bad["price"] is None


@pytest.mark.parametrize(
    "text",
    ["{", '"long"', '{"type": "record", "name": "R", "fields": [{"name": "a", "type": ["int", "string"]}]}'],
)
def test_a_schema_that_cannot_be_columns_is_refused(text: str) -> None:
    """S4: before anything runs."""
    pytest.importorskip("fastavro")
    with pytest.raises(AvroError):
        avro.ddl(AvroSchema(text))


def test_a_report_of_spark_becomes_numbers() -> None:
    """S4: lag from the offsets, state over all operators."""
    status = QueryStatus("q")
    report = {
        "batchId": 3,
        "numInputRows": 100,
        "processedRowsPerSecond": 50.04,
        "durationMs": {"triggerExecution": 2000},
        "stateOperators": [
            {"numRowsTotal": 5, "memoryUsedBytes": 10},
            {"numRowsTotal": 7, "memoryUsedBytes": 20},
        ],
        "eventTime": {"watermark": "2026-11-15T21:00:00.000Z"},
        "sources": [{"endOffset": {"t": {"0": 90, "1": 10}}, "latestOffset": '{"t": {"0": 100, "1": 10}}'}],
    }
    assert update(status, report)
    assert (status.batch, status.rows, status.batch_ms, status.lag) == (3, 100, 2000, 10)
    assert (status.state_rows, status.state_bytes, status.rows_per_s) == (12, 30, 50.0)
    assert not update(status, report)
    assert status.rows == 100
    idle = {**report, "numInputRows": 0, "processedRowsPerSecond": 0.0, "durationMs": {"triggerExecution": 9}}
    assert [update(status, each) for each in (idle, report, idle)] == [True, False, False]
    assert (status.rows, status.batch_ms, status.rows_per_s, status.lag) == (100, 2000, 0.0, 10)


MESSAGE = """[STREAM_FAILED] Query [id = 1] terminated with exception: Job aborted
org.apache.spark.SparkException: …
Traceback (most recent call last):
  File "x.py", line 3, in read
    raise Unreachable
braidmq.client.errors.Unreachable: 127.0.0.1:9092 refused the connection

	at org.apache.spark.Something
"""


def test_a_failure_is_told_by_its_innermost_sentence(tmp_path: Path) -> None:
    """S4: and whether it may pass by itself."""
    pipeline = loads(
        "pipeline: x\nsources: {a: {topic: a, format: raw}}\nsinks: {o: {from: a, topic: o, format: raw}}",
        tmp_path,
    )
    failure = understand_failure(RuntimeError(MESSAGE), pipeline)
    assert failure.may_pass
    assert failure.text == "127.0.0.1:9092 refused the connection"
    for told, may_pass in (
        ("x.TopicMissing", False),
        ("x.SinkInterrupted", True),
        ("lake.commits.CommitConflict", True),
    ):
        text = f"[STREAM_FAILED] Query terminated: braidmq.spark.{told}: it is away\n SQLSTATE: 38000"
        without_traceback = understand_failure(RuntimeError(text), pipeline)
        assert (without_traceback.text, without_traceback.may_pass) == ("it is away", may_pass)
    other = understand_failure(
        RuntimeError("[DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012\n more"), pipeline
    )
    assert not other.may_pass
    assert other.text == "Division by zero."
    of_java = (
        'An error occurred while calling o146.start.\n: java.io.IOException: no "chmod"\n\tat java.base/x'
    )
    assert understand_failure(RuntimeError(of_java), pipeline).text == 'java.io.IOException: no "chmod"'
