"""A running pipeline on the screen: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from braidmq.cli.moment import format_moment
from braidmq.cli.output import print_table, table_of

if TYPE_CHECKING:
    from rich.table import Table

    from braidmq.spark.pipelines.model import Pipeline
    from braidmq.spark.pipelines.status import QueryStatus, RunStatus

COLUMNS = ("query", "status", "batch#", "rows#", "rows/s#", "batch ms#", "lag#", "state rows#", "state MB#")
SLOW_PER_S = 10.0
"""Rates below it are shown with a decimal."""
LINE_EVERY_S = 5.0
"""Without a terminal, at most one line per query in this time."""


class View(Protocol):
    def update(self, status: RunStatus) -> None: ...
    def tell(self, text: str) -> None: ...


@contextmanager
def view(pipeline: Pipeline, is_terminal: bool) -> Iterator[View]:
    if not is_terminal:
        yield Lines()
        return
    from rich.console import Console
    from rich.live import Live

    console = Console(highlight=False)
    console.print(f"{pipeline.name}, version {pipeline.version}: starting Spark …")
    with Live(console=console, refresh_per_second=4, transient=False) as live:
        yield Screen(live)


class Screen:
    """A table that is redrawn in place."""

    def __init__(self, live: Any) -> None:
        self._live = live

    def update(self, status: RunStatus) -> None:
        self._live.update(_table(status))

    def tell(self, text: str) -> None:
        self._live.console.print(text)


class Lines:
    """A line when a query's state changes and, from time to time, when it has done something."""

    def __init__(self) -> None:
        self._shown: dict[str, tuple[str, int | None]] = {}
        self._next_s: dict[str, float] = {}

    def update(self, status: RunStatus) -> None:
        for query in status.queries:
            before = self._shown.get(query.name, ("", None))
            now = (query.state.value, query.batch)
            due = time.monotonic() >= self._next_s.get(query.name, 0.0)
            if now[0] != before[0] or (now != before and due):
                self._shown[query.name] = now
                self._next_s[query.name] = time.monotonic() + LINE_EVERY_S
                print(" ".join(_words(query)), flush=True)

    def tell(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)


def _words(query: QueryStatus) -> Iterator[str]:
    yield f"{query.name}: {query.state}"
    if query.batch is not None:
        yield f"batch={query.batch} rows={query.rows} rows/s={query.rows_per_s:.0f} ms={query.batch_ms}"
        yield f"lag={'?' if query.lag is None else query.lag} state={query.state_rows}"
    if query.error:
        yield f"error={query.error!r}"


def print_status(status: RunStatus) -> None:
    """What `braid pipeline status` shows."""
    print(
        f"{status.pipeline}, version {status.version}: {status.state}, process {status.pid} on {status.host}"
    )
    print(f"started {format_moment(status.started_ms)}, last seen {format_moment(status.updated_ms)}")
    print_table(COLUMNS, [cells(query) for query in status.queries])
    for query in status.queries:
        if query.error:
            print(f"{query.name}: {query.error}")
    if status.error:
        print(f"error: {status.error}")


def _table(status: RunStatus) -> Table:
    rows = [cells(query) for query in status.queries]
    return table_of(COLUMNS, rows, f"{status.pipeline}: {status.state}")


def cells(query: QueryStatus) -> tuple[object, ...]:
    """The row of a query under `COLUMNS`."""
    return (
        query.name,
        query.state.value,
        query.batch,
        query.rows,
        round(query.rows_per_s) if query.rows_per_s >= SLOW_PER_S else query.rows_per_s,
        query.batch_ms,
        query.lag,
        query.state_rows,
        f"{query.state_bytes / 1e6:.1f}",
    )
