"""An archiver that is killed, with its whole Spark, at each of its steps; then another one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer
from tests.compat import confluent_calls
from tests.compat.test_spark import ASKED_FOR
from tests.spark.archiver_points import POINTS

from braidmq.client.cluster import TopicPartition
from braidmq.client.groups import GroupAdmin
from braidmq.spark.lake.lake import Lake

ROWS = 40
pytestmark = [
    pytest.mark.skipif(ASKED_FOR not in os.environ, reason="scripts/compat runs Spark as applications"),
    pytest.mark.timeout(400),
]


def archive(*arguments: str) -> int:
    command = [sys.executable, "-m", "tests.spark.archiver_points", *arguments]
    return subprocess.run(command, timeout=180).returncode


@pytest.mark.parametrize("point", POINTS)
def test_a_killed_archiver_is_finished_by_the_next(
    bootstrap: str, new_name: Callable[[], str], tmp_path: Path, point: str
) -> None:
    """S5: each record once, and the group where the lake is."""
    topic, group = new_name(), new_name()
    confluent_calls.create_topic(bootstrap, topic, partitions=1)
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(ROWS):
        producer.produce(topic, json.dumps(number).encode())
    assert producer.flush(30) == 0
    assert archive(bootstrap, topic, str(tmp_path / "lake"), group, point) == -signal.SIGKILL
    assert archive(bootstrap, topic, str(tmp_path / "lake"), group, "none") == 0
    lake = Lake(tmp_path / "lake")
    files = [lake.path / each for each in lake.snapshot().files]
    values = [row for file in files for row in pq.read_table(file, columns=["value"])["value"].to_pylist()]
    assert sorted(json.loads(value) for value in values) == list(range(ROWS))
    with GroupAdmin(bootstrap) as groups:
        assert groups.committed(group) == {TopicPartition(topic, 0): ROWS}
