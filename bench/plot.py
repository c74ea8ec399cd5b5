"""The table as a picture: each judged row is a bar on a logarithmic axis; 1 is Kafka, a tick is the aim."""

from __future__ import annotations

from pathlib import Path

import matplotlib
from matplotlib import pyplot

from .results import Results

HIT, MISS, AIM = "#2f7d4f", "#b5482f", "#222222"
INCHES_PER_ROW = 0.19


def draw(results: Results, path: Path) -> None:
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "braid"  # the same figures give the same file
    rows = [row for row in results.rows if row.ratio and row.metric.target]
    figure, axes = pyplot.subplots(figsize=(10, 1.2 + INCHES_PER_ROW * len(rows)))
    places = range(len(rows), 0, -1)
    for place, row in zip(places, rows, strict=True):
        ratio, target = row.ratio, row.metric.target
        if ratio is None or target is None:
            continue
        axes.barh(place, ratio - 1, left=1, color=HIT if row.hit else MISS, height=0.7)
        axes.plot([target, target], [place - 0.45, place + 0.45], color=AIM, linewidth=1.5)
    axes.set_xscale("log")
    axes.axvline(1, color=AIM, linewidth=0.8)
    axes.set_yticks(list(places), [row.name for row in rows], fontsize=6.5)
    axes.set_ylim(0.3, len(rows) + 0.7)
    axes.set_xlabel("Braid / Kafka (1 = Kafka; black tick: the aim; green: hit, red: miss)", fontsize=8)
    axes.tick_params(axis="x", labelsize=8)
    axes.grid(axis="x", which="both", alpha=0.25)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
