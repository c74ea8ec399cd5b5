"""Tables for people."""

from __future__ import annotations

import pytest

from braidmq.cli.output import print_table


def test_a_table_shows_cells_headings_and_titles_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    """O1: what is in a record is no instruction about colours, and never a failure."""
    odd = ("[error] disk full", "GET [/health]", "[bold]", ":smile:", "back\\")
    print_table(["[red]", "n#"], [(text, 1_000) for text in odd], "[title]")
    out = capsys.readouterr().out
    assert all(text in out for text in (*odd, "[red]", "[title]", "1,000"))
