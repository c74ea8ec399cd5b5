"""The rows of RESULTS.md: which they are, and the blocks of that page that are generated from the figures.

A block is what stands between `<!-- NAME -->` and `<!-- end -->`; the rest of the page is written by hand and
has no figures, so a new run cannot make it wrong.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from . import metric
from .metric import Metric
from .report import number, ratio, ratio_with_span, with_span
from .results import Results, Row


@dataclass(frozen=True, slots=True)
class Headline:
    """A row of the page; `why` explains a weakness."""

    what: str
    load: str
    metric: Metric
    why: str = ""

    @property
    def command(self) -> str:
        script = "bench-spark" if self.load.startswith("Spark ") else "bench"
        return f'scripts/{script} --only "{self.load}"'


BROKER = (
    Headline(
        "Produce 100 B records, 16 partitions, page cache",
        "produce 100 B, 16 partitions, acks=1, cached",
        metric.BYTES_RATE,
    ),
    Headline(
        "Produce 1 KB records, 1 partition, synced to disk",
        "produce 1 KB, 1 partition, acks=all, synced",
        metric.BYTES_RATE,
    ),
    Headline("Consume 1 KB records, 16 partitions", "consume 1 KB, 16 partitions, hot", metric.BYTES_RATE),
    Headline("End-to-end p99 at 20,000 records/s", "end to end at 20,000 msg/s, cached", metric.P99),
    Headline(
        "librdkafka produces 100 B records", "librdkafka produce 100 B, 16 partitions", metric.BYTES_RATE
    ),
    Headline("librdkafka consumes 1 KB records", "librdkafka consume 1 KB, 16 partitions", metric.BYTES_RATE),
    Headline(
        "An 11th consumer joins (cooperative)", "11th consumer joins 10, cooperative-sticky", metric.REBALANCE
    ),
    Headline("Offset commits of 64 consumers", "commits of 64 consumers in 8 groups", metric.COMMIT_RATE),
    Headline(
        "Share group with 4 consumers", "share group, 1 KB, 1 partition, 4 consumers", metric.RECORD_RATE
    ),
    Headline(
        "Transactions of one record", "transactions of one record, 16 producers", metric.TRANSACTION_RATE
    ),
    Headline("Start to first ack", "start on an existing topic", metric.START),
    Headline("Memory when idle", "start on an existing topic", metric.RSS_IDLE),
)
SPARK = (
    Headline(
        "Read every value, 1 KB records", "Spark batch read 1 KB, uncompressed, every value", metric.ROWS_READ
    ),
    Headline(
        "Archive a topic to Parquet by date, 1 KB",
        "Spark topic to Parquet by date 1 KB, uncompressed",
        metric.ROWS_READ,
    ),
    Headline("Write exactly once, 1 KB, zstd", "Spark sink 1 KB, zstd, exactly once", metric.ROWS_WRITTEN),
    Headline(
        "Micro-batch of 1,000 rows, topic to topic",
        "Spark micro-batch of 1,000 rows, topic to topic, exactly once",
        metric.BATCH_TIME,
    ),
)
WEAKNESSES = (
    Headline(
        "Small requests",
        "64 producers, one 100 B message in flight each, cached",
        metric.REQUEST_RATE,
        "The broker is one Python thread; a request costs it some 25 Python calls. Batch in the client.",
    ),
    Headline(
        "Large records over many partitions",
        "produce 10 KB, 16 partitions, acks=1, cached",
        metric.BYTES_RATE,
        "Most of the broker's CPU is the kernel's work on pages, on the one thread that also does the rest.",
    ),
    Headline(
        "Reading from the disk what is not in memory, 16 partitions",
        "consume 1 KB, 16 partitions, cold",
        metric.BYTES_RATE,
        "Threads bring cold data into memory before the event loop sends it, a megabyte at a time.",
    ),
    Headline(
        "First fetch of 10,000 partitions after a restart",
        "end to end at 1,000 msg/s, cached, beside a first fetch of 10,000 partitions",
        metric.FIRST_FETCH,
        "A restart opens no logs, so it is quick. The first fetch opens each log and checks what it reads.",
    ),
    Headline(
        "CPU of Spark's micro-batches",
        "Spark micro-batch of 1,000 rows, topic to topic, exactly once",
        metric.CPU_PER_MILLION_ROWS,
        "Rows pass through Python workers, which Spark's own connector does without.",
    ),
)
BLOCK = re.compile(r"<!-- (?P<name>broker|spark|weaknesses|runs) -->\n.*?<!-- end -->", re.DOTALL)


def update(page: str, broker: Results, spark: Results) -> str:
    """The page with every block written again."""
    used: dict[str, dict[str, str]] = {}
    blocks = {
        "broker": _table(BROKER, broker, "Kafka", used),
        "spark": _table(SPARK, spark, "connector", used),
        "weaknesses": _weaknesses(Results(broker.runs | spark.runs, broker.rows + spark.rows), used),
    }
    blocks["runs"] = _runs(used)
    return BLOCK.sub(lambda found: f"<!-- {found['name']} -->\n{blocks[found['name']]}<!-- end -->", page)


def _found(
    headlines: tuple[Headline, ...], results: Results, used: dict[str, dict[str, str]]
) -> list[tuple[Headline, Row]]:
    """The rows that were measured, whose runs are noted."""
    found = []
    for headline in headlines:
        row = results.find(headline.load, headline.metric)
        if row is not None:
            found.append((headline, row))
            used[row.run] = results.runs[row.run]
    return found


def _table(
    headlines: tuple[Headline, ...], results: Results, other: str, used: dict[str, dict[str, str]]
) -> str:
    lines = [f"| | Braid | {other} | ratio | command |", "|---|---:|---:|---:|---|"]
    for headline, row in _found(headlines, results, used):
        what = f"{headline.what}, {row.metric.unit}"
        cells = (what, with_span(row, "braid"), with_span(row, "kafka"), ratio_with_span(row))
        lines.append(f"| {' | '.join(cells)} | `{headline.command}` |")
    return "\n".join(lines) + "\n"


def _weaknesses(results: Results, used: dict[str, dict[str, str]]) -> str:
    lines = []
    for place, (headline, row) in enumerate(_found(WEAKNESSES, results, used), 1):
        mine, theirs = number(row.median("braid")), number(row.median("kafka"))
        lines.append(
            f"{place}. **{headline.what}**: {mine} {row.metric.unit} against {theirs}, {ratio(row)}.\n"
            f"   {headline.why}\n   `{headline.command}`\n"
        )
    return "".join(lines)


def _runs(used: dict[str, dict[str, str]]) -> str:
    lines = ["| measured | commit | beside | CPU | disk |", "|---|---|---|---|---|"]
    for _, run in sorted(used.items()):
        beside = f"Spark {run['Spark']}" if "Spark" in run else f"Kafka {run.get('Apache Kafka', 'none')}"
        cells = (run["date"], run["commit"], beside, run["CPU"].partition(",")[0], run["disk"])
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
