"""Pipelines when things go wrong: the broker goes away, the driver is killed or told to stop."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.patience import WAIT_S, wait_until
from tests.spark.conftest import QUICK_START

from braidmq.client import Producer
from braidmq.spark.lake import Lake
from braidmq.spark.pipelines import Pipeline, PipelineError, load
from braidmq.spark.pipelines.checkpoint import Checkpoint
from braidmq.spark.pipelines.runner import run
from braidmq.spark.pipelines.status import RunState, load_status
from braidmq.testing import BrokerProcess

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.timeout(500)
FILE = """\
pipeline: numbers
bootstrap: BOOTSTRAP
options: {request.timeout.ms: 3000}
sources:
  numbers: {topic: numbers, schema: n BIGINT, batch_records_max: 500}
sinks:
  lake: {from: numbers, lake: lake, every: 100 ms}
"""


def written(tmp_path: Path, bootstrap: str) -> Pipeline:
    file = tmp_path / "numbers.yaml"
    file.write_text(FILE.replace("BOOTSTRAP", bootstrap))
    return replace(load(file), parallelism=1)


def send(bootstrap: str, numbers: range) -> None:
    with Producer(bootstrap) as producer:
        for number in numbers:
            producer.send("numbers", json.dumps({"n": number}).encode())


def row_count(tmp_path: Path) -> int:
    """By the lake's own account: asked often, and nothing for a busy session."""
    lake = Lake(tmp_path / "lake")
    return sum(file.rows for file in lake.snapshot().files.values()) if lake.exists else 0


def found(tmp_path: Path, spark: Any) -> list[int]:
    lake = Lake(tmp_path / "lake")
    return sorted(row["n"] for row in lake.read(spark).select("n").collect())


def test_a_broker_that_goes_away_and_comes_back_costs_nothing_but_time(
    braid_broker: BrokerProcess, spark: Any, tmp_path: Path
) -> None:
    """S4 S2: the query is started again from its checkpoint."""
    pipeline = written(tmp_path, braid_broker.bootstrap)
    send(braid_broker.bootstrap, range(1000))
    stop, told = threading.Event(), []
    options = {"spark": spark, "stop": stop, "tell": told.append}
    runner = threading.Thread(target=run, args=(pipeline,), kwargs=options)
    runner.start()
    try:
        wait_until(lambda: row_count(tmp_path) == 1000)
        braid_broker.kill()
        wait_until(lambda: any("restarting it in" in each for each in told))
        braid_broker.restart()
        send(braid_broker.bootstrap, range(1000, 2000))
        wait_until(lambda: row_count(tmp_path) >= 2000)
        with pytest.raises(PipelineError, match="in use by another run"):
            run(pipeline, once=True, spark=spark)
    finally:
        stop.set()
        runner.join(WAIT_S)
    assert found(tmp_path, spark) == list(range(2000))
    status = load_status(Checkpoint(pipeline.checkpoint_directory))
    assert status is not None
    assert status.state is RunState.STOPPED
    assert status.queries[0].restarts >= 1


@pytest.mark.slow
def test_a_killed_driver_repeats_and_loses_nothing(
    braid_broker: BrokerProcess, spark: Any, tmp_path: Path
) -> None:
    """S4 S3: kill -9 mid-stream, then another run from the checkpoint; the status tells what happened."""
    pipeline = written(tmp_path, braid_broker.bootstrap)
    send(braid_broker.bootstrap, range(5000))
    child = start(tmp_path)
    try:
        wait_until(lambda: row_count(tmp_path) or child.poll() is not None)
        assert child.poll() is None
    finally:
        child.kill()
        child.communicate()
    status = load_status(Checkpoint(pipeline.checkpoint_directory))
    assert status is not None
    assert status.state is RunState.DIED
    run(pipeline, once=True, spark=spark)
    assert found(tmp_path, spark) == list(range(5000))


@pytest.mark.slow
def test_ctrl_c_ends_a_run_in_order(braid_broker: BrokerProcess, tmp_path: Path) -> None:
    """S4 O1: exit code 0, plain lines on stdout, a status that says stopped; Spark's handler stays out."""
    pipeline = written(tmp_path, braid_broker.bootstrap)
    send(braid_broker.bootstrap, range(100))
    child = start(tmp_path)
    checkpoint = Checkpoint(pipeline.checkpoint_directory)
    try:
        wait_until(lambda: rows_processed(checkpoint) == 100 or child.poll() is not None)
        child.send_signal(signal.SIGINT)
        shown, complaints = child.communicate(timeout=WAIT_S)
    finally:
        child.kill()
        child.wait()
    assert child.returncode == 0, complaints
    assert "log level" not in complaints
    assert "lake: running" in shown
    assert "lake: stopped" in shown
    status = load_status(checkpoint)
    assert status is not None
    assert (status.state, status.queries[0].rows) == (RunState.STOPPED, 100)


@pytest.mark.slow
@pytest.mark.parametrize("whom", ["the process group", "every process"])
def test_a_signal_to_spark_as_well_ends_a_run_in_order(
    braid_broker: BrokerProcess, tmp_path: Path, whom: str
) -> None:
    """S4 O1: `timeout` and shells send SIGTERM to the group, systemd to all of them, the JVM included."""
    pipeline = written(tmp_path, braid_broker.bootstrap)
    send(braid_broker.bootstrap, range(100))
    child = start(tmp_path)
    checkpoint = Checkpoint(pipeline.checkpoint_directory)
    try:
        wait_until(lambda: rows_processed(checkpoint) == 100 or child.poll() is not None)
        if whom == "every process":
            for each in psutil.Process(child.pid).children(recursive=True):
                with suppress(psutil.NoSuchProcess):  # a parent that has ended may take it along
                    each.terminate()
        os.killpg(child.pid, signal.SIGTERM)
        _, complaints = child.communicate(timeout=WAIT_S)
    finally:
        child.kill()
        child.communicate()
    said = [each for each in complaints.splitlines() if not each.startswith(("NOTE: ", "Spark UI: "))]
    assert (child.returncode, said) == (0, [])
    status = load_status(checkpoint)
    assert status is not None
    assert (status.state, status.error, status.queries[0].rows) == (RunState.STOPPED, None, 100)


def rows_processed(checkpoint: Checkpoint) -> int:
    status = load_status(checkpoint)
    return sum(query.rows for query in status.queries) if status is not None else 0


def start(tmp_path: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "braidmq", "pipeline", "run", str(tmp_path / "numbers.yaml")]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "JDK_JAVA_OPTIONS": QUICK_START}
    return subprocess.Popen(
        [*command, "--master", "local[1]"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )
