"""Why a query failed, in one sentence, and whether a retry may succeed.

Spark's message of a failed query is a page: the exception, a Java stack trace, and in it the traceback of a
Python worker. The last line of the innermost traceback matters. A bad record is read again and explained.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from braidmq.spark.errors import sentence
from braidmq.spark.pipelines.mistakes import PipelineError
from braidmq.spark.pipelines.model import Pipeline, TopicSource

_MAY_PASS = re.compile(
    r"\b(Unreachable|TimedOut|DeliveryFailed|SinkInterrupted|ConnectionResetError|ConnectionRefusedError|BrokenPipeError)\b"
    r"|\b(NOT_LEADER_OR_FOLLOWER|LEADER_NOT_AVAILABLE|COORDINATOR_NOT_AVAILABLE|NOT_COORDINATOR"
    r"|COORDINATOR_LOAD_IN_PROGRESS|CONCURRENT_TRANSACTIONS|REQUEST_TIMED_OUT|NETWORK_EXCEPTION"
    r"|KAFKA_STORAGE_ERROR|NOT_ENOUGH_REPLICAS)\b"
    # Too many other writers in a lake; a batch that is retried is added once.
    r"|\blake\.commits\.CommitConflict\b"
    # A worker was killed, or took too long to start on a busy machine.
    r"|Python worker (?:failed to connect back|exited unexpectedly)"
)
_BAD_RECORD = re.compile(r"braid: bad record (\S+) (\d+) (\d+)")


_SHUT_DOWN = re.compile(
    r"SparkContext (?:was|has been) (?:shut|stopped)|stopped SparkContext|Shutdown in progress"
)


class SparkGone(PipelineError):
    """Spark's process has ended, or is about to."""


@dataclass(frozen=True, slots=True)
class Failure:
    text: str
    may_pass: bool


def understand_failure(error: BaseException, pipeline: Pipeline) -> Failure:
    message = str(error)
    if bad := _BAD_RECORD.search(message):
        return Failure(_explain_bad(pipeline, bad[1], int(bad[2]), int(bad[3])), may_pass=False)
    return Failure(sentence(message), may_pass=_MAY_PASS.search(message) is not None)


@contextmanager
def in_one_sentence(pipeline: Pipeline) -> Iterator[None]:
    """Turns exceptions of Spark and py4j into one sentence."""
    from py4j.protocol import Py4JError, Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        kind = SparkGone if _SHUT_DOWN.search(str(error)) else PipelineError
        raise kind(understand_failure(error, pipeline).text) from error
    except (Py4JError, ConnectionError) as error:
        why = sentence(str(error))
        raise SparkGone(
            f"Spark's process has ended ({why}); run it again to continue from its checkpoint"
        ) from error


def _explain_bad(pipeline: Pipeline, topic: str, partition: int, offset: int) -> str:
    source = next(
        (each for each in pipeline.sources if isinstance(each, TopicSource) and each.topic == topic), None
    )
    reason = _reason(pipeline, source, partition, offset) if source else "it does not fit the schema"
    where = f"{source.location}: " if source else ""
    return (
        f"{where}topic {topic}, partition {partition}, offset {offset} cannot be read: {reason}. Correct the"
        f" schema, or set bad_records: {{topic: {topic}.bad}} or bad_records: drop"
    )


def _reason(pipeline: Pipeline, source: TopicSource, partition: int, offset: int) -> str:
    from pyspark.sql.types import StructType

    from braidmq.client.consumer import Consumer
    from braidmq.spark import avro
    from braidmq.spark.pipelines.checkpoint import Checkpoint
    from braidmq.spark.pipelines.clusters import about_values, connect
    from braidmq.spark.pipelines.reasons import explain
    from braidmq.spark.pipelines.registry import with_kept_id

    try:
        with connect(pipeline, source) as cluster:
            consumer = Consumer(cluster)
            consumer.seek(source.topic, partition, offset)
            value = next((each.value for each in consumer.poll() if each.offset == offset), None)
        checkpoint = Checkpoint(pipeline.checkpoint_directory)
        if (schema := with_kept_id(source, checkpoint).avro) is not None:
            avro.decoder(schema)(value or b"")
            return "it does not fit the schema"
        ddl = source.schema or checkpoint.schema(source.name) or ""
        shape = json.loads(StructType.fromDDL(ddl).json())
        return explain(value, source.format, shape, about_values(source.options))
    except Exception as error:
        return str(error)
