"""What a pipeline's file says is what runs; what Spark would refuse is told before anything does."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql import functions as F  # noqa: N812
from tests.spark.test_pipelines import Lab, lab  # noqa: F401
from tests.spark.test_pipelines_topics import messages

from braidmq.spark.lake import Lake, compaction
from braidmq.spark.lake.commits import ParquetFile
from braidmq.spark.pipelines import PipelineError, PipelineMistakes
from braidmq.spark.pipelines.checkpoint import Checkpoint
from braidmq.spark.pipelines.frames import output_mode
from braidmq.spark.pipelines.runner import run

pytestmark = pytest.mark.timeout(300)


def test_options_of_parsers_reach_every_parser(lab: Lab, new_topic: Callable[..., str]) -> None:  # noqa: F811
    """S4: inference, decoding, reasons, writing; a header of CSV files is one unless the file says so."""
    topic = new_topic()
    lab.send(topic, [b"1;x", b"2;NO", b"3"])
    (lab.directory / "named.csv").write_text("id,word\n1,one\n2,two\n")
    (lab.directory / "plain.csv").write_text("1,uno\n2,due\n")
    text = f"""
pipeline: options
bootstrap: BOOTSTRAP
sources:
  a:
    topic: {topic}
    format: csv
    schema: infer
    bad_records: {{topic: {topic}.bad}}
    options: {{value.sep: ";", value.nullValue: NO}}
  named: {{files: named.csv, format: csv, schema: 'id INT, word STRING'}}
  plain: {{files: plain.csv, format: csv, options: {{header: false}}}}
steps:
  all:
    sql: |
      SELECT a._c0 AS id, a._c1 AS letter, named.word, plain._c1 AS parola
      FROM a JOIN named ON named.id = a._c0 JOIN plain ON plain._c0 = a._c0
sinks:
  out: {{from: all, topic: {topic}.out, format: csv, options: {{value.sep: "\\t", value.nullValue: "-"}}}}
"""
    lab.run(text)
    found = {each.value() for each in messages(lab.bootstrap, f"{topic}.out")}
    assert found == {b"1\tx\tone\tuno", b"2\t-\ttwo\tdue"}
    (bad,) = messages(lab.bootstrap, f"{topic}.bad")
    assert dict(bad.headers())["braid.reason"] == b"1 columns, expected 2: _c0, _c1"


def test_nan_is_a_number_on_every_way(lab: Lab, new_topic: Callable[..., str]) -> None:  # noqa: F811
    """S4: dedup and newest hand it on, at any depth; as a bare word it is no JSON and a bad record."""
    topic = new_topic(partitions=1)
    at = "2026-11-15T10:00:00Z"
    row = {"id": 1, "at": at, "x": "NaN", "f": "-Infinity", "many": [1.5, "NaN", None], "by": {"a": "NaN"}}
    bare = [
        b'{"id": 7, "at": "%s", "x": NaN}' % at.encode(),
        b'{"id": 8, "at": "%s", "by": {"a": Infinity}}' % at.encode(),
    ]
    lab.send(topic, [row, {"id": 2, "at": at}, *bare])
    lab.send(topic, [{"id": 3, "at": at, "x": x} for x in (2.0, "NaN")])
    lab.send(topic, [{"id": 3, "at": at, "x": 9.0}])
    text = f"""
pipeline: numbers
bootstrap: BOOTSTRAP
sources:
  a:
    topic: {topic}
    schema: 'id BIGINT, at TIMESTAMP, x DOUBLE, f FLOAT, many ARRAY<DOUBLE>, by MAP<STRING, DOUBLE>'
    watermark: at, 1 hour
    bad_records: {{topic: {topic}.bad}}
steps:
  first: {{from: a, dedup: {{by: [id, x], within: 1 minute}}}}
  last: {{from: a, newest: {{by: id, order_by: x}}}}
sinks:
  first: {{from: first, lake: first, date_of: at}}
  last: {{from: last, lake: last, date_of: at}}
"""
    lab.run(text)
    shown = ("id", "string(x)", "string(f)", "string(many)", "string(by)")
    one = (1, "NaN", "-Infinity", "[1.5, NaN, null]", "{a -> NaN}")
    two = (2, None, None, None, None)
    three = [(3, text, None, None, None) for text in ("2.0", "9.0", "NaN")]
    assert sorted(lab.lake("first", *shown), key=str) == [one, two, *three]
    assert sorted(lab.lake("last", *shown), key=str) == [one, two, *three]
    reasons = [dict(each.headers())["braid.reason"] for each in messages(lab.bootstrap, f"{topic}.bad")]
    assert reasons == [
        b"not JSON: NaN is not a number in JSON",
        b"not JSON: Infinity is not a number in JSON",
    ]
    lab.send(topic, [{"id": 3, "at": at, "x": 10.0}])
    lab.run(text)
    assert sorted(lab.lake("last", *shown), key=str) == [one, two, *three]


def test_a_lake_that_another_compaction_tidies_up_is_no_failure(
    lab: Lab,  # noqa: F811
    new_topic: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """S4 S5: `braid lake compact` was faster; the rows are in the lake, and files wait for a next batch."""
    topic = new_topic(partitions=1)
    text = f"""
pipeline: small
bootstrap: BOOTSTRAP
sources: {{a: {{topic: {topic}, schema: id BIGINT}}}}
sinks: {{out: {{from: a, lake: lake}}}}
"""
    monkeypatch.setattr(compaction, "FRAGMENTED_FILES", 2)
    merge = compaction._merge

    def overtaken(lake: Lake, spark: Any, group: list[ParquetFile]) -> Any:
        merge(lake, spark, group)
        return merge(lake, spark, group)

    with monkeypatch.context() as patch:
        patch.setattr(compaction, "_merge", overtaken)
        for number in range(2):
            lab.send(topic, [{"id": number}])
            lab.run(text)
    assert "another compaction finished first; nothing was changed; small files are merged" in caplog.text
    lab.send(topic, [{"id": 2}])
    lab.run(text)
    assert lab.lake("lake", "id") == [(0,), (1,), (2,)]
    assert len(Lake(lab.directory / "lake").snapshot().files) == 1


def test_an_upsert_takes_what_spark_gives_out_only_once(
    lab: Lab,  # noqa: F811
    new_topic: Callable[..., str],
) -> None:
    """S4: changes in their order; sessions and outer joins know no updates either."""
    topic = new_topic()
    lab.send(topic, [{"id": 1, "pos": pos} for pos in (2, 1, 3)])
    lab.run(
        f"""
pipeline: once
bootstrap: BOOTSTRAP
sources: {{a: {{topic: {topic}, schema: 'id BIGINT, pos BIGINT'}}}}
steps: {{ordered: {{from: a, newest: {{by: id, order_by: pos}}}}}}
sinks: {{newest: {{from: ordered, upsert: newest, key: id, order_by: pos}}}}
"""
    )
    assert [(row["id"], row["pos"]) for row in lab.table("newest")] == [(1, 3)]
    ticks = lab.spark.readStream.format("rate").load().withWatermark("timestamp", "1 minute")
    others = ticks.toDF("other_time", "other")
    near = F.expr("value = other AND other_time BETWEEN timestamp AND timestamp + INTERVAL 1 MINUTE")
    for frame, mode in (
        (ticks, "update"),
        (ticks.groupBy("value").count(), "update"),
        (ticks.groupBy(F.window("timestamp", "1 minute")).count(), "update"),
        (ticks.join(others, near), "update"),
        (ticks.groupBy(F.session_window("timestamp", "1 minute")).count(), "append"),
        (ticks.join(others, near, "left"), "append"),
    ):
        assert output_mode(frame, "update", "append") == mode


LINES = """\
pipeline: lines
bootstrap: BOOTSTRAP
sources:
  a: {topic: TOPIC, schema: 'id BIGINT, name STRING'}
  b:
    format: csv
    files: tabel.csv
steps:
  counted:
    sql: |
      SELECT id,
             nam
      FROM a
  joined: {from: [a, b], join: {on: id}}
sinks:
  out: {from: STEP, topic: TOPIC.out}
"""


@pytest.mark.parametrize(
    ("step", "told"),
    [
        ("counted", "pipeline.yaml:12: step counted: [UNRESOLVED_COLUMN.WITH_SUGGESTION]"),
        (
            "joined",
            "pipeline.yaml:7: source b: there is no file or directory DIR/tabel.csv; did you mean table",
        ),
    ],
)
def test_what_spark_does_not_find_is_told_by_the_line_it_stands_on(
    step: str,
    told: str,
    lab: Lab,  # noqa: F811
    new_topic: Callable[..., str],
) -> None:
    """S4: within a query of several lines, too; files with what was probably meant."""
    topic = new_topic()
    (lab.directory / ("table.csv" if "tabel.csv" in told else "tabel.csv")).write_text("id\n1\n")
    with pytest.raises(PipelineMistakes) as raised:
        lab.run(LINES.replace("STEP", step).replace("TOPIC", topic))
    assert str(raised.value).startswith(told.replace("DIR", str(lab.directory)))
    assert "SQLSTATE" not in str(raised.value)


REFUSED = """\
pipeline: refused
bootstrap: BOOTSTRAP
sources: {a: {topic: TOPIC, schema: 'id BIGINT, op STRING, at TIMESTAMP', watermark: 'at, 1 hour'}}
steps:
  counts: {sql: 'SELECT op, count(*) AS n FROM a GROUP BY op'}
  timeless: {sql: SELECT id FROM a}
  joined: {from: [a, RIGHT], join: {on: id, within: 1 hour}}
sinks:
  first: {from: a, topic: TOPIC.first}
  second: SINK
"""


@pytest.mark.parametrize(
    ("sink", "told"),
    [
        ("{from: counts, topic: TOPIC.n}", "pipeline.yaml:10: sink second: [STREAMING_OUTPUT_MODE"),
        (
            "{from: a, upsert: t, key: id, order_by: at, delete_when: opp = 'd'}",
            "pipeline.yaml:10: sink second: [UNRESOLVED_COLUMN",
        ),
        (
            "{from: joined, topic: TOPIC.n}",
            "pipeline.yaml:7: step joined: timeless no longer has the column of its watermark, only id;",
        ),
    ],
)
def test_what_spark_refuses_names_its_line_before_any_query_runs(
    sink: str,
    told: str,
    lab: Lab,  # noqa: F811
    new_topic: Callable[..., str],
) -> None:
    """S4: and what was refused may be mended, as nothing has begun."""
    topic = new_topic()
    lab.send(topic, [{"id": 1, "op": "c", "at": "2026-11-15T10:00:00Z"}])
    right = "timeless" if "joined" in sink else "a"
    text = REFUSED.replace("SINK", sink).replace("TOPIC", topic).replace("RIGHT", right)
    with pytest.raises(PipelineError) as raised:
        lab.run(text)
    assert str(raised.value).startswith(told)
    checkpoint = Checkpoint(lab.load(text).checkpoint_directory)
    assert not checkpoint.has_begun("first")
    if "counts" in sink:
        lab.run(text.replace(f"topic: {topic}.n", f"topic: {topic}.n, mode: update"))
        assert checkpoint.has_begun("first")


STATES = """
pipeline: states
bootstrap: BOOTSTRAP
sources:
  a: {topic: TOPIC, schema: 'id BIGINT, shop STRING, amount INT, at TIMESTAMP', watermark: 'at, 1 hour'}
  b: {topic: TOPIC, schema: 'id BIGINT, at TIMESTAMP', watermark: 'at, 1 hour'}
steps:
  sums: {from: a, window: {on: at, size: 1 minute, by: shop, compute: {n: sum(amount)}}}
  both: {from: [a, b], join: {on: id, within: 1 hour}}
  ids: {sql: 'SELECT id, shop FROM both'}
sinks:
  sums: {from: sums, lake: sums}
  both: {from: ids, lake: both}
"""


def test_state_of_other_columns_is_refused_with_advice(
    lab: Lab,  # noqa: F811
    new_topic: Callable[..., str],
) -> None:
    """S4: state is read back by position; what is not kept in it may change."""
    topic = new_topic()
    lab.send(topic, [{"id": 1, "shop": "7", "amount": 2, "at": "2026-11-15T10:00:00Z"}])
    text = STATES.replace("TOPIC", topic)
    lab.run(text)
    lab.run(text.replace("amount INT", "amount BIGINT").replace("at TIMESTAMP'", "at TIMESTAMP, more INT'"))
    for before, after in (
        ("shop STRING", "shop INT"),
        ("amount INT", "amount DECIMAL(9, 2)"),
        ("SELECT id, shop FROM both", "SELECT id, shop, amount FROM both"),
    ):
        with pytest.raises(PipelineError, match=r"what is kept in state was .* set version: 2"):
            lab.run(text.replace(before, after))


def test_a_python_step_has_its_modules_wherever_it_runs(
    lab: Lab,  # noqa: F811
    new_topic: Callable[..., str],
) -> None:
    """S4: modules beside the file go to the workers; settings that are fixed with a session are no error."""
    topic = new_topic()
    lab.send(topic, [{"id": 1}])
    package = lab.directory / "shipped_helpers"
    package.mkdir()
    (package / "__init__.py").write_text("from shipped_helpers.more import FACTOR\n")
    (package / "more.py").write_text("FACTOR = 10\n\n\ndef times(number):\n    return number * FACTOR\n")
    (lab.directory / "shipped_steps.py").write_text(
        "from shipped_helpers.more import times\n\n\n"
        "def each(frames):\n    return (frame.assign(id=frame.id.map(times)) for frame in frames)\n\n\n"
        "def tenfold(rows):\n    return rows.mapInPandas(each, rows.schema)\n"
    )
    made = lab.load(
        f"""
pipeline: shipped
bootstrap: BOOTSTRAP
sources: {{a: {{topic: {topic}, schema: id BIGINT}}}}
steps: {{b: {{from: a, python: 'shipped_steps:tenfold'}}}}
sinks: {{out: {{from: b, topic: {topic}.out}}}}
"""
    )
    static = (("spark.sql.warehouse.dir", str(lab.directory)), ("spark.sql.extensions", ""))
    run(replace(made, spark=static), once=True, spark=lab.spark)
    found: list[Any] = [json.loads(each.value()) for each in messages(lab.bootstrap, f"{topic}.out")]
    assert found == [{"id": 10}]
