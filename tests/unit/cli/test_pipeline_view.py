"""What a running pipeline looks like, on a terminal and elsewhere."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from braidmq.cli import pipeline_view
from braidmq.spark.pipelines.status import QueryStatus, RunState, RunStatus

BUSY = QueryStatus(
    "orders_without_customers",
    RunState.RUNNING,
    batch=1234,
    rows=12_345_678,
    rows_per_s=98_765.4,
    batch_ms=432,
    state_rows=5_000,
    state_bytes=12_345_678,
    lag=77,
)
STATUS = RunStatus("orders", 1, RunState.RUNNING, queries=[QueryStatus("out"), BUSY])


def test_the_table_shows_rates_lag_batch_time_and_state() -> None:
    """S4 O1: in a terminal of 80 columns nothing of it is cut off."""
    console = Console(file=io.StringIO(), width=80, force_terminal=False)
    console.print(pipeline_view._table(STATUS))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(len, shown.splitlines())) <= 80
    for words in ("rows/s", "98,765", "lag", "77", "batch ms", "432", "5,000", "12.3", "running"):
        assert words in shown
    assert "…" not in shown


def test_without_a_terminal_a_line_is_printed_when_something_changes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """S4 O1: and nothing when nothing does."""
    lines = pipeline_view.Lines()
    lines.update(STATUS)
    lines.update(STATUS)
    assert capsys.readouterr().out.splitlines() == [
        "out: starting",
        "orders_without_customers: running batch=1234 rows=12345678 rows/s=98765 ms=432 lag=77 state=5000",
    ]
