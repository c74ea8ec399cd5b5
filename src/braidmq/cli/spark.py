"""What commands that run on Spark share: their options, their session, and how its failures read."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from braidmq.cli.mistake import UserMistake
from braidmq.cli.options import parse_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from braidmq.client.cluster import Cluster

MASTER = "local[*]"

Master = Annotated[
    str, typer.Option("--master", envvar="BRAID_SPARK_MASTER", metavar="URL", help="Where Spark runs.")
]
SparkConfig = Annotated[
    list[str] | None,
    typer.Option("--config", "-c", metavar="NAME=VALUE", help="A Spark setting; may be repeated."),
]
CommandConfig = Annotated[
    Path | None,
    typer.Option(
        "--command-config",
        envvar="BRAID_COMMAND_CONFIG",
        metavar="FILE",
        help="Client options from a file, as Kafka's tools take them: security.protocol=SASL_SSL, …",
    ),
]
ClientSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--option", "-o", metavar="NAME=VALUE", help="A client option, as security.protocol; may be repeated."
    ),
]


def client_options(file: Path | None, options: list[str] | None) -> dict[str, str]:
    """What --command-config and --option say about connections; the latter has the last word."""
    from braidmq.spark.options import merged

    return merged(read_command_config(file), parse_settings(options))


def read_command_config(file: Path | None) -> dict[str, str]:
    """The settings of a properties file; UserMistake where it cannot be read or holds what means nothing.

    As with Kafka's tools, whom to ask is not for the file to say.
    """
    from braidmq.client.properties import parse_properties
    from braidmq.spark.options import OptionError, Options

    if file is None:
        return {}
    try:
        found = parse_properties(file.read_text(encoding="utf-8"))
        Options(found, (), f"--command-config {file}")
    except OSError as error:
        raise UserMistake(f"--command-config {file}: {error.strerror}") from None
    except (OptionError, UnicodeDecodeError) as error:
        raise UserMistake(str(error)) from None
    return {name: text for name, text in found.items() if name != "bootstrap.servers"}


def connected(bootstrap: str, options: Mapping[str, str]) -> Cluster:
    """The cluster that a command asks before it starts Spark; UserMistake where the options cannot be."""
    from braidmq.spark.cluster import open_cluster
    from braidmq.spark.options import OptionError

    try:
        return open_cluster(bootstrap, options)
    except OptionError as error:
        raise UserMistake(str(error)) from None


def check_topics(cluster: Cluster, topics: Iterable[str]) -> None:
    """Before Spark is started, which takes seconds; UserMistake with what was probably meant."""
    # Looking must not create: a misspelt name would leave an empty topic behind.
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
            advice = f"did you mean {meant}?" if meant else f"braid topic create {topic} makes one"
            raise UserMistake(f"there is no topic {topic}; {advice}") from None


@contextmanager
def needs_spark() -> Iterator[None]:
    """Around imports for which pyspark must be installed; UserMistake says how."""
    try:
        yield
    except ImportError as error:
        raise UserMistake(f"{error}; run: pip install 'braidmq[spark]'") from None


@contextmanager
def spark_session(app: str, master: str, config: list[str] | None) -> Iterator[SparkSession]:
    """A session for one command; what goes wrong in it is told in a line, not in two stack traces."""
    settings = parse_settings(config)
    with needs_spark():
        from pyspark.sql import SparkSession

        from braidmq.spark.session import session
    # pyspark logs what it also raises, as JSON with both stack traces.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    made = None
    try:
        active = SparkSession.getActiveSession()
        if active is None:
            active = made = session(app, master, ui=False, config=settings)
        yield active
    except Exception as error:
        _tell(error)
        raise
    finally:
        if made is not None:
            made.stop()


def _tell(error: Exception) -> None:
    """Raises what the user should see instead; returns where the error is not Spark's or ours."""
    from pyspark.errors import AnalysisException, PySparkException

    from braidmq.spark.errors import UserError, sentence

    if isinstance(error, UserError | AnalysisException):
        raise UserMistake(sentence(str(error))) from None
    if isinstance(error, OSError) and not isinstance(error, ConnectionError | TimeoutError):
        raise UserMistake(": ".join(filter(None, (error.filename, error.strerror)))) from None
    if isinstance(error, PySparkException) or type(error).__module__.startswith("py4j"):
        print(f"braid: Spark gave up: {sentence(str(error))}", file=sys.stderr)
        raise typer.Exit(1) from None


def rows_of(shown: Any) -> list[list[object]]:
    """Rows of Spark as cells for a table; bytes as text."""
    from braidmq.cli.output import text_of

    def cell(value: Any) -> object:
        if isinstance(value, bytes | bytearray):
            return text_of(bytes(value))
        return "" if value is None else value

    return [[cell(value) for value in row] for row in shown]
