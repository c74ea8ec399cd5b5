"""Pipelines read from YAML: what is understood, and how mistakes are told."""

from __future__ import annotations

from pathlib import Path

import pytest

from braidmq.spark.pipelines import PipelineError, PipelineMistakes, load, loads
from braidmq.spark.pipelines.duration import Duration, parse_duration
from braidmq.spark.pipelines.model import (
    BadRecords,
    LakeSink,
    TopicSink,
    TopicSource,
    TopicStart,
    UpsertSink,
    ValueFormat,
    Watermark,
    WindowStep,
)

ORDERS = """\
pipeline: orders
bootstrap: 127.0.0.1:9092
sources:
  orders:
    topic: orders
    schema: id STRING NOT NULL, amount DECIMAL(10, 2), at TIMESTAMP
    watermark: at, 10 minutes
    bad_records: {topic: orders.bad}
    metadata: [key, offset]
steps:
  per_minute:
    from: orders
    window:
      on: at
      size: 1 minute
      compute: {orders: count(*), revenue: sum(amount)}
sinks:
  out:
    from: per_minute
    topic: orders.per-minute
    key: window_start
"""


def mistakes(text: str, tmp_path: Path) -> list[tuple[int, str]]:
    with pytest.raises(PipelineMistakes) as raised:
        loads(text, tmp_path)
    return [(mistake.location.line, mistake.text) for mistake in raised.value.mistakes]


def test_a_file_becomes_sources_steps_and_sinks(tmp_path: Path) -> None:
    """S4: every value where it belongs, with the defaults of what is not said."""
    pipeline = loads(ORDERS, tmp_path)
    orders = pipeline.sources[0]
    assert isinstance(orders, TopicSource)
    assert (orders.format, orders.start, orders.stream) == (ValueFormat.JSON, TopicStart.EARLIEST, True)
    assert (orders.bad_records, orders.bad_topic) == (BadRecords.SIDE_TOPIC, "orders.bad")
    assert orders.watermark == Watermark("at", Duration(600))
    step = pipeline.steps[0]
    assert isinstance(step, WindowStep)
    assert step.compute == (("orders", "count(*)"), ("revenue", "sum(amount)"))
    assert isinstance(pipeline.sinks[0], TopicSink)
    assert pipeline.checkpoint_directory == tmp_path / "checkpoints" / "orders" / "v1"


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    """S4: a pipeline can be started from anywhere; URLs stay what they are."""
    lake = ORDERS.replace("topic: orders.per-minute\n    key: window_start", "lake: lake/orders")
    sink = loads(lake, tmp_path).sinks[0]
    assert isinstance(sink, LakeSink)
    assert sink.path == str(tmp_path / "lake" / "orders")
    far = loads(lake.replace("lake/orders", "s3a://bucket/orders"), tmp_path).sinks[0]
    assert isinstance(far, LakeSink)
    assert far.path == "s3a://bucket/orders"


def test_a_misspelt_key_is_told_with_its_line_and_the_right_one(tmp_path: Path) -> None:
    """S4: in every part of a file."""
    found = mistakes(
        ORDERS.replace("bad_records:", "bad_record:")
        .replace("    key:", "    keys:")
        .replace("bootstrap:", "bootstraps:"),
        tmp_path,
    )
    assert [line for line, _ in found] == [2, 8, 21]
    assert "unknown key bootstraps; did you mean bootstrap?" in found[0][1]
    assert "source orders: unknown key bad_record; did you mean bad_records?" in found[1][1]
    assert "sink out: unknown key keys; did you mean key?" in found[2][1]


@pytest.mark.parametrize(
    ("before", "after", "line", "text"),
    [
        ("topic: orders\n", "topik: orders\n", 5, "did you mean topic?"),
        ("from: per_minute", "from: per_minut", 19, "did you mean per_minute?"),
        ("from: orders", "from: order", 12, "did you mean orders?"),
        ("size: 1 minute", "size: one minute", 15, "is not a duration"),
        ("watermark: at, 10 minutes", "watermark: at", 7, "column, 10 minutes"),
        ("watermark: at, 10 minutes\n", "start: soon\n", 7, "2026-11-15T21:00"),
        ("      on: at\n", "", 13, "needs on"),
        ("key, offset", "key, offsets", 9, "did you mean offset?"),
        ("amount DECIMAL(10, 2)", "amount", 6, "write: name TYPE"),
        ("DECIMAL(10, 2)", "DECIMAL(10, 2", 6, "brackets"),
        ("amount DECIMAL(10, 2)", "amount DECIMLA", 6, "amount: there is no type DECIMLA; did you mean DEC"),
        ("amount DECIMAL(10, 2)", "amount ARRAY<STRUCT<n:BIGNIT>>", 6, "did you mean BIGINT?"),
        ("amount DECIMAL(10, 2)", "ID INT", 6, "column ID is defined twice"),
        ("at TIMESTAMP", "at DATETIME", 6, "did you mean TIMESTAMP?"),
        ("watermark: at", "watermark: att", 7, "there is no column att; did you mean at?"),
        ("watermark: at", "watermark: amount", 7, "amount is DECIMAL(10, 2), not a TIMESTAMP"),
        ("      on: at\n", "      on: at\n      by: shop\n", 15, "orders has no column shop; there are: id,"),
        ("revenue: sum(amount)", "revenue: round(sum(amount), 2)", 16, "quote a text with commas"),
        ("key: window_start", "key: window_strat", 21, "did you mean window_start?"),
        ("127.0.0.1:9092", "127.0.0.1:port", 2, "bootstrap"),
        ("      size: 1 minute\n", "", 13, "size (a window) or gap (a session)"),
        ("topic: orders.per-minute", "topic: a/b", 20, "cannot be the name of a topic"),
        ("      on: at", "      on: amount", 14, "a watermark on at"),
        ("    watermark: at, 10 minutes\n", "", 10, "need a watermark; give orders one"),
        ("topic: orders.per-minute", "topic: orders", 20, "a loop"),
        ("  orders:\n    topic", "  orders:\n    files: x\n    topic", 5, "both topic and files"),
        ("pipeline: orders\n", "pipeline: orders\npipeline: again\n", 2, "given twice"),
        ("    from: per_minute\n", "\tfrom: per_minute\n", 19, "indent with spaces"),
        ("    schema: id", "      schema: id", 6, "indented further than line 5, which has a value already"),
        ("    topic: orders\n", "   topic: orders\n", 6, "indented further than line 5"),
        ("pipeline: orders", "pipeline orders", 2, "line 1 has no colon after its name"),
        (
            "  per_minute:",
            " per_minute:\n    sql: SELECT 1\n  other:",
            13,
            "its indent differs from that of line 11",
        ),
        ("{topic: orders.bad}", "{topic: orders.bad", 9, "the bracket opened on line 8 is not closed"),
        (
            "id STRING NOT NULL",
            "id NOT NULL",
            6,
            "column id: there is no type before NOT; write: name TYPE NOT",
        ),
        (
            "bootstrap: 127.0.0.1:9092",
            "bootstrap: ${NO_SUCH_VARIABLE}",
            2,
            "variable NO_SUCH_VARIABLE is not set",
        ),
        ("pipeline: orders\n", "pipeline: orders\nversion: two\n", 2, "whole number"),
    ],
)
def test_what_cannot_be_is_told_with_its_line(
    before: str, after: str, line: int, text: str, tmp_path: Path
) -> None:
    """S4: before anything is started."""
    assert before in ORDERS
    found = mistakes(ORDERS.replace(before, after, 1), tmp_path)
    assert any(at == line and text in said for at, said in found), found


def test_all_mistakes_of_a_file_are_told_at_once(tmp_path: Path) -> None:
    """S4: one look, not one run for each."""
    text = ORDERS.replace("schema:", "shema:").replace("size:", "sise:").replace("key:", "kee:")
    assert len(mistakes(text, tmp_path)) >= 3
    text = ORDERS.replace("watermark:", "watermak:").replace("from: per_minute", "from: per_minut")
    assert [line for line, _ in mistakes(text, tmp_path)] == [7, 19]


def test_a_mistake_is_not_told_again_by_what_comes_after_it(tmp_path: Path) -> None:
    """S4: neither by what reads a part that could not be read, nor by its columns."""
    unread = ORDERS.replace("    window:\n", "    windo:\n")
    assert [line for line, _ in mistakes(unread, tmp_path)] == [13]
    by = ORDERS.replace("      on: at\n", "      on: at\n      by: iid\n").replace(
        "key: window_start", "key: id"
    )
    assert [line for line, _ in mistakes(by, tmp_path)] == [15]


@pytest.mark.parametrize(
    "text", ["", "just a text", "- a\n- b", "sources: 3\npipeline: x\nsinks: []", "a: [1, 2"]
)
def test_what_is_no_pipeline_is_refused_in_words(text: str, tmp_path: Path) -> None:
    """S4: whatever is in the file."""
    assert mistakes(text, tmp_path)


def test_sql_may_hold_dollar_braces_of_its_own(tmp_path: Path) -> None:
    """S4: Spark has variables too."""
    text = ORDERS.replace(
        ORDERS[ORDERS.index("    from: orders") : ORDERS.index("sinks:")],
        "    sql: SELECT '${x}' AS value FROM orders\n",
    )
    assert "${x}" in loads(text, tmp_path).steps[0].sql  # type: ignore[union-attr]


def test_values_come_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S4: one file for several brokers."""
    monkeypatch.setenv("PLACE", "queue.example.com:9092")
    text = ORDERS.replace("127.0.0.1:9092", "${PLACE:-127.0.0.1:9092}")
    assert loads(text, tmp_path).bootstrap == "queue.example.com:9092"
    monkeypatch.delenv("PLACE")
    assert loads(text, tmp_path).bootstrap == "127.0.0.1:9092"


def test_steps_in_a_ring_are_refused(tmp_path: Path) -> None:
    """S4: with the ring spelt out."""
    text = """\
pipeline: ring
sources: {a: {topic: a, format: text}}
steps:
  b: {sql: SELECT * FROM c JOIN a ON true}
  c: {sql: SELECT * FROM b}
sinks: {out: {from: b, topic: out}}
"""
    assert mistakes(text, tmp_path) == [(4, "steps read each other in a cycle: b -> c -> b")]


def test_a_sink_needs_a_stream(tmp_path: Path) -> None:
    """S4: a table alone would never end or never begin."""
    text = "pipeline: x\nsources: {a: {files: dir, format: csv}}\nsinks: {out: {from: a, topic: out}}\n"
    assert "read: stream" in mistakes(text, tmp_path)[0][1]


def test_joins_of_streams_say_how_far_apart(tmp_path: Path) -> None:
    """S4: and both need event time, or their state would grow for ever."""
    text = """\
pipeline: joined
sources:
  a: {topic: a, schema: 'id BIGINT, at TIMESTAMP', watermark: 'at, 1 minute'}
  b: {topic: b, schema: 'id BIGINT, at TIMESTAMP'}
steps:
  both: {from: [a, b], join: {on: id}}
sinks: {out: {from: both, topic: out}}
"""
    told = [said for _, said in mistakes(text, tmp_path)]
    assert any("within: 1 hour" in each for each in told)
    assert any("b needs a watermark" in each for each in told)


DEDUP = """\
pipeline: once
sources:
  a: {topic: a, schema: 'id BIGINT, at TIMESTAMP', watermark: 'at, 1 minute'}
  t: {topic: t, schema: 'id BIGINT', read: table}
steps:
  b: {from: a, dedup: {by: id, within: 1 hour}}
  c: {sql: SELECT * FROM b WHERE id > 0}
sinks: {out: {from: c, topic: out}}
"""


@pytest.mark.parametrize(
    "other",
    [
        "{from: c, window: {on: at, size: 1 minute, compute: {n: count(*)}}}",
        "{from: c, dedup: {by: id}}",
        "{sql: 'SELECT id, count(*) AS n FROM c GROUP BY id'}",
    ],
)
def test_dedup_within_a_time_does_not_go_together_with_other_state(other: str, tmp_path: Path) -> None:
    """S4: Spark has no watermark behind it, and does not let it come after an aggregation."""
    text = DEDUP.replace("sinks:", f"  d: {other}\nsinks:")
    said = "step b: within cannot be used with d, which keeps state too; remove within"
    assert mistakes(text, tmp_path) == [(6, said)]
    assert loads(text.replace(", within: 1 hour", ""), tmp_path).steps


def test_dedup_within_a_time_is_for_streams(tmp_path: Path) -> None:
    """S4: a table has no event time."""
    assert loads(DEDUP, tmp_path).steps
    table = DEDUP.replace("sinks:", "  d: {from: t, dedup: {by: id, within: 1 hour}}\nsinks:")
    assert mistakes(table, tmp_path) == [(8, "step d: within is for streams; t is a table")]


def test_an_upsert_names_key_and_order(tmp_path: Path) -> None:
    """S4: without an order nobody could say which change is newer."""
    text = (
        "pipeline: x\nsources: {a: {topic: a, schema: id INT}}\nsinks: {t: {from: a, upsert: t, key: id}}\n"
    )
    assert mistakes(text, tmp_path) == [(3, "sink t needs order_by")]
    sink = loads(text.replace("key: id", "key: id, order_by: id"), tmp_path).sinks[0]
    assert isinstance(sink, UpsertSink)
    assert sink.key == ("id",)


def test_an_avro_sink_has_no_framing(tmp_path: Path) -> None:
    """S4: nobody would find the id of a schema that no registry has."""
    schema = '{"type": "record", "name": "R", "fields": []}'
    text = f"""\
pipeline: framed
sources: {{a: {{topic: a, format: text}}}}
sinks:
  out:
    {{from: a, topic: out, format: avro, schema: '{schema}',
     framing: registry}}
"""
    assert mistakes(text, tmp_path) == [
        (6, "sink out: framing: values are written plain, without the id of a registry; remove it")
    ]


def test_an_avro_source_takes_its_schema_from_a_file(tmp_path: Path) -> None:
    """S4: or says which file is missing."""
    source = "{topic: a, format: avro, schema: a.avsc}"
    text = f"pipeline: x\nsources: {{a: {source}}}\nsinks: {{o: {{from: a, topic: o}}}}\n"
    assert "there is no file" in mistakes(text, tmp_path)[0][1]
    (tmp_path / "a.avsc").write_text('{"type": "record"}')
    assert "the Avro schema cannot be used" in mistakes(text, tmp_path)[0][1]
    right = '{"type": "record", "name": "a", "fields": [{"name": "id", "type": "long"}]}'
    (tmp_path / "a.avsc").write_text(right)
    read = loads(text, tmp_path).sources[0]
    assert isinstance(read, TopicSource)
    assert read.avro is not None
    assert read.avro.text == right


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    """S4: with the command that makes one."""
    with pytest.raises(PipelineError, match="braid pipeline init"):
        load(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("text", "seconds", "spark"),
    [
        ("10 minutes", 600, "10 minutes"),
        ("1h", 3600, "1 hour"),
        ("90 s", 90, "90 seconds"),
        ("250ms", 0.25, "250 milliseconds"),
    ],
)
def test_spans_of_time_are_read_as_people_write_them(text: str, seconds: float, spark: str) -> None:
    """S4: and written as Spark reads them."""
    found = parse_duration(text)
    assert found == Duration(seconds)
    assert str(found) == spark


COLUMNS = """\
pipeline: columns
sources:
  a: {topic: a, schema: "id BIGINT, at TIMESTAMP, note STRING COMMENT 'one, two'", watermark: 'at, 1 minute'}
  b: {topic: b, schema: 'id BIGINT, note STRUCT<x: INT, y: MAP<STRING, INT>>', read: table}
  raw: {topic: c, format: raw, metadata: [key]}
steps:
  both: {from: [a, b], join: {on: id}}
  one: {from: both, dedup: {by: id}}
  last: {from: raw, newest: {by: _key, order_by: value}}
  free: {sql: SELECT anything FROM one}
sinks:
  lake: {from: one, lake: lake, date_of: at}
  rows: {from: one, upsert: rows, key: id, order_by: note_b}
  out: {from: last, topic: out, format: raw, key: _key}
  any: {from: free, topic: any, key: whatever}
"""


def test_columns_are_followed_through_the_steps(tmp_path: Path) -> None:
    """S4: as far as the file says what they are; SQL is left to Spark."""
    assert loads(COLUMNS, tmp_path).sinks
    for before, after, said in (
        ("date_of: at", "date_of: day", "sink lake: one has no column day; there are: id, at, note, note_b"),
        ("order_by: note_b", "order_by: note_c", "sink rows: one has no column note_c; did you mean note_b?"),
        ("dedup: {by: id}", "dedup: {by: idd}", "step one: both has no column idd; did you mean id?"),
        ("by: _key", "by: key", "step last: raw has no column key; did you mean _key?"),
        ("from: last, topic: out", "from: one, topic: out", "which takes the column value; one has id, at,"),
    ):
        assert said in mistakes(COLUMNS.replace(before, after, 1), tmp_path)[0][1]


def test_options_of_topics_are_checked_before_spark_is_needed(tmp_path: Path) -> None:
    """S4 S1: names with the closest right one and their line, then what they say together."""
    misspelt = ORDERS.replace("    metadata: [key, offset]\n", "    options: {maxOffsetPerTrigger: 5}\n")
    misspelt = misspelt.replace("    key: window_start\n", "    options: {compresion.type: zstd}\n")
    misspelt = misspelt.replace("sources:\n", "options: {sasl.pasword: x}\nsources:\n", 1)
    assert mistakes(misspelt, tmp_path) == [
        (3, "options: a topic has no option 'sasl.pasword'; did you mean 'sasl.password'?"),
        (10, "options: a topic has no option 'maxOffsetPerTrigger'; did you mean 'maxOffsetsPerTrigger'?"),
        (22, "options: a topic has no option 'compresion.type'; did you mean 'compression.type'?"),
    ]
    nobody = ORDERS.replace("sources:\n", "options: {security.protocol: SASL_SSL}\nsources:\n", 1)
    (_, source), (_, sink) = mistakes(nobody, tmp_path)
    assert "source orders: options: " in source
    assert "sink out: options: sasl.mechanism is ''; it must be one of PLAIN, SCRAM-SHA-256" in sink


def test_options_given_beside_the_file_stand_in_for_its_own(tmp_path: Path) -> None:
    """S4 S1: however they are spelt, and before anything is checked; those of a part stay its own."""
    file = tmp_path / "orders.yaml"
    file.write_text(
        ORDERS.replace("sources:\n", "options: {kafka.security.protocol: SASL_SSL}\nsources:\n", 1)
    )
    pipeline = load(file, {"security.protocol": "PLAINTEXT", "client.id": "here"})
    assert dict(pipeline.options) == {"security.protocol": "PLAINTEXT", "client.id": "here"}


def test_a_program_that_fails_is_told_with_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S4: also where it was named by a path that is not absolute."""
    (tmp_path / "wrong_import.py").write_text("import json\nfrom braidmq.pipelines import pipeline\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PipelineError, match=r"^wrong_import\.py:2: ModuleNotFoundError"):
        load("wrong_import.py")
