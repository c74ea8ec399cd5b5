"""The part of scripts/demo that needs Spark: from orders to counts in a topic, in Parquet and in a plot."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from rich.console import Console
from rich.table import Table

from braidmq.cli.pipeline_view import view
from braidmq.client import Admin
from braidmq.spark.lake import Lake
from braidmq.spark.pipelines import Pipeline, load
from braidmq.spark.pipelines.loader import load_module
from braidmq.spark.pipelines.runner import run

HERE = Path(__file__).parent
PARTITIONS = 4
FLUSH_S = 60.0
POLL_S = 30.0
MINUTES_SHOWN = 10

console = Console(width=100)


def show(bootstrap: str, count: int, spark: Any = None) -> Path:
    """Sends orders, runs the pipeline that counts them, shows what came out; the folder it is in."""
    folder = Path(tempfile.mkdtemp(prefix="braid-demo-"))
    os.environ |= {"BRAID_BOOTSTRAP": bootstrap, "PIPELINE_DATA": str(folder)}
    with Admin(bootstrap) as admin:
        admin.create_topic("orders", PARTITIONS)
    pipeline = load(HERE / "pipelines" / "orders.yaml")
    console.print(f"\n{count:,} orders, and a pipeline on local Spark that counts them per minute and shop:")
    console.print((HERE / "pipelines" / "orders.yaml").read_text(), style="dim", highlight=False)
    send(bootstrap, count)
    count_orders(pipeline, spark)
    counted = show_topic(bootstrap)
    if counted != count:
        raise SystemExit(f"{count:,} different orders were sent, {counted:,} counted")
    console.print(f"  {counted:,} orders counted: late ones in, duplicates out, the unreadable set aside.")
    show_lake(folder, pipeline, spark)
    return folder


def send(bootstrap: str, count: int) -> None:
    """With a stock client, as a till would."""
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


def count_orders(pipeline: Pipeline, spark: Any) -> None:
    with view(pipeline, sys.stdout.isatty()) as shown:
        run(pipeline, once=True, spark=spark, watch=shown.update, tell=shown.tell)


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


def show_lake(folder: Path, pipeline: Pipeline, spark: Any) -> None:
    """The same counts out of the Parquet files, and drawn."""
    from braidmq.spark import session

    used = spark or session(f"braid {pipeline.name}", ui=False, log_level="OFF")
    lake = Lake(folder / "lake" / "orders")
    rows = lake.read(used).orderBy("window_start").toPandas()
    files = len(lake.snapshot().files)
    console.print(f"The same {len(rows):,} rows as Parquet: {files} files in {lake.path}/date=2026-11-15")
    plot(rows, folder / "orders.png")
    console.print(f"Drawn: {folder / 'orders.png'}")
    if spark is None:
        used.stop()


def plot(rows: Any, target: Path) -> None:
    """Revenue per minute, one line for each shop."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4))
    for shop, part in rows.groupby("shop"):
        axes.plot(part["window_start"], part["revenue"].astype(float), marker="o", markersize=3, label=shop)
    axes.set(title="Revenue per minute", xlabel="time of order (UTC)", ylabel="revenue")
    axes.legend()
    figure.autofmt_xdate()
    figure.tight_layout()
    figure.savefig(target, dpi=120)
    pyplot.close(figure)
