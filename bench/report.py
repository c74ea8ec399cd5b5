"""The tables of ratios: on the terminal, and as a page with an explanation of each miss.

Explanations are kept by hand in NOTES.md, where a heading is a pattern for the rows it explains
(`## consume * cold: throughput`). They are placed after the misses, so a new run loses none of them.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from rich.console import Console
from rich.table import Table

from .results import Results, Row


def number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def with_span(row: Row, server: str) -> str:
    """The median, and the lowest and the highest round if there were several."""
    median = number(row.median(server))
    lowest, highest = (number(each) for each in row.span(server) or (None, None))
    return median if lowest == highest else f"{median} ({lowest} to {highest})"


def verdict(row: Row) -> str:
    return {True: "hit", False: "miss", None: ""}[row.hit]


def ratio(row: Row) -> str:
    return "-" if row.ratio is None else f"{_ratio(row.ratio)}x"


def ratio_with_span(row: Row) -> str:
    span = row.ratio_span
    return ratio(row) if span is None else f"{ratio(row)} ({_ratio(span[0])} to {_ratio(span[1])})"


def _ratio(value: float) -> str:
    return f"{value:.2f}" if value >= 0.1 else f"{value:.3f}"


def print_table(results: Results, console: Console) -> None:
    for group, rows in _groups(results):
        table = Table(title=group, title_justify="left")
        for heading in ("load", "metric"):
            table.add_column(heading)
        for heading in ("Braid", "Kafka", "ratio", "aim", ""):
            table.add_column(heading, justify="right")
        for row in rows:
            colour = {True: "green", False: "red", None: ""}[row.hit]
            table.add_row(
                row.load,
                f"{row.metric.name}, {row.metric.unit}",
                number(row.median("braid")),
                number(row.median("kafka")),
                ratio(row),
                row.metric.aim(),
                verdict(row),
                style=colour,
            )
        console.print(table)
    console.print(summary(results))


def comparison(results: Results, server: str) -> str:
    """Braid beside another Braid, as a table to read or to paste."""
    lines = [f"| load | metric | braid | {server} | ratio |", "|---|---|---:|---:|---:|"]
    for row in results.rows:
        found = row.ratio_to(server)
        cells = (
            row.load,
            f"{row.metric.name}, {row.metric.unit}",
            with_span(row, "braid"),
            with_span(row, server),
            "-" if found is None else f"{_ratio(found)}x",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def summary(results: Results) -> str:
    rows = judged(results)
    return f"{sum(1 for row in rows if row.hit)} of {len(rows)} targets hit"


def judged(results: Results) -> list[Row]:
    """The rows that have an aim and figures of both servers."""
    return [row for row in results.rows if row.hit is not None]


def page(results: Results, name: str, title: str, method: str, notes: dict[str, str]) -> str:
    """The whole page of one subject; `name` is that of its JSON and its picture."""
    parts = [
        f"# {title}\n",
        f"Generated from [{name}.json]({name}.json), which has the figures of every round.\n",
        "[RESULTS.md](../RESULTS.md) has the rows that matter most.\n",
        f"{summary(results)}.\n",
        *([f"![Braid's figures as ratios of Kafka's]({name}.svg)\n"] if judged(results) else []),
        method,
        "## Runs\n",
        *(f"- **{run['date']}**, commit {run['commit']}: {_machine(run)}\n" for run in results.runs.values()),
        "## Tables\n",
    ]
    for group, rows in _groups(results):
        parts.append(f"### {group[0].upper()}{group[1:]}\n")
        for run, measured in groupby(rows, key=lambda row: row.run):
            parts += [_caption(results.runs[run]), _table(list(measured))]
    parts += ["## Misses\n", *_misses(results, notes)]
    return "\n".join(parts)


def _machine(run: dict[str, str]) -> str:
    return "; ".join(f"{name} {value}" for name, value in run.items() if name not in ("date", "commit"))


def _caption(run: dict[str, str]) -> str:
    return f"{run['date']}, commit {run['commit']}, {run['CPU'].partition(',')[0]}\n"


def _table(rows: list[Row]) -> str:
    lines = ["| load | metric | Braid | Kafka | ratio | aim | |", "|---|---|---:|---:|---:|---:|---|"]
    for row in rows:
        cells = (
            row.load,
            f"{row.metric.name}, {row.metric.unit}",
            with_span(row, "braid"),
            with_span(row, "kafka"),
            ratio_with_span(row),
            row.metric.aim(),
            verdict(row).replace("miss", "**miss**"),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _misses(results: Results, notes: dict[str, str]) -> Iterator[str]:
    missed = [row for row in results.rows if row.hit is False]
    if not missed:
        yield "None.\n"
    for pattern, note in notes.items():
        explained = [row for row in missed if fnmatch.fnmatchcase(row.name, pattern)]
        if explained:
            yield "".join(f"- {row.name} {ratio(row)} (aim {row.metric.aim()})\n" for row in explained)
            yield f"{note}\n"
            missed = [row for row in missed if row not in explained]
    if missed:
        yield "Not explained yet:\n"
        yield "".join(f"- {row.name} {ratio(row)} (aim {row.metric.aim()})\n" for row in missed)


def read_notes(path: Path) -> dict[str, str]:
    """Pattern → explanation, from the second-level headings of the file."""
    notes: dict[str, str] = {}
    if not path.exists():
        return notes
    for section in ("\n" + path.read_text(encoding="utf-8")).split("\n## ")[1:]:
        pattern, _, text = section.partition("\n")
        notes[pattern.strip()] = text.strip()
    return notes


def _groups(results: Results) -> Iterator[tuple[str, list[Row]]]:
    order = {row.group: None for row in results.rows}
    ranked = sorted(results.rows, key=lambda row: list(order).index(row.group))
    for group, rows in groupby(ranked, key=lambda row: row.group):
        yield group, list(rows)
