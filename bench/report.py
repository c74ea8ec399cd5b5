"""The table of ratios: on the terminal, and with explanations in RESULTS.md.

Explanations are kept by hand in NOTES.md, where a heading is a pattern for the rows it explains
(`## consume * cold: throughput`); they are merged in beside the misses, so running it again loses none.
What is below the heading `## remarks` goes to the end whatever was hit.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from rich.console import Console
from rich.table import Table

from .results import Results, Row

REMARKS = "remarks"

HEAD = """# Braid and Apache Kafka on the same machine

Written by `scripts/bench`; explanations come from `NOTES.md`, which is kept by hand.
All figures of all rounds: `results.json`.
"""

METHOD = """## How it was measured

- One server at a time, in turns over the rounds; a cell is the median of its rounds. Each server is warmed up
  first (a JVM needs it), and with the verbs of groups and transactions again before these are measured.
  Server and client share the machine's cores.
- *cached*: an ack means the page cache (Braid `flush=async`, Kafka as it comes). *synced*: an ack of acks=all
  means the disk (Braid `flush=sync`, Kafka `flush.messages=1`). Everything else is each server's default.
  Kafka runs as a single KRaft node with the heap and collector flags of its own start script.
- Both get the same bytes from the same client. For all rows but those that say librdkafka it is the client in
  `bench/`: it sends record batches built beforehand, so that one Python process can saturate either server.
  Produce: 4 connections, 5 requests in flight on each, batches of about 100 KB. Consume: one
  connection, all partitions in one Fetch, 1 MB of each. The librdkafka rows use confluent-kafka as it comes.
- Latency is end to end and open-loop: from when a message was due until a consumer has it.
- Cold: the segments were synced and dropped from the page cache before the read. CPU is the server's user and
  system time. RSS idle is taken 3 s after the first ack; RSS peak is the highest (with idle
  connections: the RSS while they are held). MB are 10^6 bytes of values.
- Start: from the start of the process until a record sent to an existing topic is acknowledged.
  Creation of the many partitions: until each of them has taken a record. There Kafka has
  `segment.index.bytes=65536`; with its default and a large read-ahead of the disk it falls to 1 MB/s.
- Beside cold reads: the same end-to-end latency while a second client, a process of its own, reads 16
  partitions that are dropped from the page cache again and again; p99 without it is taken just before.
  Beside a first fetch: after a restart a second client asks for every partition, each with one record, in one
  Fetch. Stop: from SIGTERM until the process has ended, with all of those partitions open.
- Backlog: 100 B messages, synced and dropped from the page cache before the producers are measured again.
- Groups: members are thin clients on one thread (`bench/crowd.py`, `bench/members.py`), the same for both. A
  rebalance is timed from the 11th consumer's first request until all 44 partitions are read again and it has
  its share; positions are committed and fetched as stock clients do. Classic members look in every 10 ms
  instead of the usual 3 s, which would be most of the time measured; members of group.protocol=consumer as
  often as the server tells them. Held back: records written meanwhile to partitions while nobody read them;
  lost meanwhile: those per second of the rebalance, of 4,400.
- An offset commit, a change of a group, and an acknowledgement in a share group are on disk when Braid
  answers, in the page cache when Kafka does: each is as it comes.
- Commits: 64 consumers in 8 groups, one request for 4 partitions in flight each. 1,000 groups: one member
  each, heartbeats and commits in turn, one request in flight each; RSS while they do.
- Share groups: up to 500 records a request, accepted with the next one; a record counts when accepted.
- Transactions as librdkafka makes them (partitions are added first). Bulk: one producer, 4 partitions, 5
  requests of 100 KB in flight, a reader at read_committed; rates until the last commit, and until
  all was read.
- Idle members: 100 in a group (group.protocol=consumer), a connection each; CPU and RSS after they have
  settled. A member that is refused or forgotten would fail the load.
- Spark (`scripts/bench-spark`): the same Spark, the same Braid broker and topics (flush=async, 8
  partitions), through Braid (the column Braid) and through Spark's own Kafka connector (column Kafka), each
  in a process of its own; 20 s of runs that do not count come first, so that the JVM has compiled what is
  measured, or 4 s where it has met the like with values as large. Batches are read by `braidmq.spark.read`,
  which leaves out what a query does not use: *count* is `df.count()`, *every value* adds up the lengths of
  all values, and *every value and all other columns* does so by `format("braid")`, which leaves out
  nothing. The connector always reads everything. Reads go over the network unless they say localLog: there
  the other column is Braid's network path, and the two take turns, seven runs of each, in one process and
  over more rows. A source that reads nothing (`bench/spark_floor.py`) hands a few batches to Spark over and
  over: the most that `read` can reach. One that only checks does so too, after it has checked the CRC of
  every batch on the local disk: the most that a local log can reach. Values read are orders in JSON, no two
  alike, in record batches of 250 KB, which suits the connector, or where it says so 16 KB, the default of
  Kafka's producer. *To Parquet* is `braidmq.spark.export` (synced) against the connector and Spark's own
  writer, the same four columns in snappy; *to Parquet by Spark* has Spark's writer on both sides. Parquet
  by date is `braid lake archive` (all columns, synced, committed) against the connector and Spark's writer,
  both zstd. Braid's sink is measured at least once, as the connector writes, and exactly once. CPU and
  memory are those of driver, JVM and Python workers together.
- Topics are new for each measurement, and each partition gets its first batches before the clock runs.
"""


def number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def verdict(row: Row) -> str:
    return {True: "hit", False: "miss", None: ""}[row.hit]


def ratio(row: Row) -> str:
    return "-" if row.ratio is None else f"{row.ratio:.2f}x" if row.ratio >= 0.1 else f"{row.ratio:.3f}x"


def print_table(results: Results, console: Console) -> None:
    for group, rows in _groups(results):
        table = Table(title=group, title_justify="left")
        for heading in ("load", "metric"):
            table.add_column(heading)
        for heading in ("Braid", "Kafka", "ratio", "aim", ""):
            table.add_column(heading, justify="right")
        for row in rows:
            colour = {True: "green", False: "red", None: ""}[row.hit]
            table.add_row(
                row.load,
                f"{row.metric.name}, {row.metric.unit}",
                number(row.median("braid")),
                number(row.median("kafka")),
                ratio(row),
                row.metric.aim(),
                verdict(row),
                style=colour,
            )
        console.print(table)
    console.print(summary(results))


def summary(results: Results) -> str:
    judged = [row for row in results.rows if row.hit is not None]
    hits = sum(1 for row in judged if row.hit)
    return f"{hits} of {len(judged)} targets hit"


def write(results: Results, directory: Path) -> None:
    """RESULTS.md beside NOTES.md in the directory."""
    notes = read_notes(directory / "NOTES.md")
    parts = [HEAD, "## Machine\n", _machine(results), METHOD, "## Ratios\n", f"{summary(results)}.\n"]
    parts.append("![Braid's figures as ratios of Kafka's](ratios.svg)\n")
    for group, rows in _groups(results):
        parts += [f"### {group[0].upper()}{group[1:]}\n", _table(rows)]
    parts += ["## Misses\n", *_misses(results, notes)]
    if remarks := notes.get(REMARKS):
        parts += ["## Remarks\n", f"{remarks}\n"]
    (directory / "RESULTS.md").write_text("\n".join(parts), encoding="utf-8")


def _machine(results: Results) -> str:
    return "".join(f"- {name}: {value}\n" for name, value in results.machine.items())


def _table(rows: list[Row]) -> str:
    lines = ["| load | metric | Braid | Kafka | ratio | aim | |", "|---|---|---:|---:|---:|---:|---|"]
    for row in rows:
        cells = (
            row.load,
            f"{row.metric.name}, {row.metric.unit}",
            number(row.median("braid")),
            number(row.median("kafka")),
            ratio(row),
            row.metric.aim(),
            verdict(row).replace("miss", "**miss**"),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _misses(results: Results, notes: dict[str, str]) -> Iterator[str]:
    missed = [row for row in results.rows if row.hit is False]
    if not missed:
        yield "None.\n"
    for pattern, note in notes.items():
        explained = [row for row in missed if fnmatch.fnmatchcase(row.name, pattern)]
        if explained:
            yield "".join(f"- {row.name} {ratio(row)} (aim {row.metric.aim()})\n" for row in explained)
            yield f"{note}\n"
            missed = [row for row in missed if row not in explained]
    if missed:
        yield "Not explained yet:\n"
        yield "".join(f"- {row.name} {ratio(row)} (aim {row.metric.aim()})\n" for row in missed)


def read_notes(path: Path) -> dict[str, str]:
    """Pattern → explanation, from the second-level headings of the file."""
    notes: dict[str, str] = {}
    if not path.exists():
        return notes
    for section in ("\n" + path.read_text(encoding="utf-8")).split("\n## ")[1:]:
        pattern, _, text = section.partition("\n")
        notes[pattern.strip()] = text.strip()
    return notes


def _groups(results: Results) -> Iterator[tuple[str, list[Row]]]:
    order = {row.group: None for row in results.rows}
    ranked = sorted(results.rows, key=lambda row: list(order).index(row.group))
    for group, rows in groupby(ranked, key=lambda row: row.group):
        yield group, list(rows)
