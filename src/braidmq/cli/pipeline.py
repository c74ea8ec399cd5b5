"""`braid pipeline`: run, plan, status and init of pipelines by declaration."""

from __future__ import annotations

import re
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from braidmq.cli import rescue
from braidmq.cli.mistake import UserMistake
from braidmq.cli.options import BOOTSTRAP, AsJson
from braidmq.cli.output import print_json, print_table
from braidmq.cli.spark import CommandConfig, read_command_config

if TYPE_CHECKING:
    from braidmq.spark.pipelines.model import Pipeline
    from braidmq.spark.pipelines.preflight import ReadPosition

EXIT_FAILED, EXIT_MISTAKE = 1, 2

app = typer.Typer(
    help="Run pipelines on Spark: topics in, SQL or Python, topics and tables out.", no_args_is_help=True
)

File = Annotated[Path, typer.Argument(metavar="FILE", help="A pipeline: YAML, or Python with decorators.")]
CheckpointOption = Annotated[
    Path | None,
    typer.Option(
        "--checkpoint", metavar="DIR", help="Where it keeps its place. Default: checkpoints/ beside FILE."
    ),
]
BootstrapOption = Annotated[
    str | None, typer.Option("--bootstrap", "-b", metavar="HOST:PORT", help="Instead of what FILE says.")
]


@app.command()
def run(
    file: File,
    once: Annotated[bool, typer.Option("--once", help="Read what is there now, then end.")] = False,
    master: Annotated[str, typer.Option("--master", metavar="URL", help="A Spark master.")] = "local[*]",
    checkpoint: CheckpointOption = None,
    bootstrap: BootstrapOption = None,
    command_config: CommandConfig = None,
) -> None:
    """Run a pipeline until Ctrl-C or SIGTERM; it goes on from its checkpoint the next time.

    Examples:
    braid pipeline run orders.yaml --once
    """
    from braidmq.cli.pipeline_view import view
    from braidmq.spark.pipelines.runner import run as run_pipeline

    with _explained():
        pipeline = _load(file, bootstrap, checkpoint, command_config)
        with _stopped_by_signals() as stop, view(pipeline, sys.stdout.isatty()) as shown:
            run_pipeline(pipeline, once=once, master=master, stop=stop, watch=shown.update, tell=shown.tell)


@app.command()
def plan(
    file: File,
    checkpoint: CheckpointOption = None,
    bootstrap: BootstrapOption = None,
    command_config: CommandConfig = None,
    offline: Annotated[bool, typer.Option("--offline", help="Do not ask the broker.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show what a pipeline would do: its graph, and the topics, partitions and offsets it would read.

    Nothing is run and nothing is changed; Spark is not started.
    """
    from braidmq.spark.pipelines import compatibility, graph
    from braidmq.spark.pipelines.checkpoint import Checkpoint

    with _explained():
        pipeline = _load(file, bootstrap, checkpoint, command_config)
        kept = Checkpoint(pipeline.checkpoint_directory)
        notes = compatibility.check(pipeline, kept)
        notes += [f"{name} is not read by any sink" for name in graph.unread(pipeline)]
        readings = [] if offline else _readings(pipeline)
    if as_json:
        reads = [asdict(reading) | {"lag": reading.lag} for reading in readings]
        print_json({"pipeline": pipeline.name, "version": pipeline.version, "notes": notes, "reads": reads})
        return
    print(f"{pipeline.name}, version {pipeline.version}; checkpoint {pipeline.checkpoint_directory}")
    for line in graph.render(pipeline):
        print(line)
    for note in notes:
        print(f"note: {note}")
    if readings:
        rows = [(r.query, r.topic, r.partition, r.next_offset, r.end_offset, r.lag) for r in readings]
        print_table(("query", "topic", "partition#", "next#", "end#", "lag#"), rows, "Would be read")


@app.command()
def status(
    file: File,
    checkpoint: CheckpointOption = None,
    bootstrap: BootstrapOption = None,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
) -> None:
    """Show how a pipeline stands: whether it runs, its last batches, and its lag."""
    from braidmq.cli.pipeline_view import print_status
    from braidmq.spark.pipelines.checkpoint import Checkpoint
    from braidmq.spark.pipelines.mistakes import PipelineError
    from braidmq.spark.pipelines.status import load_status

    with _explained():
        pipeline = _load(file, bootstrap, checkpoint, command_config)
        found = load_status(Checkpoint(pipeline.checkpoint_directory))
        try:
            readings = _readings(pipeline)
        except PipelineError:
            readings = None  # The broker is away; what the last run wrote down is still worth showing.
    if found is not None and readings is not None:
        for query in found.queries:
            lags = [reading.lag for reading in readings if reading.query == query.name]
            query.lag = sum(lags) if lags else None
    if as_json:
        print_json(asdict(found) if found else {"pipeline": pipeline.name, "state": "never run"})
    elif found is None:
        print(f"{pipeline.name}, version {pipeline.version}: never run with {pipeline.checkpoint_directory}")
    else:
        print_status(found)


@app.command()
def init(
    template: Annotated[str | None, typer.Argument(metavar="TEMPLATE", help="None: list them.")] = None,
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help="Default: TEMPLATE.yaml.")] = None,
    topic: Annotated[str, typer.Option("--topic", "-t", help="Your topic.")] = "events",
    bootstrap: Annotated[
        str | None, typer.Option("--bootstrap", "-b", metavar="HOST:PORT", help="To be written into FILE.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
) -> None:
    """Write a commented starter file.

    Examples:
    braid pipeline init window orders.yaml --topic orders
    """
    from braidmq.spark.pipelines import templates

    if template is None:
        print_table(("template", "what it does"), templates.names().items())
        return
    target = file or Path(f"{template}.yaml")
    if target.exists() and not force:
        raise UserMistake(f"{target} is there already; --force replaces it")
    name = re.sub(r"[^A-Za-z0-9._-]", "-", target.stem)
    with _changed_by_the_user():
        text = templates.fill(template, name, topic, bootstrap or f"${{BRAID_BOOTSTRAP:-{BOOTSTRAP}}}")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text, encoding="utf-8")
    print(f"wrote {target}; next: braid pipeline plan {target}")


rescue.attach(app)


def _load(
    file: Path, bootstrap: str | None, checkpoint: Path | None, command_config: Path | None
) -> Pipeline:
    from braidmq.spark.pipelines import load
    from braidmq.spark.pipelines.checkpoint import local_directory

    changes: dict[str, Any] = {}
    if bootstrap is not None:
        changes["bootstrap"] = bootstrap
    if checkpoint is not None:
        changes["checkpoint"] = local_directory(checkpoint)
    with _changed_by_the_user():
        loaded = load(file, read_command_config(command_config))
    return replace(loaded, **changes)


@contextmanager
def _changed_by_the_user() -> Iterator[None]:
    """Around what is wrong with the command or its file, and with nothing else."""
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
    """Mistakes in a file one to a line, and what must be installed, with exit code 2; failures with 1."""
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
    """The first SIGTERM or Ctrl-C asks for an orderly end; a second Ctrl-C does not wait for it."""
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
