"""Spark Declarative Pipelines with the format "braid": topic in, streaming table, topic out.

It needs pyspark[pipelines] and takes half a minute, so it runs in scripts/compat only (BRAID_COMPAT_SPARK).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from braidmq.client import Admin, Consumer, Producer

ROOT = Path(__file__).parents[2]
SPEC = """\
name: copy
storage: file://FOLDER/storage
libraries:
  - glob:
      include: transformations/**
"""
PROGRAM = """\
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()
SERVERS = {"bootstrap.servers": "BOOTSTRAP"}


@dp.table
def records():
    topic = spark.readStream.format("braid").options(**SERVERS, subscribe="sdp-in")
    return topic.option("startingOffsets", "earliest").load()


dp.create_sink("out", "braid", {**SERVERS, "topic": "sdp-out"})


@dp.append_flow(target="out")
def copied():
    return spark.readStream.table("records").selectExpr("key", "upper(cast(value AS STRING)) AS value")
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif("BRAID_COMPAT_SPARK" not in os.environ, reason="scripts/compat runs it")
def test_the_format_works_in_declarative_pipelines(bootstrap: str, tmp_path: Path) -> None:
    """S4: as docs/use/pipelines.md shows it."""
    with Admin(bootstrap) as admin:
        for topic in ("sdp-in", "sdp-out"):
            admin.create_topic(topic, 1)
    with Producer(bootstrap) as producer:
        for number in range(10):
            producer.send("sdp-in", f"value {number}".encode(), key=b"k")
    (tmp_path / "transformations").mkdir()
    (tmp_path / "spark-pipeline.yml").write_text(SPEC.replace("FOLDER", str(tmp_path)))
    (tmp_path / "transformations" / "copy.py").write_text(PROGRAM.replace("BOOTSTRAP", bootstrap))
    command = [str(Path(sys.executable).with_name("spark-pipelines")), "run"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=550)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    with Consumer(bootstrap) as consumer:
        consumer.assign("sdp-out")
        found: list[bytes | None] = []
        for _ in range(10):
            found += [message.value for message in consumer.poll()]
    assert found == [f"VALUE {number}".encode() for number in range(10)]
