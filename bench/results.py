"""The figures of all loads as JSON. A later run replaces the loads that it measured and keeps the others.

So a file may hold several runs. Each row names its run, and `runs` says when, on which commit and on which
machine that was.
"""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .metric import BY_KEY, Figures, Metric


@dataclass(slots=True)
class Row:
    """One metric of one load: a value of each server from each round."""

    load: str
    group: str
    metric: Metric
    values: dict[str, list[float]] = field(default_factory=dict)
    run: str = ""

    @property
    def name(self) -> str:
        return f"{self.load}: {self.metric.name}"

    def median(self, server: str) -> float | None:
        values = self.values.get(server)
        return statistics.median(values) if values else None

    def span(self, server: str) -> tuple[float, float] | None:
        """The lowest and the highest round; None where there is only one."""
        values = self.values.get(server, [])
        return (min(values), max(values)) if len(values) > 1 else None

    @property
    def ratio(self) -> float | None:
        """Braid's median over Kafka's."""
        return self.ratio_to("kafka")

    @property
    def ratio_span(self) -> tuple[float, float] | None:
        """The lowest and the highest ratio of a round; None unless both servers ran in every round."""
        braid, kafka = self.values.get("braid", []), self.values.get("kafka", [])
        if len(braid) != len(kafka) or len(braid) < 2 or not all(kafka):
            return None
        ratios = [mine / theirs for mine, theirs in zip(braid, kafka, strict=True)]
        return min(ratios), max(ratios)

    def ratio_to(self, server: str) -> float | None:
        """Braid's median over that of another server than Kafka."""
        braid, other = self.median("braid"), self.median(server)
        return braid / other if braid is not None and other else None

    def plain(self) -> dict[str, Any]:
        """As the file keeps it, with the digits that mean something."""
        return {
            "run": self.run,
            "load": self.load,
            "group": self.group,
            "metric": self.metric.name,
            "unit": self.metric.unit,
            "values": {name: [float(f"{value:.5g}") for value in kept] for name, kept in self.values.items()},
        }

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> Row:
        metric = BY_KEY[plain["metric"], plain["unit"]]
        return cls(plain["load"], plain["group"], metric, plain["values"], plain["run"])

    @property
    def hit(self) -> bool | None:
        return None if self.ratio is None else self.metric.hit(self.ratio)


@dataclass(slots=True)
class Results:
    """Rows in the order they were first seen, and the runs they come from."""

    runs: dict[str, dict[str, str]] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)

    def add(self, load: str, group: str, server: str, figures: Figures) -> None:
        for metric, value in figures.items():
            row = self.find(load, metric)
            if row is None:
                row = Row(load, group, metric)
                self.rows.append(row)
            row.values.setdefault(server, []).append(value)

    def find(self, load: str, metric: Metric) -> Row | None:
        return next((row for row in self.rows if row.load == load and row.metric == metric), None)

    def stamp(self, machine: dict[str, str]) -> None:
        """All rows come from one run: this one."""
        name = f"{machine['date']} {machine['commit']}"
        self.runs = {name: machine}
        for row in self.rows:
            row.run = name

    def replaced_by(self, newer: Results) -> Results:
        """These results with the loads that were measured again replaced."""
        again = {row.load: [new for new in newer.rows if new.load == row.load] for row in newer.rows}
        rows: list[Row] = []
        for row in self.rows:
            if row.load not in again:
                rows.append(row)
            else:
                rows += again[row.load]
                again[row.load] = []
        rows += [row for added in again.values() for row in added]
        used = {row.run for row in rows}
        return Results({name: run for name, run in (self.runs | newer.runs).items() if name in used}, rows)

    def save(self, path: Path) -> None:
        lines = ",\n    ".join(json.dumps(row.plain(), ensure_ascii=False) for row in self.rows)
        runs = json.dumps(self.runs, indent=2, ensure_ascii=False).replace("\n", "\n  ")
        path.write_text(f'{{\n  "runs": {runs},\n  "rows": [\n    {lines}\n  ]\n}}\n', encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Results:
        if not path.exists():
            return cls()
        kept = json.loads(path.read_text(encoding="utf-8"))
        return cls(kept["runs"], [Row.from_plain(row) for row in kept["rows"]])
