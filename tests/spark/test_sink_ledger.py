"""Decisions of the Spark sink: written and read back, whatever their size, and told apart by query."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from random import Random

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType
from tests.spark.committed import committed

from braidmq.client import Cluster
from braidmq.client.transactional import Identity, TransactionalClient
from braidmq.spark.sink.columns import layout
from braidmq.spark.sink.commit import TaskResult
from braidmq.spark.sink.ledger import Decision, Ledger, TaskWrite
from braidmq.spark.sink.options import parse_sink
from braidmq.spark.sink.task import TaskAttempt, close_sessions, write_task
from braidmq.spark.sink.writer import stream_writer

SCHEMA = StructType([StructField("value", StringType())])
PARTITIONS = 3


@pytest.fixture
def topic(new_topic: Callable[..., str]) -> str:
    return new_topic(PARTITIONS)


@pytest.fixture
def ledger(bootstrap: str, topic: str) -> Iterator[Ledger]:
    with Cluster(bootstrap) as cluster:
        made = Ledger(cluster, TransactionalClient(cluster), f"query-of-{topic}", 60_000)
        made.hold()
        yield made


def decision(topic: str, batch: int, tasks: int, seed: int = 0) -> Decision:
    draw = Random(seed)
    return Decision(
        batch,
        topic,
        {
            number: TaskWrite(
                Identity(f"query-of-{topic}/{number}-0", draw.randrange(10**6), draw.randrange(100)),
                zlib.crc32(draw.randbytes(8)),
                1_700_000_000_000 + draw.randrange(100_000),
            )
            for number in range(tasks)
        },
    )


@pytest.mark.parametrize("tasks", [1, 200, 500, 3_000])
def test_a_decision_of_any_number_of_tasks_is_read_as_it_was_written(
    ledger: Ledger, topic: str, tasks: int
) -> None:
    """S3: three partitions hold a few hundred tasks; further groups take the rest."""
    for batch in (0, 1):
        made = decision(topic, batch, tasks, seed=batch)
        ledger.decide(made)
        assert ledger.read() == made


@pytest.mark.parametrize(("before", "after"), [(500, 1), (3_000, 500), (3_000, 1)])
def test_a_decision_written_again_with_fewer_parts_is_read(
    ledger: Ledger, topic: str, before: int, after: int
) -> None:
    """S3: parts that the longer one left after them do not count."""
    ledger.decide(decision(topic, 4, before))
    shorter = decision(topic, 4, after, seed=1)
    ledger.decide(shorter)
    assert ledger.read() == shorter


def test_a_query_without_a_checkpoint_of_its_own_aborts_nothing_of_another(
    bootstrap: str, topic: str
) -> None:
    """S3: two queries to one topic with only the session's checkpoint setting; one fails, one commits."""
    given = {"bootstrap.servers": bootstrap, "topic": topic}
    options = parse_sink(given, streaming=True, overwrite=False)
    first, second = (stream_writer(given, SCHEMA, False) for _ in range(2))

    def task(query: str, batch: int) -> TaskResult:
        scope = f"{options.prefix}-{query}-{topic}"
        rows = pa.record_batch([pa.array([f"{query} {batch}"])], names=["value"])
        attempt = TaskAttempt(f"{scope}/", scope, batch, "r1", 0, 0, 0)
        return write_task(options, layout(SCHEMA, topic), iter([rows]), attempt)

    try:
        first.commit([task("a", 0)], 0)
        written = task("a", 1)
        second.abort([None, None], 1)
        first.commit([written], 1)
        values = sorted(message.value() for message in committed(bootstrap, topic, PARTITIONS))
        assert values == [b"a 0", b"a 1"]
    finally:
        close_sessions()
