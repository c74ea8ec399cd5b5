"""What commands that run on Spark share: their options, their session, and how its failures read."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from braidmq.cli.broker import Broker
from braidmq.cli.mistake import UserMistake
from braidmq.cli.options import parse_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from braidmq.client.cluster import Cluster


@dataclass(frozen=True)
class Spark:
    """--master and --conf."""

    master: Annotated[
        str, typer.Option("--master", envvar="BRAID_SPARK_MASTER", metavar="URL", help="A Spark master.")
    ] = "local[*]"
    conf: Annotated[
        list[str] | None, typer.Option("--conf", metavar="NAME=VALUE", help="A Spark setting. May repeat.")
    ] = None


def connected(broker: Broker, settings: Mapping[str, str]) -> Cluster:
    """The cluster, to check topics before Spark starts; UserMistake if a setting cannot be used."""
    from braidmq.spark.cluster import open_cluster
    from braidmq.spark.options import READ_OPTIONS, OptionError, Options
    from braidmq.spark.sink.options import SINK_OPTIONS

    try:
        Options(settings, (*READ_OPTIONS, *SINK_OPTIONS), "-X")
        return open_cluster(broker.bootstrap, settings)
    except OptionError as error:
        raise UserMistake(str(error)) from None


def check_topics(cluster: Cluster, topics: Iterable[str]) -> None:
    """Before Spark starts, which takes seconds; UserMistake with the topic that was probably meant."""
    # Looking must not create: a misspelt name would leave an empty topic.
    from braidmq.client.admin import Admin
    from braidmq.spark.pipelines.mistakes import closest
    from braidmq.wire.errors import ApiError, ErrorCode

    admin = Admin(cluster)
    for topic in topics:
        try:
            admin.partition_indexes(topic)
        except ApiError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            meant = closest(topic, admin.list_topics())
            advice = f"did you mean {meant}?" if meant else f"create it with braid topic create {topic}"
            raise UserMistake(f"there is no topic {topic}; {advice}") from None


@contextmanager
def needs_spark() -> Iterator[None]:
    """Around imports for which pyspark must be installed; UserMistake says how."""
    try:
        yield
    except ImportError as error:
        raise UserMistake(f"{error}; run: pip install 'braidmq[spark]'") from None


@contextmanager
def spark_session(app: str, spark: Spark) -> Iterator[SparkSession]:
    """A session for one command; a failure in it is one line, not two stack traces."""
    settings = parse_settings(spark.conf)
    with needs_spark():
        from pyspark.sql import SparkSession

        from braidmq.spark.session import session
    # pyspark logs what it also raises, as JSON with both stack traces.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    made = None
    try:
        active = SparkSession.getActiveSession()
        if active is None:
            active = made = session(app, spark.master, ui=False, config=settings)
        yield active
    except Exception as error:
        _explain(error)
        raise
    finally:
        if made is not None:
            made.stop()


def _explain(error: Exception) -> None:
    """Raises what the user should see instead; returns if the error is neither Spark's nor ours."""
    from pyspark.errors import AnalysisException, PySparkException

    from braidmq.spark.errors import UserError, sentence

    if isinstance(error, UserError | AnalysisException):
        raise UserMistake(sentence(str(error))) from None
    if isinstance(error, OSError) and not isinstance(error, ConnectionError | TimeoutError):
        raise UserMistake(": ".join(filter(None, (error.filename, error.strerror)))) from None
    if isinstance(error, PySparkException) or type(error).__module__.startswith("py4j"):
        print(f"braid: Spark failed: {sentence(str(error))}", file=sys.stderr)
        raise typer.Exit(1) from None


def rows_of(shown: Any) -> list[list[object]]:
    """Rows of Spark as cells for a table; bytes as text."""
    from braidmq.cli.output import text_of

    def cell(value: Any) -> object:
        if isinstance(value, bytes | bytearray):
            return text_of(bytes(value))
        return "" if value is None else value

    return [[cell(value) for value in row] for row in shown]
