"""How results are printed: a table for people, JSON or CSV for programs."""

from __future__ import annotations

import csv
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from braidmq.cli.mistake import UserMistake

if TYPE_CHECKING:
    from rich.table import Table

WIDTH_ELSEWHERE = 240

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


class Form(StrEnum):
    TABLE = "table"
    JSON = "json"
    CSV = "csv"


@dataclass(frozen=True)
class Output:
    """--output and --json, of every command that prints a table."""

    output: Annotated[
        Form | None, typer.Option("--output", help="How to print the result.", show_default="table")
    ] = None
    as_json: Annotated[bool, typer.Option("--json", help="Short for --output json.")] = False

    def __post_init__(self) -> None:
        if self.as_json and self.output not in (None, Form.JSON):
            raise UserMistake(f"--json and --output {self.output} cannot be used together")

    @property
    def form(self) -> Form:
        return Form.JSON if self.as_json else self.output or Form.TABLE

    @property
    def is_table(self) -> bool:
        return self.form is Form.TABLE

    def printed(self, value: Any, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> bool:
        """Prints `value` as JSON or `rows` as CSV; False if a table is wanted, which the caller prints."""
        if self.form is Form.JSON:
            print_json(value)
        elif self.form is Form.CSV:
            print_csv([heading.rstrip("#") for heading in columns], rows)
        return not self.is_table


def print_json(value: Any) -> None:
    print(json.dumps(value, ensure_ascii=False, default=str))


def print_csv(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """With a line of headings, also where there are no rows; what is not known is empty."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)


def print_csv_of_tables(tables: Mapping[str, Sequence[Mapping[str, object]]]) -> None:
    """Several tables in one: the first column names the table, columns that it does not have are empty."""
    columns = dict.fromkeys(name for rows in tables.values() for row in rows for name in row)
    print_csv(
        ("table", *columns),
        [(table, *(row.get(name) for name in columns)) for table, rows in tables.items() for row in rows],
    )


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str | None = None) -> None:
    from rich.console import Console

    # Where nobody looks at a screen, a row stays on its line.
    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else WIDTH_ELSEWHERE
    Console(highlight=False, width=width).print(table_of(columns, rows, title))


def table_of(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str | None = None) -> Table:
    """A table; columns whose heading ends in `#` hold numbers and are set to the right."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    # As Text: in a plain string square brackets and names between colons would mean something.
    name = None if title is None else Text(title, "table.title")
    table = Table(title=name, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for heading in columns:
        side = "right" if heading.endswith("#") else "left"
        table.add_column(Text(heading.rstrip("#")), justify=side, overflow="fold")  # type: ignore[arg-type]
    for row in rows:
        table.add_row(*(Text(_cell(cell)) for cell in row))
    return table


def _cell(cell: object) -> str:
    if cell is None:
        return "-"
    return f"{cell:,}" if isinstance(cell, int) else str(cell)


def text_of(content: bytes | None) -> str | None:
    """Bytes as text where they are UTF-8, else with the odd bytes written as \\xNN."""
    return None if content is None else content.decode("utf-8", "backslashreplace")
