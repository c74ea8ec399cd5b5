"""The plots of a report, one PNG for each table with data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from braidmq.spark.errors import UserError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row = Mapping[str, Any]
SIZE_INCHES = (9.0, 4.2)
DPI = 120
BARS_MAX = 20
LABEL_LETTERS = 24
COLOURS = ("#2563eb", "#d97706", "#059669", "#dc2626", "#7c3aed", "#475569")


class PlotsMissing(UserError):
    """The plotting library is not installed."""


def drawn(tables: Mapping[str, Sequence[Row]]) -> list[str]:
    """The tables with a plot, `NAME.png`."""
    return [name for name in PAINTERS if tables.get(name)]


def draw(tables: Mapping[str, Sequence[Row]], bucket_s: int, folder: Path) -> list[Path]:
    """Draws the plots into the folder and returns the files."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise PlotsMissing("plots need matplotlib; run: pip install 'braidmq[spark]'") from None
    files = []
    for name in drawn(tables):
        figure = Figure(figsize=SIZE_INCHES, layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", alpha=0.3)
        PAINTERS[name](axes, tables[name], bucket_s)
        path = folder / f"{name}.png"
        figure.savefig(path, dpi=DPI)
        files.append(path)
    return files


def _throughput(axes: Axes, rows: Sequence[Row], bucket_s: int) -> None:
    axes.set_title(f"Throughput, by the records' timestamps, per {bucket_s} s")
    axes.set_ylabel("records per second")
    for colour, topic in zip(_colours(rows), _topics(rows), strict=False):
        times, rates = rates_of([row for row in rows if row["topic"] == topic], bucket_s)
        axes.plot(times, rates, color=colour, marker="." if len(times) < 3 else None, label=topic)
    axes.set_ylim(bottom=0)
    axes.tick_params(axis="x", rotation=20)
    axes.legend(frameon=False)


def rates_of(rows: Sequence[Row], bucket_s: int) -> tuple[list[Any], list[float]]:
    """Times and rates of one topic without gaps: a bucket without a row had no records."""
    known = {row["time"]: row["records_per_s"] for row in rows}
    times, last = [min(known)], max(known)
    while times[-1] < last:
        times.append(times[-1] + timedelta(seconds=bucket_s))
    return times, [known.get(time, 0.0) for time in times]


def _partitions(axes: Axes, rows: Sequence[Row], _bucket_s: int) -> None:
    axes.set_title("Records in each partition")
    axes.set_ylabel("records")
    start = 0
    for colour, topic in zip(_colours(rows), _topics(rows), strict=False):
        counts = [row["records"] for row in rows if row["topic"] == topic]
        places = range(start, start + len(counts))
        axes.bar(places, counts, color=colour, label=topic)
        mean = sum(counts) / len(counts)
        axes.hlines(
            mean, start - 0.5, start + len(counts) - 0.5, color="#111827", linestyles=":", linewidth=1
        )
        start += len(counts) + 1
    axes.set_xlabel("partitions in order; dotted: the mean of the topic")
    axes.set_xticks([])
    axes.legend(frameon=False)


def _hot_keys(axes: Axes, rows: Sequence[Row], _bucket_s: int) -> None:
    axes.set_title("Keys with the most records")
    shown = sorted(rows, key=lambda row: -row["records"])[:BARS_MAX]
    colours = dict(zip(_topics(rows), _colours(rows), strict=False))
    names = [_label(row["key"]) for row in shown]
    places = range(len(shown))
    axes.bar(places, [100 * row["share"] for row in shown], color=[colours[row["topic"]] for row in shown])
    axes.set_ylabel("% of the topic")
    axes.set_xticks(list(places), names, rotation=45, ha="right", parse_math=False)


def _quantiles(title: str) -> Callable[[Axes, Sequence[Row], int], None]:
    def paint(axes: Axes, rows: Sequence[Row], _bucket_s: int) -> None:
        axes.set_title(title)
        axes.set_ylabel("milliseconds")
        labels = ("p50", "p90", "p99", "max")
        width = 0.8 / len(rows)
        for index, (colour, row) in enumerate(zip(_colours(rows), rows, strict=False)):
            places = [number + index * width for number in range(len(labels))]
            axes.bar(places, [row[label] for label in labels], width, color=colour, label=row["topic"])
        axes.set_xticks([number + 0.4 - width / 2 for number in range(len(labels))], labels)
        axes.legend(frameon=False)

    return paint


def _lag(axes: Axes, rows: Sequence[Row], _bucket_s: int) -> None:
    axes.set_title("Lag of groups")
    axes.set_ylabel("records not yet read")
    sums: dict[str, int] = {}
    for row in rows:
        name = f"{row['group']}\n{row['topic']}"
        sums[name] = sums.get(name, 0) + row["lag"]
    most = sorted(sums.items(), key=lambda each: -each[1])[:BARS_MAX]
    axes.bar(range(len(most)), [amount for _, amount in most], color=COLOURS[0])
    names = [name for name, _ in most]
    axes.set_xticks(list(range(len(most))), names, rotation=30, ha="right", parse_math=False)


PAINTERS: Mapping[str, Callable[[Any, Sequence[Row], int], None]] = {
    "throughput": _throughput,
    "partitions": _partitions,
    "hot_keys": _hot_keys,
    "append_latency": _quantiles("From produce to append, first record of each batch"),
    "lateness": _quantiles("Late by at least (append times are not recorded)"),
    "lag": _lag,
}


def _topics(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row["topic"] for row in rows))


def _colours(rows: Sequence[Row]) -> list[str]:
    return [COLOURS[index % len(COLOURS)] for index in range(len(rows))]


def _label(key: bytes | bytearray | None) -> str:
    text = "(no key)" if key is None else bytes(key).decode("utf-8", "backslashreplace")
    return text if len(text) <= LABEL_LETTERS else text[: LABEL_LETTERS - 1] + "…"
