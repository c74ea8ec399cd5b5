"""The table as a picture: a panel for each kind of figure, in it a bar for each load on a logarithmic axis.

1 is Kafka; the line across a panel is its aim; green bars reach it, red ones do not.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import pyplot

from .metric import Better
from .results import Results, Row

HIT, MISS, LINE = "#2f7d4f", "#b5482f", "#222222"
INCHES_PER_ROW = 0.19
INCHES_MIN = 2.0
PANELS = {
    "Throughput": ("throughput", "requests"),
    "Latency, p99": ("p99",),
    "CPU": ("CPU",),
    "Memory": ("RSS idle", "RSS peak"),
    "Start": ("start to first ack",),
    "Spark, batch reads": ("rows read",),
    "Spark, sink": ("rows written",),
    "Spark, micro-batches": ("batch time",),
    "Spark, local log": ("rows read locally",),
}


def draw(results: Results, path: Path) -> None:
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "braid"  # the same figures give the same file
    matplotlib.rcParams["svg.fonttype"] = "none"  # text stays text, a quarter of the size
    panels = {title: _rows(results, names) for title, names in PANELS.items()}
    panels = {title: rows for title, rows in panels.items() if rows}
    if not panels:
        return
    heights = [len(rows) + 2.5 for rows in panels.values()]
    figure, axes = pyplot.subplots(
        len(panels), 1, sharex=True, squeeze=False, layout="constrained",
        figsize=(10, max(INCHES_MIN, INCHES_PER_ROW * sum(heights))), height_ratios=heights,
    )  # fmt: skip
    for panel, (title, rows) in zip(axes[:, 0], panels.items(), strict=True):
        _panel(panel, title, rows)
    axes[-1, 0].set_xlabel("Braid / Kafka", fontsize=8)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def _rows(results: Results, names: tuple[str, ...]) -> list[Row]:
    return [row for row in results.rows if row.metric.name in names and row.hit is not None]


def _panel(panel: Any, title: str, rows: list[Row]) -> None:
    places = list(range(len(rows), 0, -1))
    for place, row in zip(places, rows, strict=True):
        ratio = row.ratio or 1.0
        panel.barh(place, ratio - 1, left=1, color=HIT if row.hit else MISS, height=0.7)
    metric = rows[0].metric
    better = "higher is better" if metric.better is Better.HIGHER else "lower is better"
    panel.set_title(f"{title}: {better}, aim {metric.aim()}", fontsize=9, loc="left")
    panel.set_xscale("log")
    panel.axvline(1, color=LINE, linewidth=0.8)
    panel.axvline(metric.target, color=LINE, linewidth=1.2, linestyle="--")
    panel.set_yticks(places, [row.load for row in rows], fontsize=6.5)
    panel.set_ylim(0.3, len(rows) + 0.7)
    panel.tick_params(axis="x", labelsize=8)
    panel.grid(axis="x", which="both", alpha=0.25)
