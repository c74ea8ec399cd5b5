"""`braid pipeline`: run, plan, status and init of declared pipelines."""

from __future__ import annotations

import logging
import re
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from braidmq.cli.broker import BOOTSTRAP, ClientSettings, CommandConfig, checked_settings
from braidmq.cli.command import command
from braidmq.cli.mistake import UserMistake
from braidmq.cli.options import parse_settings
from braidmq.cli.output import Output, print_table
from braidmq.cli.spark import Spark

if TYPE_CHECKING:
    from braidmq.spark.pipelines.model import Pipeline
    from braidmq.spark.pipelines.preflight import ReadPosition

EXIT_FAILED, EXIT_MISTAKE = 1, 2

app = typer.Typer(
    help="Run pipelines on Spark: topics in, SQL or Python, topics and tables out.", no_args_is_help=True
)

READ_COLUMNS = ("query", "topic", "partition#", "next#", "end#", "lag#")


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"

    @property
    def of_spark(self) -> str:
        return "WARN" if self is LogLevel.WARNING else self.name


@dataclass(frozen=True)
class Declared:
    """A pipeline's file, and the options that win over what it says."""

    file: Annotated[Path, typer.Argument(metavar="FILE", help="A pipeline: YAML, or Python with decorators.")]
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            "--checkpoint",
            metavar="DIR",
            help="Where it keeps its position. Default: checkpoints/ next to FILE.",
        ),
    ] = None
    bootstrap: Annotated[
        str | None,
        typer.Option(
            "--bootstrap",
            "-b",
            "--bootstrap-server",
            metavar="HOST:PORT",
            help="Overrides bootstrap in FILE.",
        ),
    ] = None
    command_config: CommandConfig = None
    client_settings: ClientSettings = None

    def load(self, spark_conf: list[str] | None = None) -> Pipeline:
        from braidmq.spark.pipelines import load
        from braidmq.spark.pipelines.checkpoint import local_directory

        settings = checked_settings(self.command_config, self.client_settings)
        changes: dict[str, Any] = {}
        if self.bootstrap is not None:
            changes["bootstrap"] = self.bootstrap
        if self.checkpoint is not None:
            changes["checkpoint"] = local_directory(self.checkpoint)
        with _changed_by_the_user():
            loaded = load(self.file, settings)
        conf = dict(loaded.spark) | parse_settings(spark_conf)
        return replace(loaded, spark=tuple(conf.items()), **changes)


@command(
    app,
    examples=("braid pipeline run orders.yaml --once", "braid pipeline run orders.yaml --log-level info"),
)
def run(
    declared: Declared,
    runs_on: Spark,
    once: Annotated[bool, typer.Option("--once", help="Read what is there now, then stop.")] = False,
    log_level: Annotated[
        LogLevel | None,
        typer.Option(
            "--log-level", help="Log to stderr, Spark's log included.", show_default="only warnings of Braid"
        ),
    ] = None,
) -> None:
    """Run a pipeline until Ctrl-C or SIGTERM. The next run continues from its checkpoint."""
    from braidmq.cli.pipeline_view import view
    from braidmq.spark.pipelines.runner import run as run_pipeline

    with _logging_to_stderr(log_level), _explained():
        pipeline = declared.load(runs_on.conf)
        with _stopped_by_signals() as stop, view(pipeline, sys.stdout.isatty()) as shown:
            run_pipeline(
                pipeline,
                once=once,
                master=runs_on.master,
                stop=stop,
                watch=shown.update,
                tell=shown.tell,
                log_level="OFF" if log_level is None else log_level.of_spark,
            )


@contextmanager
def _logging_to_stderr(level: LogLevel | None) -> Iterator[None]:
    """Braid's own log; Spark's is set with the session."""
    if level is None:
        yield
        return
    log, handler = logging.getLogger("braidmq"), logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    before = log.level
    log.addHandler(handler)
    log.setLevel(level.name)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(before)


@command(app, examples=("braid pipeline plan orders.yaml", "braid pipeline plan orders.yaml --offline"))
def plan(
    declared: Declared,
    output: Output,
    offline: Annotated[bool, typer.Option("--offline", help="Do not connect to the broker.")] = False,
) -> None:
    """Show what a pipeline would do: its graph, and the topics, partitions and offsets it would read.

    Nothing is run or changed, and Spark is not started. CSV has the partitions to read.
    """
    from braidmq.spark.pipelines import compatibility, graph
    from braidmq.spark.pipelines.checkpoint import Checkpoint

    with _explained():
        pipeline = declared.load()
        kept = Checkpoint(pipeline.checkpoint_directory)
        notes = compatibility.check(pipeline, kept)
        notes += [f"{name} is not read by any sink" for name in graph.unread(pipeline)]
        readings = [] if offline else _readings(pipeline)
    rows = [(r.query, r.topic, r.partition, r.next_offset, r.end_offset, r.lag) for r in readings]
    reads = [asdict(reading) | {"lag": reading.lag} for reading in readings]
    value = {"pipeline": pipeline.name, "version": pipeline.version, "notes": notes, "reads": reads}
    if output.printed(value, READ_COLUMNS, rows):
        return
    print(f"{pipeline.name}, version {pipeline.version}; checkpoint {pipeline.checkpoint_directory}")
    for line in graph.render(pipeline):
        print(line)
    for note in notes:
        print(f"note: {note}")
    if rows:
        print_table(READ_COLUMNS, rows, "Would read")


@command(app, examples=("braid pipeline status orders.yaml", "braid pipeline status orders.yaml --json"))
def status(declared: Declared, output: Output) -> None:
    """Show whether a pipeline is running, its last batches, and its lag."""
    from braidmq.cli.pipeline_view import COLUMNS, cells, print_status
    from braidmq.spark.pipelines.checkpoint import Checkpoint
    from braidmq.spark.pipelines.mistakes import PipelineError
    from braidmq.spark.pipelines.status import load_status

    with _explained():
        pipeline = declared.load()
        found = load_status(Checkpoint(pipeline.checkpoint_directory))
        try:
            readings = _readings(pipeline)
        except PipelineError:
            readings = None  # The broker is down; what the last run wrote is still worth showing.
    if found is not None and readings is not None:
        for query in found.queries:
            lags = [reading.lag for reading in readings if reading.query == query.name]
            query.lag = sum(lags) if lags else None
    value = asdict(found) if found else {"pipeline": pipeline.name, "state": "never run"}
    if output.printed(value, COLUMNS, [cells(query) for query in found.queries] if found else []):
        return
    if found is None:
        print(f"{pipeline.name}, version {pipeline.version}: never run with {pipeline.checkpoint_directory}")
    else:
        print_status(found)


@command(app, examples=("braid pipeline init", "braid pipeline init window orders.yaml --topic orders"))
def init(
    output: Output,
    template: Annotated[
        str | None, typer.Argument(metavar="TEMPLATE", help="Without it, templates are listed.")
    ] = None,
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help="Default: TEMPLATE.yaml.")] = None,
    topic: Annotated[str, typer.Option("--topic", "-t", metavar="TOPIC", help="Your topic.")] = "events",
    bootstrap: Annotated[
        str | None,
        typer.Option(
            "--bootstrap",
            "-b",
            "--bootstrap-server",
            metavar="HOST:PORT",
            help="Written to FILE; not used now.",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Write a commented starter file, or list the templates."""
    from braidmq.spark.pipelines import templates

    if template is None:
        columns, rows = ("template", "what it does"), list(templates.names().items())
        if not output.printed(templates.names(), columns, rows):
            print_table(columns, rows)
        return
    target = file or Path(f"{template}.yaml")
    if target.exists() and not force:
        raise UserMistake(f"{target} exists already; --force overwrites it")
    name = re.sub(r"[^A-Za-z0-9._-]", "-", target.stem)
    with _changed_by_the_user():
        text = templates.fill(template, name, topic, bootstrap or f"${{BRAID_BOOTSTRAP:-{BOOTSTRAP}}}")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text, encoding="utf-8")
    print(f"wrote {target}; next: braid pipeline plan {target}")


@contextmanager
def _changed_by_the_user() -> Iterator[None]:
    """Turns an error of the command or its file, and no other, into a UserMistake."""
    from braidmq.spark.pipelines.mistakes import PipelineError, PipelineMistakes

    try:
        yield
    except PipelineMistakes:
        raise
    except PipelineError as error:
        raise UserMistake(str(error)) from None


def _readings(pipeline: Pipeline) -> list[ReadPosition]:
    from braidmq.spark.pipelines.checkpoint import Checkpoint
    from braidmq.spark.pipelines.preflight import Preflight

    preflight = Preflight(pipeline)
    try:
        preflight.check_topics()
        return preflight.readings(Checkpoint(pipeline.checkpoint_directory))
    finally:
        preflight.close()


@contextmanager
def _explained() -> Iterator[None]:
    """Mistakes in a file, one per line, and missing packages: exit code 2; failures: 1."""
    from braidmq.spark.pipelines.mistakes import NotInstalled, PipelineError, PipelineMistakes

    try:
        yield
    except PipelineMistakes as mistakes:
        print(mistakes, file=sys.stderr)
        raise typer.Exit(EXIT_MISTAKE) from None
    except PipelineError as failure:
        print(f"braid pipeline: {failure}", file=sys.stderr)
        raise typer.Exit(EXIT_MISTAKE if isinstance(failure, NotInstalled) else EXIT_FAILED) from None


@contextmanager
def _stopped_by_signals() -> Iterator[threading.Event]:
    """The first SIGTERM or Ctrl-C stops the run in order; a second Ctrl-C stops it at once."""
    stop = threading.Event()

    def ask(number: int, _: object) -> None:
        if stop.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
