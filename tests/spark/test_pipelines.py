"""Pipelines on Spark: sources in every format, steps of every kind, tables and lakes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from braidmq.client import Producer
from braidmq.spark import avro
from braidmq.spark.avro import AvroSchema
from braidmq.spark.lake import Lake
from braidmq.spark.pipelines import Pipeline, PipelineError, loads, pipeline
from braidmq.spark.pipelines.runner import run
from braidmq.spark.pipelines.status import RunState, RunStatus
from braidmq.spark.pipelines.table_source import read as read_table

pytestmark = pytest.mark.timeout(300)
Rows = list[dict[str, Any]]


class Lab:
    """A directory, a broker and a session to run pipelines with."""

    def __init__(self, spark: Any, bootstrap: str, directory: Path) -> None:
        self.spark, self.bootstrap, self.directory = spark, bootstrap, directory

    def send(self, topic: str, rows: list[Any], key: str | None = None) -> None:
        with Producer(self.bootstrap) as producer:
            for row in rows:
                value = row if isinstance(row, bytes) else json.dumps(row).encode()
                name = str(row[key]).encode() if key else None
                producer.send(topic, value, key=name)

    def load(self, text: str) -> Pipeline:
        made = loads(text.replace("BOOTSTRAP", self.bootstrap), self.directory)
        return replace(made, parallelism=1)

    def run(self, text: str) -> None:
        status = run(self.load(text), once=True, spark=self.spark)
        assert status.state is RunState.DONE

    def lake(self, name: str, *columns: str) -> list[tuple[Any, ...]]:
        frame = Lake(self.directory / name).read(self.spark)
        return sorted(tuple(row) for row in frame.selectExpr(*columns).collect())

    def table(self, name: str) -> Rows:
        rows = [row.asDict() for row in read_table(self.spark, self.directory / name).collect()]
        return sorted(rows, key=lambda row: row["id"])


@pytest.fixture
def lab(spark: Any, bootstrap: str, tmp_path: Path) -> Lab:
    return Lab(spark, bootstrap, tmp_path)


AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "tags", "type": {"type": "map", "values": "string"}}],
}


def test_values_of_every_format_become_columns(lab: Lab, new_topic: Callable[..., str]) -> None:
    """S4: JSON, Avro, CSV, text and raw, with metadata; what cannot be read is dropped where so said."""
    topics = {name: new_topic() for name in ("json", "avro", "csv", "text", "raw")}
    encode = avro.encoder(AvroSchema(json.dumps(AVRO)))
    lab.send(topics["json"], [{"id": 1, "at": "2026-11-15T21:00:00Z"}, b"{", {"id": "x"}, {"at": None}])
    lab.send(topics["json"], [b'{"id": 7}{"id": 8}', b'{"id": 9} oops', {"id": 6, "of": [{"a": "}{"}]}])
    lab.send(topics["avro"], [encode({"id": 2, "tags": {"a": "b"}}), b"\xff"])
    lab.send(topics["csv"], [b"3,three", b"three,3", b"3"])
    lab.send(topics["text"], [b"four", "fünf".encode()])
    lab.send(topics["raw"], [b"\x00\xff"])
    (lab.directory / "order.avsc").write_text(json.dumps(AVRO))
    lab.run(
        f"""
pipeline: formats
bootstrap: BOOTSTRAP
sources:
  json:
    topic: {topics["json"]}
    schema: id BIGINT NOT NULL, at TIMESTAMP
    bad_records: drop
    metadata: offset
  avro: {{topic: {topics["avro"]}, format: avro, schema: order.avsc, bad_records: drop}}
  csv: {{topic: {topics["csv"]}, format: csv, schema: 'id INT, name STRING', bad_records: drop}}
  text: {{topic: {topics["text"]}, format: text}}
  raw: {{topic: {topics["raw"]}, format: raw, metadata: [topic, partition, offset]}}
steps:
  all:
    sql: |
      SELECT 'json' AS kind, cast(id AS STRING) AS value, _offset AS n FROM json
      UNION ALL SELECT 'avro', concat(id, tags['a']), 0 FROM avro
      UNION ALL SELECT 'csv', concat(id, name), 0 FROM csv
      UNION ALL SELECT 'text', value, 0 FROM text
      UNION ALL SELECT 'raw', hex(value), _offset FROM raw
sinks:
  out: {{from: all, lake: lake}}
"""
    )
    assert lab.lake("lake", "kind", "value", "n") == [
        ("avro", "2b", 0),
        ("csv", "3three", 0),
        ("json", "1", 0),
        ("json", "6", 6),
        ("raw", "00FF", 0),
        ("text", "four", 0),
        ("text", "fünf", 0),
    ]


def test_a_bad_record_stops_a_pipeline_that_does_not_say_where_it_goes(
    lab: Lab, new_topic: Callable[..., str]
) -> None:
    """S4: with its place, the reason, and what to write."""
    topic = new_topic()
    lab.send(topic, [{"id": 1}, {"id": "seven"}])
    text = f"""
pipeline: strict
bootstrap: BOOTSTRAP
sources: {{a: {{topic: {topic}, schema: id BIGINT}}}}
sinks: {{out: {{from: a, lake: lake}}}}
"""
    with pytest.raises(PipelineError) as raised:
        lab.run(text)
    told = str(raised.value)
    assert f"topic {topic}, partition 0, offset 1 cannot be read: column id: 'seven' is not BIGINT" in told
    assert "bad_records" in told


BINLOG = """
pipeline: binlog
bootstrap: BOOTSTRAP
sources:
  changes: {topic: TOPIC, schema: 'op STRING, pos BIGINT, id BIGINT NOT NULL, name STRING'}
sinks:
  customers: {from: changes, upsert: customers, key: id, order_by: pos, delete_when: op = 'd', buckets: 3}
"""


def change(op: str, pos: int, key: int, name: str | None = None, **more: Any) -> dict[str, Any]:
    return {"op": op, "pos": pos, "id": key, "name": name, **more}


def test_a_binlog_becomes_a_table_and_never_goes_back(lab: Lab, new_topic: Callable[..., str]) -> None:
    """S4: inserts, updates, deletes, late ones among them, over several runs and a grown schema."""
    topic = new_topic()
    lab.send(
        topic,
        [change("c", 1, 1, "a"), change("c", 2, 2, "b"), change("c", 3, 3, "c"), change("u", 5, 1, "aa")],
    )
    text = BINLOG.replace("TOPIC", topic)
    lab.run(text)
    assert [(row["id"], row["name"]) for row in lab.table("customers")] == [(1, "aa"), (2, "b"), (3, "c")]
    lab.send(topic, [change("d", 9, 2), change("u", 4, 1, "late"), change("u", 8, 2, "later")])
    lab.run(text)
    assert [(row["id"], row["name"]) for row in lab.table("customers")] == [(1, "aa"), (3, "c")]
    lab.send(topic, [change("u", 7, 2, "from the grave"), change("u", 20, 1, "new", city="Oslo")])
    lab.run(text.replace("name STRING", "name STRING, city STRING"))
    rows = lab.spark.read.parquet(str(lab.directory / "customers" / "current")).select("id", "name", "city")
    assert sorted(map(tuple, rows.collect())) == [(1, "new", "Oslo"), (3, "c", None)]


def test_a_batch_that_is_given_twice_counts_once(lab: Lab, new_topic: Callable[..., str]) -> None:
    """S4 S3: a driver that dies after the write and before Spark's commit repeats the batch."""
    topic = new_topic()
    lab.send(topic, [change("c", 1, 1, "a")])
    text = BINLOG.replace("TOPIC", topic) + "  lake: {from: changes, lake: lake}\n"
    lab.run(text)
    before = lab.table("customers"), lab.lake("lake", "id")
    for commit in (lab.directory / "checkpoints").glob("*/v1/queries/*/commits/*0"):
        commit.unlink()
    for checksum in (lab.directory / "checkpoints").glob("*/v1/queries/*/commits/.*crc"):
        checksum.unlink()
    lab.run(text)
    assert (lab.table("customers"), lab.lake("lake", "id")) == before
    assert len(list((lab.directory / "customers" / "versions").iterdir())) == 1


def test_windows_of_event_time_are_written_when_they_are_complete(
    lab: Lab, new_topic: Callable[..., str]
) -> None:
    """S4: tumbling windows and sessions, by key, with a watermark; late rows are left out."""
    topic = new_topic()
    minutes = [("a", 0, 5), ("a", 0, 7), ("b", 0, 1), ("a", 1, 2)]
    lab.send(topic, [{"shop": shop, "at": f"2026-11-15T10:0{m}:30Z", "amount": n} for shop, m, n in minutes])
    text = f"""
pipeline: windows
bootstrap: BOOTSTRAP
sources:
  orders: {{topic: {topic}, schema: 'shop STRING, at TIMESTAMP, amount BIGINT', watermark: 'at, 1 minute'}}
steps:
  per_minute:
    from: orders
    window: {{on: at, size: 1 minute, by: shop, compute: {{n: count(*), total: sum(amount)}}}}
  sessions:
    from: orders
    window: {{on: at, gap: 2 minutes, by: shop, compute: {{n: count(*)}}}}
sinks:
  minutes: {{from: per_minute, lake: minutes, date_of: window_start}}
  visits: {{from: sessions, lake: visits, date_of: window_start}}
"""
    lab.run(text)
    assert lab.lake("minutes", "shop") == []
    lab.send(topic, [{"shop": "z", "at": "2026-11-15T12:00:00Z", "amount": 0}])
    lab.run(text)
    lab.send(topic, [{"shop": "a", "at": "2026-11-15T10:00:31Z", "amount": 99}])
    lab.run(text)
    assert lab.lake(
        "minutes", "date_format(window_start, 'HH:mm')", "shop", "n", "total", "cast(date AS STRING)"
    ) == [
        ("10:00", "a", 2, 12, "2026-11-15"),
        ("10:00", "b", 1, 1, "2026-11-15"),
        ("10:01", "a", 1, 2, "2026-11-15"),
    ]
    assert lab.lake("visits", "shop", "n") == [("a", 3), ("b", 1)]


def test_duplicates_within_the_watermark_are_left_out(lab: Lab, new_topic: Callable[..., str]) -> None:
    """S4: also when the second one comes in a later run."""
    topic = new_topic()
    row = {"id": 1, "at": "2026-11-15T10:00:00Z"}
    lab.send(topic, [row, row, {"id": 2, "at": "2026-11-15T10:00:10Z"}])
    text = f"""
pipeline: once
bootstrap: BOOTSTRAP
sources: {{a: {{topic: {topic}, schema: 'id BIGINT, at TIMESTAMP', watermark: 'at, 1 hour'}}}}
steps: {{b: {{from: a, dedup: {{by: id, within: 30 minutes}}}}}}
sinks: {{out: {{from: b, lake: lake, date_of: at}}}}
"""
    lab.run(text)
    lab.send(topic, [row, {"id": 3, "at": "2026-11-15T10:00:20Z"}])
    lab.run(text)
    assert lab.lake("lake", "id") == [(1,), (2,), (3,)]


def test_rows_of_a_key_that_are_further_apart_than_said_are_no_duplicates(
    lab: Lab, new_topic: Callable[..., str]
) -> None:
    """S4: to the microsecond, out of order and over runs, however late rows may be; then it is forgotten."""
    topic = new_topic()

    def attempt(*times: str) -> RunStatus:
        lab.send(topic, [{"id": 1, "at": f"2026-11-15T{time}Z"} for time in times])
        text = f"""
pipeline: near
bootstrap: BOOTSTRAP
sources:
  a: {{topic: {topic}, schema: 'id BIGINT, at TIMESTAMP', watermark: 'at, 1 hour'}}
  b: {{topic: {topic}, schema: 'id BIGINT, at TIMESTAMP', watermark: 'at, 1 second'}}
steps:
  late: {{from: a, dedup: {{by: id, within: 1 minute}}}}
  prompt: {{from: b, dedup: {{by: id, within: 1 minute}}}}
sinks:
  late: {{from: late, lake: late, date_of: at}}
  prompt: {{from: prompt, lake: prompt, date_of: at}}
"""
        return run(lab.load(text), once=True, spark=lab.spark)

    attempt("10:00:00", "10:01:00", "10:01:00.000001", "10:02:00")
    attempt("10:30:00", "10:00:30", "10:02:00.000002", "10:02:00.000002")
    status = attempt("10:15:00", "10:30:59", "09:59:00", "09:58:59.999999", "18:00:00")
    time = "date_format(at, 'HH:mm:ss.SSSSSS')"
    kept = ["10:00:00.000000", "10:01:00.000001", "10:02:00.000002", "10:30:00.000000", "18:00:00.000000"]
    assert [row[0] for row in lab.lake("prompt", time)] == kept
    late = sorted([*kept, "10:15:00.000000", "09:58:59.999999"])
    assert [row[0] for row in lab.lake("late", time)] == late
    assert [query.state_rows for query in status.queries] == [1, 1]


def test_changes_of_a_key_go_on_in_their_order(lab: Lab, new_topic: Callable[..., str]) -> None:
    """S4: what comes after a newer one is left out, large numbers stay exact."""
    topic = new_topic()
    large = 2**60 + 1
    lab.send(
        topic,
        [{"id": 1, "pos": 2, "n": large}, {"id": 1, "pos": 1}, {"id": 2, "pos": 7}, {"id": 1, "pos": 3}],
    )
    text = f"""
pipeline: ordered
bootstrap: BOOTSTRAP
sources: {{a: {{topic: {topic}, schema: 'id BIGINT, pos BIGINT, n BIGINT'}}}}
steps: {{b: {{from: a, newest: {{by: id, order_by: pos}}}}}}
sinks: {{out: {{from: b, lake: lake}}}}
"""
    lab.run(text)
    lab.send(topic, [{"id": 1, "pos": 2, "n": 5}, {"id": 2, "pos": 8}])
    lab.run(text)
    assert lab.lake("lake", "id", "pos", "coalesce(n, 0)") == [
        (1, 1, 0),
        (1, 2, large),
        (1, 3, 0),
        (2, 7, 0),
        (2, 8, 0),
    ]


def test_two_streams_meet_within_a_time(lab: Lab, new_topic: Callable[..., str]) -> None:
    """S4: rows of the same key, not further apart than said."""
    shown, clicked = new_topic(), new_topic()
    lab.send(
        shown,
        [
            {"id": 1, "at": "2026-11-15T10:00:00Z", "ad": "x"},
            {"id": 2, "at": "2026-11-15T10:00:00Z", "ad": "y"},
        ],
    )
    lab.send(clicked, [{"id": 1, "at": "2026-11-15T10:04:00Z"}, {"id": 2, "at": "2026-11-15T10:30:00Z"}])
    lab.run(
        f"""
pipeline: joined
bootstrap: BOOTSTRAP
sources:
  shown: {{topic: {shown}, schema: 'id BIGINT, at TIMESTAMP, ad STRING', watermark: 'at, 1 hour'}}
  clicked: {{topic: {clicked}, schema: 'id BIGINT, at TIMESTAMP', watermark: 'at, 1 hour'}}
steps:
  both: {{from: [shown, clicked], join: {{on: id, within: 5 minutes}}}}
sinks:
  out: {{from: both, lake: lake, date_of: at}}
"""
    )
    assert lab.lake("lake", "id", "ad", "cast(at_clicked AS STRING)") == [(1, "x", "2026-11-15 10:04:00")]


FILES_AND_TABLES = """
pipeline: visits
bootstrap: BOOTSTRAP
sources:
  shown:
    {files: shown, format: json, read: stream, schema: 'id BIGINT, at TIMESTAMP', watermark: 'at, 1 minute'}
  clicked: {topic: TOPIC, schema: 'id BIGINT, at TIMESTAMP', watermark: 'at, 1 minute'}
  ads: {table: ads_of_test}
steps:
  both: {from: [shown, clicked], join: {on: id, kind: left, within: 5 minutes}}
  named: {from: [both, ads], join: {on: id, kind: left}}
  out: {sql: 'SELECT id, at, ad, at_clicked IS NOT NULL AS was_clicked FROM named'}
sinks:
  lake: {from: out, lake: lake, date_of: at}
"""


def test_what_never_meets_anything_comes_when_its_time_is_over(
    lab: Lab, new_topic: Callable[..., str]
) -> None:
    """S4 S5: new files as a stream, left joins with a stream and a table; a column that comes later."""
    topic = new_topic()
    (lab.directory / "shown").mkdir()
    lab.spark.createDataFrame([(1, "x"), (2, "y")], "id BIGINT, ad STRING").write.saveAsTable("ads_of_test")
    ids = {"10:00": (1, 2, 3), "12:00": (8,), "14:00": (9,)}
    try:
        for time, shown in ids.items():
            rows = [json.dumps({"id": each, "at": f"2026-11-15T{time}:00Z"}) for each in shown]
            (lab.directory / "shown" / f"{time[:2]}.json").write_text("\n".join(rows))
            lab.send(topic, [{"id": 1, "at": f"2026-11-15T{time[:-1]}4:00Z"}])
            text = FILES_AND_TABLES.replace("TOPIC", topic)
            lab.run(
                text if time != "14:00" else text.replace("AS was_clicked", "AS was_clicked, id * 2 AS twice")
            )
    finally:
        lab.spark.sql("DROP TABLE ads_of_test")
    assert lab.lake("lake", "id", "ad", "was_clicked", "twice IS NULL") == [
        (1, "x", True, True),
        (2, "y", False, True),
        (3, None, False, True),
        (8, None, False, False),
    ]


def test_a_stream_meets_the_newest_rows_of_an_upserted_table(lab: Lab, new_topic: Callable[..., str]) -> None:
    """S4: a join of a stream and a table, and one with files and with a topic read as a table."""
    changes, orders, names = new_topic(), new_topic(), new_topic()
    lab.send(changes, [change("c", 1, 1, "Ann")])
    lab.send(orders, [{"id": 1, "unit": "kg"}])
    lab.send(names, [{"unit": "kg", "long": "kilogram"}])
    (lab.directory / "units.csv").write_text("unit,factor\nkg,1000\n")
    lab.run(BINLOG.replace("TOPIC", changes))
    text = f"""
pipeline: enriched
bootstrap: BOOTSTRAP
sources:
  orders: {{topic: {orders}, schema: 'id BIGINT, unit STRING'}}
  customers: {{table: ./customers}}
  units: {{files: units.csv, format: csv}}
  names: {{topic: {names}, read: table, schema: 'unit STRING, long STRING'}}
steps:
  named: {{from: [orders, customers], join: {{on: id, kind: left}}}}
  full:
    sql: |
      SELECT n.id, n.name, u.factor, s.long
      FROM named n JOIN units u USING (unit) JOIN names s USING (unit)
sinks:
  out: {{from: full, lake: lake}}
"""
    lab.run(text)
    lab.send(changes, [change("u", 2, 1, "Anna")])
    lab.run(BINLOG.replace("TOPIC", changes))
    lab.send(orders, [{"id": 1, "unit": "kg"}])
    lab.run(text)
    assert lab.lake("lake", "name", "factor", "long") == [
        ("Ann", 1000, "kilogram"),
        ("Anna", 1000, "kilogram"),
    ]


def test_a_schema_is_learnt_once_and_kept(lab: Lab, new_topic: Callable[..., str]) -> None:
    """S4: later records with more fields do not change a running pipeline."""
    topic, empty = new_topic(), new_topic()
    lab.send(topic, [{"id": 1, "price": 2.5}, b"{"])
    text = f"""
pipeline: learnt
bootstrap: BOOTSTRAP
sources: {{a: {{topic: {topic}, schema: infer, bad_records: drop}}}}
sinks: {{out: {{from: a, lake: lake}}}}
"""
    lab.run(text)
    lab.send(topic, [{"id": 2, "price": 3, "more": True}])
    lab.run(text)
    assert lab.lake("lake", "*")[0][:2] == (1, 2.5)
    assert Lake(lab.directory / "lake").schema().fieldNames() == ["id", "price", "date"]
    with pytest.raises(PipelineError, match="has no records to infer a schema from"):
        lab.run(text.replace(topic, empty).replace("learnt", "empty"))


def test_steps_in_python_from_yaml_and_from_decorators(lab: Lab, new_topic: Callable[..., str]) -> None:
    """S4: the same pipeline written both ways gives the same rows."""
    topic = new_topic()
    lab.send(topic, [{"id": n, "amount": n * 10} for n in range(5)])
    (lab.directory / "own_steps.py").write_text(
        "def large(orders):\n    return orders.where('amount > 20')\n"
    )
    lab.run(
        f"""
pipeline: by-yaml
bootstrap: BOOTSTRAP
sources: {{orders: {{topic: {topic}, schema: 'id BIGINT, amount BIGINT'}}}}
steps: {{large: {{from: orders, python: 'own_steps:large'}}}}
sinks: {{out: {{from: large, lake: by-yaml}}}}
"""
    )
    pipe = pipeline(
        "by-python", bootstrap=lab.bootstrap, checkpoint=str(lab.directory / "by-python-checkpoint")
    )
    pipe.source("orders", topic=topic, schema="id BIGINT, amount BIGINT")

    @pipe.step
    def large(orders: Any) -> Any:
        return orders.where("amount > 20")

    pipe.sink("out", source="large", lake=str(lab.directory / "by-python"))
    pipe.run(once=True, spark=lab.spark)
    assert lab.lake("by-python", "id") == lab.lake("by-yaml", "id") == [(3,), (4,)]


def test_a_python_step_that_keeps_other_state_is_refused(lab: Lab, new_topic: Callable[..., str]) -> None:
    """S4: a function may change its filters, not what its aggregates are made of."""
    topic = new_topic()
    lab.send(topic, [{"id": n, "shop": "a"} for n in range(3)])

    def attempt(key: str, least: int) -> None:
        place = str(lab.directory / "counted")
        pipe = pipeline("counted", bootstrap=lab.bootstrap, checkpoint=place, parallelism=1)
        pipe.source("orders", topic=topic, schema="id BIGINT, shop STRING")

        @pipe.step
        def counts(orders: Any) -> Any:
            return orders.where(f"id >= {least}").groupBy(key).count()

        pipe.sink("out", source="counts", topic=f"{topic}.out", mode="update")
        pipe.run(once=True, spark=lab.spark)

    attempt("shop", 0)
    attempt("shop", 1)
    with pytest.raises(PipelineError, match="what keeps state was Aggregate"):
        attempt("id", 1)


def test_dedup_within_a_time_needs_the_column_of_the_time(lab: Lab, new_topic: Callable[..., str]) -> None:
    """S4: what SQL leaves out is known when Spark has looked at it."""
    text = f"""\
pipeline: timeless
bootstrap: BOOTSTRAP
sources: {{a: {{topic: {new_topic()}, schema: 'id BIGINT, at TIMESTAMP', watermark: 'at, 1 hour'}}}}
steps:
  b: {{sql: SELECT id FROM a}}
  c: {{from: b, dedup: {{by: id, within: 1 minute}}}}
sinks: {{out: {{from: c, lake: lake}}}}
"""
    with pytest.raises(PipelineError, match="yaml:6: step c: b no longer has the column of its watermark"):
        lab.run(text)


@pytest.mark.parametrize(
    ("step", "told"),
    [
        ("sql: SELECT amuont FROM a", "amuont"),
        ("sql: SELEC * FROM a", "Syntax error"),
        ("sql: SELECT nofunction(id) FROM a", "nofunction"),
        ("{from: a, dedup: {by: idd}}", "a has no column idd; did you mean id?"),
        ("{from: a, python: 'nomodule:f'}", "there is no module nomodule"),
        ("{from: a, python: 'math:sqrt'}", "math:sqrt: TypeError: must be real number"),
        ("{from: a, newest: {by: id, order_by: att}}", "a has no column att; did you mean at?"),
    ],
)
def test_what_spark_has_against_a_step_names_its_line(
    step: str, told: str, lab: Lab, new_topic: Callable[..., str]
) -> None:
    """S4: nothing has been started by then."""
    topic = new_topic()
    body = step if step.startswith("{") else f"\n    {step}"
    text = f"""\
pipeline: wrong
bootstrap: BOOTSTRAP
sources: {{a: {{topic: {topic}, schema: 'id BIGINT, at TIMESTAMP, amount INT', watermark: 'at, 1 hour'}}}}
steps:
  b: {body}
sinks: {{out: {{from: b, lake: lake}}}}
"""
    with pytest.raises(PipelineError) as raised:
        lab.run(text)
    assert str(raised.value).startswith(f"pipeline.yaml:{5 if body == step else 6}: ")
    assert told.lower() in str(raised.value).lower()


def test_a_changed_window_is_refused_before_anything_runs(lab: Lab, new_topic: Callable[..., str]) -> None:
    """S4: the state of one cannot become that of the other."""
    topic = new_topic()
    text = f"""
pipeline: changed
bootstrap: BOOTSTRAP
sources: {{a: {{topic: {topic}, schema: at TIMESTAMP, watermark: 'at, 1 hour'}}}}
steps: {{b: {{from: a, window: {{on: at, size: 1 minute, compute: {{n: count(*)}}}}}}}}
sinks: {{out: {{from: b, lake: lake}}}}
"""
    lab.run(text)
    with pytest.raises(PipelineError, match="step b was"):
        lab.run(text.replace("1 minute", "2 minutes"))
    lab.run(text.replace("1 minute", "2 minutes").replace("changed\n", "changed\nversion: 2\n"))
