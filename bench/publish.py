"""Writes a run down: figures, tables and a picture to bench/results/, and the blocks of bench/RESULTS.md.

`python -m bench.publish` writes the pages again from the figures, after an edit of NOTES.md or of the texts.
"""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path

from . import headline, method, plot, report
from .results import Results

HERE = Path(__file__).parent
PAGE = HERE / "RESULTS.md"
RESULTS = HERE / "results"
NOTES = HERE / "NOTES.md"


class Subject(StrEnum):
    """What is compared; its files have this name."""

    BROKER = "broker"
    SPARK = "spark"

    @property
    def title(self) -> str:
        return {
            Subject.BROKER: "Braid and Apache Kafka on the same machine",
            Subject.SPARK: "Spark through Braid and through its own Kafka connector",
        }[self]

    @property
    def method(self) -> str:
        return {Subject.BROKER: method.BROKER, Subject.SPARK: method.SPARK}[self]


def publish(newer: Results, subject: Subject, out: Path) -> None:
    """Joins a run to the figures in the folder and writes that folder's pages again.

    RESULTS.md follows the figures of the project; a run that is written elsewhere leaves it alone.
    """
    out.mkdir(parents=True, exist_ok=True)
    figures = out / f"{subject}.json"
    merged = Results.read(figures).replaced_by(newer)
    merged.save(figures)
    write(merged, subject, out)
    print(f"written: {', '.join(map(str, sorted(out.glob(f'{subject}.*'))))}")
    if out.resolve() == RESULTS:
        write_headlines()
        print(f"written: the tables of {PAGE}")
    else:
        print(f"{PAGE} is unchanged: its figures come from {RESULTS}")


def write(results: Results, subject: Subject, out: Path) -> None:
    page = report.page(results, subject, subject.title, subject.method, report.read_notes(NOTES))
    (out / f"{subject}.md").write_text(page, encoding="utf-8")
    plot.draw(results, out / f"{subject}.svg")


def write_headlines() -> None:
    broker, spark = (Results.read(RESULTS / f"{subject}.json") for subject in Subject)
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(headline.update(page, broker, spark), encoding="utf-8")


def main() -> int:
    for subject in Subject:
        write(Results.read(RESULTS / f"{subject}.json"), subject, RESULTS)
    write_headlines()
    return 0


if __name__ == "__main__":
    sys.exit(main())
