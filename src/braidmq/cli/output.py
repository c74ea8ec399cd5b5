"""How results are shown: JSON for scripts, a table for people."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any


def print_json(value: Any) -> None:
    print(json.dumps(value, ensure_ascii=False, default=str))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str | None = None) -> None:
    """A table; columns whose heading ends in `#` hold numbers and are set to the right."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for heading in columns:
        table.add_column(heading.rstrip("#"), justify="right" if heading.endswith("#") else "left")
    for row in rows:
        table.add_row(*(f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row))
    Console(highlight=False).print(table)


def text_of(content: bytes | None) -> str | None:
    """Bytes as text where they are UTF-8, else with the odd bytes written as \\xNN."""
    return None if content is None else content.decode("utf-8", "backslashreplace")
