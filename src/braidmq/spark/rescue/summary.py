"""A whole report: figures over one fixed range, as tables, as JSON, and as a page with plots."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from braidmq.client.cluster import Cluster, TopicPartition
from braidmq.client.offsets import list_offsets
from braidmq.spark.cluster import open_cluster
from braidmq.spark.lake import ranges
from braidmq.spark.rescue import plots, report

Row = dict[str, Any]
HIGH_SKEW = 2.0
HOT_SHARE = 0.2


@dataclass(frozen=True, slots=True)
class TopicReport:
    """Tables by name, each a list of rows, and the findings."""

    topics: tuple[str, ...]
    at_ms: int
    bucket_s: int
    tables: Mapping[str, list[Row]]
    findings: tuple[str, ...] = ()

    def as_json(self) -> Row:
        return json.loads(json.dumps(asdict(self), default=_plain))  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class ReportRequest:
    """Which topics, since when, and how many of the hottest keys."""

    bootstrap: str
    topics: tuple[str, ...]
    from_ms: int | None = None
    hot_keys: int = report.HOT_KEYS
    client_options: Mapping[str, str] = field(default_factory=dict)


def summarise(
    spark: SparkSession, request: ReportRequest, progress: Callable[[str], None] = lambda _: None
) -> TopicReport:
    """Computes every figure; calls `progress` with the name of each step."""
    with open_cluster(request.bootstrap, request.client_options) as cluster:
        progress("reading offsets and groups")
        spans = _spans(cluster, request)
        lags = report.lags(cluster, request.topics)
        now_ms = cluster.clock.wall_ms()
    rows = ranges.read_ranges(spark, request.bootstrap, spans, request.client_options)
    rows = report.measured(rows).persist()
    headers = report.batches(spark, request.bootstrap, spans, request.client_options).persist()
    try:
        progress("reading records")
        bucket_s = report.bucket_s(rows)
        tables: dict[str, list[Row]] = {}
        for name, frame in _frames(rows, headers, bucket_s, request, spans).items():
            progress(name.replace("_", " "))
            found = [row.asDict() for row in frame.collect()]
            tables[name] = [{key: _utc(cell) for key, cell in row.items()} for row in found]
        ages = report.oldest_unread(rows, [each for each in lags if _is_read_from(spans, each)])
        lags = [
            replace(each, oldest_unread_ms=ages.get((each.group, each.topic, each.partition)))
            for each in lags
        ]
        tables["lag"] = [asdict(each) for each in lags]
    finally:
        rows.unpersist()
        headers.unpersist()
    return TopicReport(request.topics, now_ms, bucket_s, tables, tuple(_findings(tables, now_ms)))


def _spans(cluster: Cluster, request: ReportRequest) -> dict[TopicPartition, tuple[int, int]]:
    spans = ranges.whole(cluster, request.topics)
    if request.from_ms is None:
        return spans
    found = list_offsets(cluster, dict.fromkeys(spans, request.from_ms))
    return {
        at: (end if found[at].offset < 0 else min(max(found[at].offset, start), end), end)
        for at, (start, end) in spans.items()
    }


def _is_read_from(spans: ranges.Ranges, lag: report.Lag) -> bool:
    """Whether the report includes the first record that a group has not read."""
    first, _ = spans.get(TopicPartition(lag.topic, lag.partition), (0, 0))
    return lag.committed + lag.lost >= first


def _frames(
    rows: DataFrame, headers: DataFrame, bucket_s: int, request: ReportRequest, spans: ranges.Ranges
) -> dict[str, DataFrame]:
    return {
        "throughput": report.throughput(rows, bucket_s),
        "partitions": report.partitions(rows, spans),
        "hot_keys": report.hot_keys(rows, request.hot_keys),
        "append_latency": report.append_latency(headers),
        "lateness": report.lateness(rows),
        "batches": report.batch_sizes(headers),
    }


def _findings(tables: Mapping[str, Sequence[Row]], now_ms: int) -> list[str]:
    """What to look at first."""
    said = []
    for row in tables["partitions"]:
        if row["skew"] is not None and row["skew"] >= HIGH_SKEW:
            said.append(
                f"{row['topic']}-{row['partition']} has {row['skew']:.1f} times the mean of its topic"
            )
    for row in tables["hot_keys"]:
        if row["share"] >= HOT_SHARE and row["key"] is not None:
            said.append(f"key {_plain(row['key'])} is {row['share']:.0%} of {row['topic']}")
    for row in tables["lag"]:
        where = f"group {row['group']} in {row['topic']}-{row['partition']}"
        if row["lost"]:
            said.append(f"{where} lost {row['lost']:,} records to retention before it read them")
        if row["lag"]:
            behind = f"{where} is {row['lag']:,} records behind"
            if row["oldest_unread_ms"] is not None:
                age_s = max(0, now_ms - row["oldest_unread_ms"]) / 1000
                behind += f", the oldest {age_s:,.0f} s old"
            said.append(behind)
    return said


def write(made: TopicReport, folder: Path) -> list[Path]:
    """Writes report.md, report.json and the plots; returns the files in that order."""
    folder.mkdir(parents=True, exist_ok=True)
    page, raw = folder / "report.md", folder / "report.json"
    raw.write_text(json.dumps(made.as_json(), indent=1, ensure_ascii=False), encoding="utf-8")
    page.write_text(_page(made), encoding="utf-8")
    return [page, raw, *plots.draw(made.tables, made.bucket_s, folder)]


def _page(made: TopicReport) -> str:
    parts = [f"# {', '.join(made.topics)}, {_moment(made.at_ms)}", ""]
    parts += [f"- {each}" for each in made.findings] or ["Nothing stands out."]
    for name, rows in made.tables.items():
        parts += ["", f"## {name.replace('_', ' ')}", "", *_table(name, rows)]
        if name in plots.drawn(made.tables):
            parts.append(f"\n![{name}]({name}.png)")
    return "\n".join(parts) + "\n"


def _table(name: str, rows: Sequence[Row]) -> list[str]:
    if not rows:
        return [EMPTY.get(name, "Nothing.")]
    heading = list(rows[0])
    lines = [f"| {' | '.join(heading)} |", f"|{'---|' * len(heading)}"]
    return lines + [f"| {' | '.join(shown(row[each]) for each in heading)} |" for row in rows]


EMPTY = {
    "append_latency": "Unknown: these topics have message.timestamp.type=CreateTime, so the log has no append"
    " times. See lateness for a lower bound.",
    "lateness": "These topics are stamped by the broker; see append latency.",
    "lag": "No group has committed offsets of these topics.",
}


def shown(value: Any) -> str:
    """A cell as text."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.3f}" if value < 10 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(_plain(value)).replace("|", "\\|")


def _plain(value: Any) -> Any:
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("utf-8", "backslashreplace")
    if isinstance(value, datetime):
        return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return str(value)


def _utc(value: Any) -> Any:
    """Spark returns times in the local time zone of this machine, without a time zone."""
    return value.astimezone(UTC) if isinstance(value, datetime) else value


def _moment(timestamp_ms: int) -> str:
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M UTC")
