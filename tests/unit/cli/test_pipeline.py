"""`braid pipeline` as far as it needs no Spark: init, plan, status, and mistakes."""

from __future__ import annotations

import json
import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from braidmq.cli import main
from braidmq.cli.pipeline import _stopped_by_signals
from braidmq.client import Producer
from braidmq.spark.pipelines import Pipeline, load, templates
from braidmq.spark.pipelines.checkpoint import Checkpoint, holding
from braidmq.spark.pipelines.preflight import Preflight
from braidmq.spark.pipelines.status import QueryStatus, RunState, RunStatus
from braidmq.spark.session import SparkMissing

FILE = """\
pipeline: orders
bootstrap: BOOTSTRAP
sources:
  orders: {topic: TOPIC, format: text}
steps:
  long: {sql: SELECT * FROM orders WHERE length(value) > 3}
  unused: {sql: SELECT * FROM orders}
sinks:
  out: {from: long, topic: TOPIC.out, format: text}
"""


@pytest.fixture
def file(tmp_path: Path, bootstrap: str, new_topic: Callable[..., str]) -> Path:
    topic = new_topic(partitions=2)
    with Producer(bootstrap) as producer:
        for number in range(5):
            producer.send(topic, b"order", partition=number % 2)
    path = tmp_path / "orders.yaml"
    path.write_text(FILE.replace("BOOTSTRAP", bootstrap).replace("TOPIC", topic))
    return path


@pytest.mark.parametrize("template", sorted(templates.names()))
def test_every_template_is_a_pipeline_without_mistakes(
    template: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """S4 O1: as it stands, with the user's own topic in it."""
    target = tmp_path / "mine.yaml"
    assert main(["pipeline", "init", template, str(target), "--topic", "my-topic"]) == 0
    assert f"braid pipeline plan {target}" in capsys.readouterr().out
    pipeline = load(target)
    assert pipeline.name == "mine"
    assert "my-topic" in {getattr(source, "topic", "") for source in pipeline.sources}


def test_templates_are_listed_and_misspelt_ones_found(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """O1: init without a name shows what there is."""
    assert main(["pipeline", "init"]) == 0
    assert "window" in capsys.readouterr().out
    assert main(["pipeline", "init", "windows", str(tmp_path / "x.yaml")]) == 2
    assert "did you mean window?" in capsys.readouterr().err


def test_a_checkpoint_given_as_a_url_is_refused(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """S4 O1: it would silently become a directory of that name."""
    for command in ("run", "plan", "status"):
        assert main(["pipeline", command, str(file), "--checkpoint", "s3a://bucket/x"]) == 1
        assert "must be a directory, not a URL" in capsys.readouterr().err


def test_init_does_not_overwrite_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """O1: unless told to."""
    target = tmp_path / "mine.yaml"
    target.write_text("precious")
    assert main(["pipeline", "init", "topic", str(target)]) == 2
    assert target.read_text() == "precious"
    assert "--force" in capsys.readouterr().err
    assert main(["pipeline", "init", "topic", str(target), "--force"]) == 0


def test_plan_shows_the_graph_and_what_would_be_read(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """S4 O1: topics, partitions, offsets, lag; nothing is run."""
    assert main(["pipeline", "plan", str(file)]) == 0
    shown = capsys.readouterr().out
    assert "└─ long: SQL SELECT * FROM orders WHERE length(value) > 3" in shown
    assert "   └─ orders: stream of topic topic-" in shown
    assert "note: unused is not read by any sink" in shown
    assert main(["pipeline", "plan", str(file), "--json"]) == 0
    reads = json.loads(capsys.readouterr().out)["reads"]
    assert [(row["partition"], row["next_offset"], row["end_offset"], row["lag"]) for row in reads] == [
        (0, 0, 3, 3),
        (1, 0, 2, 2),
    ]


def test_plan_goes_on_from_the_checkpoint(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """S4: what has been read is not read again."""
    pipeline = load(file)
    topic = pipeline.sources[0].topic  # type: ignore[union-attr]
    query = pipeline.checkpoint_directory / "queries" / "out"
    for name, text in {
        "offsets": f'v1\n{{}}\n{{"{topic}": {{"0": 2, "1": 2}}}}',
        "commits": "v1\n{}",
    }.items():
        (query / name).mkdir(parents=True)
        (query / name / "0").write_text(text)
    assert main(["pipeline", "plan", str(file), "--json"]) == 0
    assert [row["lag"] for row in json.loads(capsys.readouterr().out)["reads"]] == [1, 0]


BAD_ASIDE = """\
pipeline: orders
bootstrap: BOOTSTRAP
sources:
  orders: {topic: TOPIC, schema: id BIGINT, start: latest, bad_records: {topic: TOPIC.bad}}
sinks:
  out: {from: orders, topic: TOPIC.out}
"""


@pytest.fixture
def bad_aside(file: Path) -> Pipeline:
    """Reads the topic of the file from its end, with a place for bad records."""
    before = load(file)
    topic = before.sources[0].topic  # type: ignore[union-attr]
    file.write_text(BAD_ASIDE.replace("BOOTSTRAP", before.bootstrap).replace("TOPIC", topic))
    return load(file)


def planned(pipeline: Pipeline, query: str, offsets: dict[str, int], finished: bool) -> None:
    """What Spark writes for the first batch of a query."""
    directory = pipeline.checkpoint_directory / "queries" / query
    topic = pipeline.sources[0].topic  # type: ignore[union-attr]
    for name, text in {"offsets": f"v1\n{{}}\n{json.dumps({topic: offsets})}", "commits": "v1\n{}"}.items():
        (directory / name).mkdir(parents=True, exist_ok=True)
        if finished or name == "offsets":
            (directory / name / "0").write_text(text)


def starts(pipeline: Pipeline) -> list[tuple[str, int, int]]:
    preflight = Preflight(pipeline)
    try:
        preflight.keep_starts(Checkpoint(pipeline.checkpoint_directory))
        found = preflight.readings(Checkpoint(pipeline.checkpoint_directory))
    finally:
        preflight.close()
    return [(reading.query, reading.partition, reading.next_offset) for reading in found]


def send_more(pipeline: Pipeline) -> None:
    with Producer(pipeline.bootstrap) as producer:
        producer.send(pipeline.sources[0].topic, b"more", partition=0)  # type: ignore[union-attr]


def test_bad_records_are_looked_for_from_where_the_sinks_stand(bad_aside: Pipeline) -> None:
    """S4: also with start: latest, when the file says only later where such records go."""
    planned(bad_aside, "out", {"0": 2}, finished=True)
    expected = [("out", 0, 2), ("out", 1, 0), ("orders_bad", 0, 2), ("orders_bad", 1, 0)]
    assert starts(bad_aside) == expected
    # Killed before the new query came to read, while the other one went on.
    planned(bad_aside, "out", {"0": 3, "1": 2}, finished=True)
    assert starts(bad_aside)[2:] == expected[2:]


def test_the_end_of_a_topic_is_looked_up_once_for_all_queries(bad_aside: Pipeline) -> None:
    """S4: a first batch that fails begins at the same records again; what never began to read, at the end."""
    assert starts(bad_aside) == [("out", 0, 3), ("out", 1, 2), ("orders_bad", 0, 3), ("orders_bad", 1, 2)]
    send_more(bad_aside)
    expected = [("out", 0, 4), ("out", 1, 2), ("orders_bad", 0, 4), ("orders_bad", 1, 2)]
    assert starts(bad_aside) == expected
    planned(bad_aside, "out", {"0": 4, "1": 2}, finished=False)
    send_more(bad_aside)
    assert starts(bad_aside) == expected


def test_a_topic_that_is_not_there_is_told_with_its_line(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """S4: and with the one that was meant."""
    topic = load(file).sources[0].topic  # type: ignore[union-attr]
    file.write_text(file.read_text().replace(f"{{topic: {topic}, f", f"{{topic: {topic}x, f"))
    assert main(["pipeline", "run", str(file)]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"{file}:4: there is no topic {topic}x; did you mean ")


def test_a_broker_that_is_not_there_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """S4: before Spark is started."""
    path = tmp_path / "orders.yaml"
    path.write_text(FILE.replace("BOOTSTRAP", "127.0.0.1:1").replace("TOPIC", "orders"))
    assert main(["pipeline", "run", str(path)]) == 1
    told = capsys.readouterr().err
    assert "cannot reach 127.0.0.1:1" in told
    assert "braid serve" in told
    assert main(["pipeline", "status", str(path), "--json"]) == 0
    status = json.loads(capsys.readouterr().out)
    assert (status["state"], status["queries"][0]["state"]) == ("failed", "stopped")
    assert "cannot reach 127.0.0.1:1" in status["error"]
    assert main(["pipeline", "plan", str(path), "--offline"]) == 0


def test_the_lag_of_a_query_without_topics_is_not_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """S4 O1: rather than none."""
    path = tmp_path / "files.yaml"
    source = "{files: in, format: json, read: stream, schema: id INT}"
    path.write_text(f"pipeline: files\nsources: {{a: {source}}}\nsinks: {{out: {{from: a, lake: l}}}}\n")
    kept = Checkpoint(load(path).checkpoint_directory)
    RunStatus("files", 1, RunState.DONE, queries=[QueryStatus("out", RunState.DONE)]).save(kept)
    assert main(["pipeline", "status", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["queries"][0]["lag"] is None


def test_a_table_that_another_run_upserts_into_is_kept_from_this_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """S4: the next version of a pipeline has another checkpoint and the same table."""
    path = tmp_path / "orders.yaml"
    table = "  table: {from: long, upsert: t, key: value, order_by: value}\n"
    path.write_text(FILE[: FILE.index("  out:")] + table)
    with holding(tmp_path / "t", "this test"):
        assert main(["pipeline", "run", str(path)]) == 1
    told = capsys.readouterr().err
    assert f"{tmp_path}/t is in use by another run, which upserts into it too" in told
    assert f"{path}:9" in told


def test_mistakes_are_one_to_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """S4 O1: file, line, what, and what to do; exit code 2."""
    path = tmp_path / "orders.yaml"
    path.write_text(FILE.replace("format", "formt").replace("bootstrap", "bootstrab"))
    assert main(["pipeline", "run", str(path)]) == 2
    told = capsys.readouterr().err.splitlines()
    assert told[0] == f"{path}:2: the pipeline: unknown key bootstrab; did you mean bootstrap?"
    assert len(told) >= 3


def test_status_of_a_pipeline_that_never_ran(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """S4 O1: says so."""
    assert main(["pipeline", "status", str(file)]) == 0
    assert "never run" in capsys.readouterr().out


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_asks_a_run_to_end(number: signal.Signals) -> None:
    """S4 O1: rather than end it in the midst of something; afterwards signals mean what they meant."""
    before = signal.getsignal(number)
    with _stopped_by_signals() as stop:
        os.kill(os.getpid(), number)
        assert stop.wait(10)
    assert signal.getsignal(number) is before


def test_a_file_that_is_not_there_is_a_mistake_of_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """S4 O1: exit code 2, as for all that has to be changed in what was typed."""
    assert main(["pipeline", "plan", str(tmp_path / "nope.yaml")]) == 2
    assert "nope.yaml; braid pipeline init writes one" in capsys.readouterr().err


def test_what_a_run_is_given_reaches_spark_and_the_log(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """S4 O1: --log-level is for Braid's log and Spark's; --conf wins over the file."""
    file.write_text(file.read_text() + "spark: {spark.a: of the file, spark.b: of the file}\n")
    asked: dict[str, object] = {}

    def session(_: str, master: str, *, log_level: str, config: dict[str, str]) -> None:
        asked.update(master=master, log_level=log_level, a=config["spark.a"], b=config["spark.b"])
        logging.getLogger("braidmq.spark").info("as if starting")
        raise SparkMissing("no Spark in this test")

    monkeypatch.setattr("braidmq.spark.session", session)
    words = ["pipeline", "run", str(file), "--master", "local[1]", "--conf", "spark.b=mine"]
    for given, spark_level, is_logged in (
        ([], "OFF", False),
        (["--log-level", "info"], "INFO", True),
        (["--log-level", "warning"], "WARN", False),
    ):
        assert main([*words, *given]) == 2
        assert asked == {"master": "local[1]", "log_level": spark_level, "a": "of the file", "b": "mine"}
        assert ("INFO braidmq.spark: as if starting" in capsys.readouterr().err) == is_logged
    assert main([*words, "--log-level", "loud"]) == 2


def test_what_would_be_read_is_printed_as_csv(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """S4 O1: of plan the partitions, of status the queries."""
    topic = load(file).sources[0].topic  # type: ignore[union-attr]
    assert main(["pipeline", "plan", str(file), "--output", "csv"]) == 0
    assert capsys.readouterr().out == (
        f"query,topic,partition,next,end,lag\nout,{topic},0,0,3,3\nout,{topic},1,0,2,2\n"
    )
    assert main(["pipeline", "status", str(file), "--output", "csv"]) == 0
    assert capsys.readouterr().out.startswith("query,status,batch,rows,")
