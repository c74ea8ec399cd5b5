"""How results are shown: JSON for scripts, a table for people."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

WIDTH_ELSEWHERE = 240


def print_json(value: Any) -> None:
    print(json.dumps(value, ensure_ascii=False, default=str))


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
        table.add_row(*(Text(f"{cell:,}" if isinstance(cell, int) else str(cell)) for cell in row))
    return table


def text_of(content: bytes | None) -> str | None:
    """Bytes as text where they are UTF-8, else with the odd bytes written as \\xNN."""
    return None if content is None else content.decode("utf-8", "backslashreplace")
