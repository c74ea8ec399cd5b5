"""The figures of all loads, kept as JSON so that a later run, or a later load, adds to them."""

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

    @property
    def name(self) -> str:
        return f"{self.load}: {self.metric.name}"

    def median(self, server: str) -> float | None:
        values = self.values.get(server)
        return statistics.median(values) if values else None

    @property
    def ratio(self) -> float | None:
        """Braid's median over Kafka's."""
        braid, kafka = self.median("braid"), self.median("kafka")
        return braid / kafka if braid is not None and kafka else None

    def plain(self) -> dict[str, Any]:
        """As it is kept in the file, with the digits that mean something."""
        return {
            "load": self.load,
            "group": self.group,
            "metric": self.metric.name,
            "unit": self.metric.unit,
            "values": {name: [float(f"{value:.5g}") for value in kept] for name, kept in self.values.items()},
        }

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> Row:
        return cls(plain["load"], plain["group"], BY_KEY[plain["metric"], plain["unit"]], plain["values"])

    @property
    def hit(self) -> bool | None:
        return None if self.ratio is None else self.metric.hit(self.ratio)


@dataclass(slots=True)
class Results:
    """Rows in the order they were first seen, and where they were measured."""

    machine: dict[str, str] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)

    def add(self, load: str, group: str, server: str, figures: Figures) -> None:
        for metric, value in figures.items():
            row = self._row(load, metric)
            if row is None:
                row = Row(load, group, metric)
                self.rows.append(row)
            row.values.setdefault(server, []).append(value)

    def _row(self, load: str, metric: Metric) -> Row | None:
        return next((row for row in self.rows if row.load == load and row.metric == metric), None)

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
        return Results(newer.machine, rows)

    def save(self, path: Path) -> None:
        lines = ",\n    ".join(json.dumps(row.plain(), ensure_ascii=False) for row in self.rows)
        machine = json.dumps(self.machine, indent=2, ensure_ascii=False).replace("\n", "\n  ")
        path.write_text(f'{{\n  "machine": {machine},\n  "rows": [\n    {lines}\n  ]\n}}\n', encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Results:
        if not path.exists():
            return cls()
        kept = json.loads(path.read_text(encoding="utf-8"))
        return cls(kept["machine"], [Row.from_plain(row) for row in kept["rows"]])
