"""Checkpoints and the files that made them: what may change."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from braidmq.spark.pipelines import PipelineError, compatibility, loads
from braidmq.spark.pipelines.checkpoint import Checkpoint
from braidmq.spark.pipelines.status import QueryStatus, RunState, RunStatus, load_status

FILE = """\
pipeline: orders
sources:
  orders:
    topic: orders
    schema: id STRING, shop STRING, amount DOUBLE, at TIMESTAMP
    watermark: at, 10 minutes
  clicks: {topic: clicks, schema: 'id STRING, at TIMESTAMP', watermark: 'at, 1 minute'}
steps:
  large:
    sql: SELECT * FROM orders WHERE amount > 100
  per_minute:
    from: large
    window: {on: at, size: 1 minute, by: shop, compute: {n: count(*)}}
  totals:
    sql: SELECT shop, count(*) AS n FROM orders GROUP BY shop
  both:
    sql: SELECT id FROM orders UNION ALL SELECT id FROM clicks
sinks:
  minutes: {from: per_minute, topic: minutes}
  sums: {from: totals, topic: sums, mode: update}
  ids: {from: both, topic: ids}
  table: {from: large, upsert: tables/large, key: id, order_by: at}
"""


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    pipeline = loads(FILE, tmp_path)
    made = Checkpoint(pipeline.checkpoint_directory)
    compatibility.record(pipeline, made)
    for sink in pipeline.sinks:
        begin(made, sink.name)
    return made


def begin(checkpoint: Checkpoint, query: str) -> None:
    """As Spark does when it plans the first batch."""
    (checkpoint.query(query) / "offsets").mkdir(parents=True)
    (checkpoint.query(query) / "offsets" / "0").write_text("v1")


@pytest.mark.parametrize(
    ("before", "after", "note"),
    [
        ("", "", None),
        ("amount > 100", "amount > 200", "step large was"),
        ("watermark: at, 10 minutes", "watermark: at, 1 hour", "watermark delay of orders"),
        ("topic: minutes", "topic: minutes-2", "topic was minutes"),
        ("    topic: orders\n", "    topic: orders\n    start: latest\n", "continues from its own offsets"),
        ("from: large\n", "from: orders\n", "step large was"),
        (", watermark: 'at, 1 minute'", "", "query ids: watermark column of clicks was at, now not there"),
        ("  ids: {from: both, topic: ids}\n", "", "query ids was removed"),
        ("sinks:\n", "sinks:\n  more: {from: large, topic: more}\n", "query more is new"),
        (
            "SELECT shop, count(*) AS n FROM",
            "select  shop, COUNT(*) as n -- the same\n from".replace("\n", " "),
            None,
        ),
    ],
)
def test_a_change_the_checkpoint_can_follow_goes_on(
    before: str, after: str, note: str | None, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    """S4: and the user is told what it does."""
    if "-- the same" in after:
        after = after.replace("-- the same", "/* the same */")
    changed = loads(FILE.replace(before, after, 1), tmp_path)
    notes = compatibility.check(changed, checkpoint)
    assert any(note in each for each in notes) if note else notes == []


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ("    topic: orders\n", "    topic: orders-2\n", "input was topic orders, now topic orders-2"),
        ("size: 1 minute", "size: 5 minutes", '"size": 5 minutes, "by"'),
        ("by: shop, compute", "by: id, compute", '"by": ["id"]'),
        ("GROUP BY shop", "GROUP BY shop, id", "step totals was"),
        (
            "SELECT id FROM orders UNION ALL SELECT id FROM clicks",
            "SELECT id FROM clicks UNION ALL SELECT id FROM orders",
            "input was topic orders, topic clicks, now topic clicks, topic orders",
        ),
        ("mode: update", "mode: complete", "mode was update"),
        ("key: id", "key: shop", "key was id"),
        ("order_by: at", "order_by: amount", "order_by was at"),
        ("ids: {from: both, topic: ids}", "ids: {from: both, lake: ids}", "sink was a topic"),
    ],
)
def test_a_change_the_checkpoint_cannot_follow_is_refused_with_the_reason(
    before: str, after: str, reason: str, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    """S4: and with what to do about it."""
    changed = loads(FILE.replace(before, after, 1), tmp_path)
    with pytest.raises(PipelineError) as raised:
        compatibility.check(changed, checkpoint)
    assert reason in str(raised.value)
    assert "version: 2" in str(raised.value)


JOIN = """\
pipeline: joined
sources:
  a: {topic: a, schema: 'id BIGINT, at TIMESTAMP', watermark: 'at, 1 minute'}
  b: {topic: b, schema: 'id BIGINT, at TIMESTAMP', watermark: 'at, 1 minute'}
steps:
  large: {sql: SELECT * FROM a WHERE id > 5}
  both: {from: [a, b], join: {on: id, within: 1 hour}}
sinks:
  out: {from: both, topic: out}
"""


@pytest.mark.parametrize(
    ("inputs", "may"),
    [("a, b", ["large, b"]), ("large, a", []), ("a, large", [])],
)
def test_a_join_of_streams_keeps_its_sides(inputs: str, may: list[str], tmp_path: Path) -> None:
    """S4: a filter in front of one is no other side, also where both read the same topic."""
    pipeline = loads(JOIN.replace("a, b", inputs), tmp_path)
    checkpoint = Checkpoint(pipeline.checkpoint_directory)
    compatibility.record(pipeline, checkpoint)
    begin(checkpoint, "out")
    for others in ("a, b", "b, a", "large, b", "a, large", "large, a"):
        changed = loads(JOIN.replace("a, b", others), tmp_path)
        if others == inputs or others in may:
            compatibility.check(changed, checkpoint)
        else:
            with pytest.raises(PipelineError, match=r"input was|step both was"):
                compatibility.check(changed, checkpoint)


def test_a_query_that_never_began_may_still_become_another(tmp_path: Path) -> None:
    """S4: Spark refused it at its start, say; no batch has been planned that it would have to go on from."""
    pipeline = loads(FILE, tmp_path)
    checkpoint = Checkpoint(pipeline.checkpoint_directory)
    compatibility.record(pipeline, checkpoint, {"sums": {compatibility.STATE: "Aggregate [shop]"}})
    mended = loads(FILE.replace("mode: update", "mode: complete"), tmp_path)
    assert compatibility.check(mended, checkpoint) == []
    compatibility.check_states(mended, checkpoint, {"sums": {compatibility.STATE: "Aggregate [id]"}})
    begin(checkpoint, "sums")
    with pytest.raises(PipelineError, match="mode was update"):
        compatibility.check(mended, checkpoint)
    with pytest.raises(PipelineError, match="what keeps state was Aggregate"):
        compatibility.check_states(mended, checkpoint, {"sums": {compatibility.STATE: "Aggregate [id]"}})


def test_of_long_texts_that_differ_the_place_is_shown(checkpoint: Checkpoint, tmp_path: Path) -> None:
    """S4: and neither what is the same before it nor what is the same behind it."""
    pipeline = loads(FILE, tmp_path)
    columns = "struct<window_start:timestamp,window_end:timestamp,shop:string,n:bigint,{},highest:double>"
    kept = f"Aggregate by struct<start:timestamp,end:timestamp>, string to {columns}"
    compatibility.record(
        pipeline, checkpoint, {"minutes": {compatibility.COLUMNS: kept.format("lowest:double")}}
    )
    now = {"minutes": {compatibility.COLUMNS: kept.format("lowest:float")}}
    with pytest.raises(PipelineError) as raised:
        compatibility.check_states(pipeline, checkpoint, now)
    told = str(raised.value)
    around = "…shop:string,n:bigint,lowest:{},highest:double>"
    assert f"was {around.format('double')}, now {around.format('float')}. Undo" in told


def test_a_new_version_begins_a_new_checkpoint(checkpoint: Checkpoint, tmp_path: Path) -> None:
    """S4: the old one stays where it is."""
    changed = loads(
        FILE.replace("size: 1 minute", "size: 5 minutes").replace(
            "pipeline: orders", "pipeline: orders\nversion: 2"
        ),
        tmp_path,
    )
    assert changed.checkpoint_directory == checkpoint.directory.parent / "v2"
    assert compatibility.check(changed, Checkpoint(changed.checkpoint_directory)) == []


def test_a_query_that_comes_back_must_still_fit(checkpoint: Checkpoint, tmp_path: Path) -> None:
    """S4: what it was made of is remembered while it is gone."""
    without = loads(FILE.replace("  sums: {from: totals, topic: sums, mode: update}\n", ""), tmp_path)
    compatibility.record(without, checkpoint)
    back = loads(FILE.replace("GROUP BY shop", "GROUP BY id"), tmp_path)
    with pytest.raises(PipelineError, match="step totals"):
        compatibility.check(back, checkpoint)


def test_a_second_run_on_a_checkpoint_is_kept_out(checkpoint: Checkpoint) -> None:
    """S4: two runs would take each other's batches."""
    with checkpoint.held(), pytest.raises(PipelineError, match="in use by another run"), checkpoint.held():
        pass
    with checkpoint.held():
        pass


def test_positions_come_from_the_last_finished_batch(checkpoint: Checkpoint) -> None:
    """S4: a batch that was only planned is read again."""
    query = checkpoint.query("minutes")
    (query / "commits").mkdir()
    for batch in (0, 1):
        lines = ["v1", "{}", json.dumps({"orders": {"0": 10 * (batch + 1)}}), "not of a topic"]
        (query / "offsets" / str(batch)).write_text("\n".join(lines))
    assert checkpoint.positions("minutes") == []
    (query / "commits" / "0").write_text("v1\n{}")
    assert checkpoint.last_batch("minutes") == 0
    assert checkpoint.positions("minutes") == [{"orders": {"0": 10}}, None]


def state_now(checkpoint: Checkpoint) -> tuple[RunState, RunState]:
    found = load_status(checkpoint)
    assert found is not None
    return found.state, found.queries[0].state


def test_a_run_that_was_killed_is_known_to_have_died(checkpoint: Checkpoint) -> None:
    """S4: whatever it wrote last, and whoever has the number of its process now."""
    queries = [QueryStatus("minutes", RunState.RUNNING)]
    status = RunStatus("orders", 1, RunState.RUNNING, os.getpid(), os.uname().nodename, queries=queries)
    status.save(checkpoint)
    with checkpoint.held():
        assert state_now(checkpoint) == (RunState.RUNNING, RunState.RUNNING)
    assert state_now(checkpoint) == (RunState.DIED, RunState.DIED)


@pytest.mark.parametrize(("state", "silent_s"), [(RunState.RUNNING, 31), (RunState.STARTING, 601)])
def test_a_run_on_another_machine_is_known_by_when_it_was_heard_of(
    state: RunState, silent_s: int, checkpoint: Checkpoint
) -> None:
    """S4: it writes every second once it runs; its lock may not be seen from here."""
    now_ms = time.time_ns() // 1_000_000
    status = RunStatus("orders", 1, state, 1, "elsewhere", queries=[QueryStatus("minutes", state)])
    for updated_ms, expected in ((now_ms, state), (now_ms - silent_s * 1000, RunState.DIED)):
        status.updated_ms = updated_ms
        status.save(checkpoint)
        assert state_now(checkpoint) == (expected, expected)
    with checkpoint.held():
        assert state_now(checkpoint) == (state, state)


def test_a_damaged_checkpoint_file_is_named(checkpoint: Checkpoint) -> None:
    """S4: rather than a traceback."""
    (checkpoint.directory / "pipeline.json").write_text("{")
    with pytest.raises(PipelineError, match=r"pipeline\.json is damaged"):
        checkpoint.read("pipeline.json")
