"""Spark against the server under test, in applications of their own: on this machine, and on a real master.

Two JVMs and more take their time, so `scripts/compat` runs this and `scripts/test` does not; there the Spark
tests share one session.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from tests.compat import confluent_calls
from tests.compat.spark_job import CONNECT, ROWS_WRITTEN
from tests.compat.spark_master import standalone

RECORDS = 2_000
PARTITIONS = 2
JOB = [sys.executable, "-m", "tests.compat.spark_job"]
ASKED_FOR = "BRAID_COMPAT_SPARK"

pytestmark = [
    pytest.mark.skipif(ASKED_FOR not in os.environ, reason="scripts/compat runs Spark as applications"),
    pytest.mark.timeout(400),
]


def send(bootstrap: str, topic: str, values: list[bytes]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "partitioner": "murmur2_random"})
    for number, value in enumerate(values):
        producer.produce(topic, value, partition=number % PARTITIONS)
    assert producer.flush(30) == 0


def committed(bootstrap: str, topic: str) -> list[bytes]:
    """Every value a reader at read_committed finds, up to where each partition ends now."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"check-{topic}",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    values, ended = [], 0
    while ended < PARTITIONS:
        message = consumer.poll(30)
        assert message is not None, "neither a record nor the end of a partition"
        if message.error() is None:
            values.append(message.value())
        else:
            assert message.error().code() == KafkaError._PARTITION_EOF
            ended += 1
    consumer.close()
    return values


@pytest.mark.parametrize("master", ["local[2]", "standalone", CONNECT])
def test_an_application_reads_streams_and_writes(
    bootstrap: str, new_name: Callable[[], str], master: str, tmp_path: Path
) -> None:
    """S1 S2 S3: batch reads, stream into a topic, batch write; here, on a master with workers, by Connect."""
    source, copy, written = new_name(), new_name(), new_name()
    for name in (source, copy, written):
        confluent_calls.create_topic(bootstrap, name, partitions=PARTITIONS)
    sent = [b"%05d" % number for number in range(RECORDS)]
    send(bootstrap, source, sent)
    with nullcontext(master) if master != "standalone" else standalone(tmp_path / "cluster") as address:
        done = subprocess.run(
            [*JOB, address, bootstrap, source, copy, written, str(tmp_path / "scratch")],
            capture_output=True,
            text=True,
            timeout=300,
        )
    assert done.returncode == 0, done.stderr[-4000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["found"] == [RECORDS, 5 * RECORDS, PARTITIONS]
    assert told["in bulk"] == [RECORDS, 5 * RECORDS, RECORDS // PARTITIONS]
    assert told["exported"] == [RECORDS, RECORDS]
    assert told["executors"] == (2 if master == "standalone" else 1)
    assert Counter(committed(bootstrap, copy)) == Counter(sent)
    assert len(committed(bootstrap, written)) == ROWS_WRITTEN
