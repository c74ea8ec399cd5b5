"""The part of scripts/demo that needs Spark: from orders to counts in a topic, in Parquet and in a plot.

Most of its time is Spark starting, not orders. So it starts Spark as quickly as it can: see QUICK_START and
`spare_compiling`.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from braidmq.client import Admin
from braidmq.spark.pipelines import Pipeline, load
from braidmq.spark.pipelines.loader import load_module
from braidmq.spark.pipelines.runner import run

HERE = Path(__file__).parent
PARTITIONS = 2
STATE_PARTITIONS = 1
FLUSH_S = 60.0
POLL_S = 30.0
MINUTES_SHOWN = 10
BAR_COLUMNS = 30
QUICK_START = {
    # The JVM runs for seconds: its second compiler and a concurrent collector take more than they give.
    "spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    # So does Spark's own compiler, which turns each stage of a query into Java.
    "spark.sql.codegen.wholeStage": "false",
    # Hadoop starts a process (chmod) for each file of a checkpoint; this leaves out the checksum files.
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
}

console = Console(width=100)
Share = Callable[[float], None]
"""Takes how much of a step is done, from 0 to 1."""


def show(bootstrap: str, count: int, spark: Any = None) -> Path:
    """Sends orders, runs the pipeline that counts them, shows the results; the folder with the files."""
    started_s = time.perf_counter()
    folder = Path(tempfile.mkdtemp(prefix="braid-demo-"))
    os.environ |= {"BRAID_BOOTSTRAP": bootstrap, "PIPELINE_DATA": str(folder)}
    with Admin(bootstrap) as admin:
        admin.create_topic("orders", PARTITIONS)
    pipeline = replace(load(HERE / "pipelines" / "orders.yaml"), parallelism=STATE_PARTITIONS)
    console.print("\nA pipeline on local Spark counts orders per minute and shop. This file is all of it:")
    console.print((HERE / "pipelines" / "orders.yaml").read_text(), style="dim", highlight=False)
    send(bootstrap, count)
    console.print(f"  sent {count:,} orders; some are late, some sent twice, some unreadable")
    with started(pipeline, folder, spark) as running:
        count_orders(pipeline, running)
    counted = show_topic(bootstrap)
    if counted != count:
        raise SystemExit(f"{count:,} different orders were sent, {counted:,} counted")
    console.print(
        f"{counted:,} orders counted: late ones included, duplicates dropped, unreadable ones set aside."
    )
    show_lake(folder)
    console.print(f"The Spark part took {time.perf_counter() - started_s:.0f} s.")
    return folder


@contextmanager
def step(doing: str, done: str, total: float | None = 1.0) -> Iterator[Share]:
    """A bar with the time on a terminal, a line before it elsewhere; then a line with the time it took.

    Without a total the bar only moves: nobody knows how long it will be.
    """
    started_s = time.perf_counter()
    if console.is_terminal:
        words = TextColumn("  {task.description}")
        bars = Progress(words, BarColumn(BAR_COLUMNS), TimeElapsedColumn(), console=console, transient=True)
        with bars:
            task = bars.add_task(doing, total=total)
            yield lambda share: bars.update(task, completed=share)
    else:
        console.print(f"  {doing} …")
        yield lambda _: None
    console.print(f"  {done} in {time.perf_counter() - started_s:.1f} s", highlight=False)


@contextmanager
def started(pipeline: Pipeline, folder: Path, spark: Any) -> Iterator[Any]:
    """The session that was given, or one of our own for all that follows."""
    if spark is not None:
        yield spark
        return
    from braidmq.spark import session

    spare_compiling(folder / "spark")
    with step("Spark is starting", "Spark started", total=None):
        made = session(f"braid {pipeline.name}", "local[2]", ui=False, log_level="OFF", config=QUICK_START)
    try:
        yield made
    finally:
        made.stop()


def spare_compiling(home: Path) -> None:
    """A home for Spark without pyspark.zip, so that Python processes use the installed pyspark.

    Python does not keep what it compiles out of a zip file: a dozen processes would compile pyspark again,
    half a second of CPU each.
    """
    import pyspark

    if "SPARK_HOME" in os.environ:
        return
    home.mkdir()
    for name in ("bin", "sbin", "jars"):
        (home / name).symlink_to(Path(pyspark.__file__).parent / name)
    os.environ["SPARK_HOME"] = str(home)


def count_orders(pipeline: Pipeline, spark: Any) -> None:
    """Each sink is a query: it reads what is there in one batch, and writes complete windows in the next."""
    with step("reading, counting and writing", "read, counted and wrote all of them") as at:

        def watch(status: Any) -> None:
            parts = [2 if query.state == "done" else query.batch is not None for query in status.queries]
            at(sum(parts) / max(1, 2 * len(parts)))

        def tell(note: str) -> None:
            console.print(f"  {note}", highlight=False)

        run(pipeline, once=True, spark=spark, watch=watch, tell=tell)


def send(bootstrap: str, count: int) -> None:
    """With a stock client, as the tills of the shops would."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "linger.ms": 20, "queue.buffering.max.messages": 1_000_000}
    )
    *orders, last = load_module(HERE / "pipelines" / "send.py").records("orders", count)
    for topic, key, value in orders:
        producer.produce(topic, value, key)
        producer.poll(0)
    unsent = producer.flush(FLUSH_S)
    # It says that an hour has passed, so nothing may come after it, from whichever partition.
    producer.produce(last[0], last[2], last[1])
    if unsent or producer.flush(FLUSH_S):
        raise SystemExit("the orders could not be sent")


def show_topic(bootstrap: str) -> int:
    """The first minutes out of the topic, by a stock client; how many orders all minutes hold."""
    config = {"bootstrap.servers": bootstrap, "group.id": "demo", "isolation.level": "read_committed"}
    consumer = Consumer({**config, "enable.partition.eof": True})
    partitions = list(
        consumer.list_topics("orders.per-minute", timeout=POLL_S).topics["orders.per-minute"].partitions
    )
    consumer.assign([TopicPartition("orders.per-minute", index, 0) for index in partitions])
    minutes: dict[str, Counter[str]] = {}
    ended = 0
    while ended < len(partitions) and (message := consumer.poll(POLL_S)) is not None:
        if message.error():
            ended += 1
            continue
        row = json.loads(message.value() or b"{}")
        minutes.setdefault(row["window_start"][11:16], Counter())[row["shop"]] += row["orders"]
    consumer.close()
    shops = sorted({shop for counts in minutes.values() for shop in counts})
    table = Table("minute", *shops, title="topic orders.per-minute", title_justify="left")
    for minute, counts in sorted(minutes.items())[:MINUTES_SHOWN]:
        table.add_row(minute, *(f"{counts[shop]:,}" for shop in shops))
    console.print(table)
    return sum(counts.total() for counts in minutes.values())


def show_lake(folder: Path) -> None:
    """The same counts out of the Parquet files, by pyarrow, and drawn."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    lake = folder / "lake" / "orders"
    files = sorted(lake.glob("date=*/*.parquet"))
    rows = pa.concat_tables([pq.read_table(file) for file in files]).sort_by("window_start").to_pylist()
    console.print(f"The same {len(rows):,} counts as Parquet files: {files[0].parent}")
    plot(rows, folder / "orders.png")
    console.print(f"And as a plot: {folder / 'orders.png'}")


def plot(rows: list[dict[str, Any]], target: Path) -> None:
    """Revenue per minute, one line for each shop."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4))
    for shop in sorted({row["shop"] for row in rows}):
        part = [row for row in rows if row["shop"] == shop]
        times, revenue = [row["window_start"] for row in part], [float(row["revenue"]) for row in part]
        axes.plot(times, revenue, marker="o", markersize=3, label=shop)
    axes.set(title="Revenue per minute", xlabel="time of order (UTC)", ylabel="revenue")
    axes.legend()
    figure.autofmt_xdate()
    figure.tight_layout()
    figure.savefig(target, dpi=120)
    pyplot.close(figure)
