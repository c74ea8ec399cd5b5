"""`braid perf`: how fast a broker takes records and delivers them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from braidmq.cli.broker import Broker
from braidmq.cli.command import command
from braidmq.cli.options import AcksChoice, AcksOption, Compression, CompressionOption
from braidmq.cli.output import AsJson, print_json

if TYPE_CHECKING:
    from braidmq.cli.histogram import Histogram
    from braidmq.cli.load import Meter
    from braidmq.client.cluster import Cluster

app = typer.Typer(help="Measure the throughput and latency of a broker.", no_args_is_help=True)

TOPIC = "braid-perf"
BAR_WIDTH = 40

Topic = Annotated[str, typer.Argument(metavar="TOPIC")]
Count = Annotated[int | None, typer.Option("--count", "-n", min=1, help="Stop after this many records.")]
Seconds = Annotated[float | None, typer.Option("--seconds", "-s", min=0.1, help="Stop after this time.")]
Size = Annotated[int, typer.Option("--size", min=1, help="Bytes of a record's value.")]


@command(
    app,
    examples=(
        "braid perf produce",
        "braid perf produce --size 1000 --batch 100 --seconds 10 --acks 1 --json",
    ),
)
def produce(
    broker: Broker,
    topic: Topic = TOPIC,
    count: Count = None,
    seconds: Seconds = None,
    size: Size = 100,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Records in a batch.")] = 1000,
    in_flight: Annotated[int, typer.Option("--in-flight", min=1, help="Requests in flight at once.")] = 8,
    partitions: Annotated[
        int, typer.Option("--partitions", "-p", min=1, help="Partitions, if the topic is new.")
    ] = 4,
    rate: Annotated[float | None, typer.Option("--rate", min=1, help="At most this many records/s.")] = None,
    acks: AcksOption = AcksChoice.ALL,
    compression: CompressionOption = Compression.NONE,
    as_json: AsJson = False,
) -> None:
    """Write records as fast as the broker takes them.

    Batches are built once and sent again and again, so the broker is measured and not this program. Latencies
    are of whole batches, from sending to acknowledgement.
    """
    from braidmq.cli import load

    plan = load.ProducePlan(size, batch, in_flight, acks.acks, compression.codec, rate)
    meter = load.Meter(count or (None if seconds else 1_000_000), seconds)
    with broker.connect() as cluster, _live(meter, "producing", as_json):
        _make_topic(cluster, topic, partitions)
        load.produce(cluster, topic, plan, meter)
    _report("produced", topic, meter, {"acknowledged": meter.latency}, as_json)


@command(app, examples=("braid perf consume", "braid perf consume orders --json"))
def consume(
    broker: Broker,
    topic: Topic = TOPIC,
    count: Count = None,
    seconds: Seconds = None,
    as_json: AsJson = False,
) -> None:
    """Read a topic from its start to its current end.

    Bytes are those of the stored batches, compressed or not. Every CRC is checked.
    """
    from braidmq.cli import load
    from braidmq.client.admin import Admin

    meter = load.Meter(count, seconds)
    with broker.connect() as cluster, _live(meter, "consuming", as_json):
        Admin(cluster).partition_indexes(topic)
        load.consume(cluster, topic, meter)
    _report("consumed", topic, meter, {}, as_json)


@command(app, examples=("braid perf latency --rate 1000 --seconds 10",))
def latency(
    broker: Broker,
    topic: Topic = TOPIC,
    count: Count = None,
    seconds: Seconds = None,
    size: Size = 100,
    rate: Annotated[float, typer.Option("--rate", min=1, help="Records per second.")] = 500.0,
    acks: AcksOption = AcksChoice.ALL,
    as_json: AsJson = False,
) -> None:
    """Send single records at a steady rate; time each until acknowledged and until consumed."""
    from braidmq.cli import load

    meter = load.Meter(count or (None if seconds else 2_000), seconds)
    with broker.connect() as cluster:
        _make_topic(cluster, topic, 1)
    run = load.LatencyRun(broker.connect, topic, rate, size, acks.acks, meter)
    with _live(meter, "sending", as_json):
        run.run()
    _report("sent", topic, meter, {"acknowledged": meter.latency, "end to end": run.end_to_end}, as_json)


def _make_topic(cluster: Cluster, topic: str, partitions: int) -> None:
    from braidmq.client.admin import Admin
    from braidmq.wire.errors import ApiError, ErrorCode

    try:
        Admin(cluster).create_topic(topic, partitions)
    except ApiError as error:
        if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
            raise


@contextmanager
def _live(meter: Meter, doing: str, as_json: bool) -> Iterator[None]:
    """A progress bar with the rate, on stderr, where that is a terminal."""
    if as_json or not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    words, rates = TextColumn("{task.description}"), TextColumn("{task.fields[rate]}")
    columns = (words, BarColumn(BAR_WIDTH), rates, TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(doing, total=1.0, rate="")

        def show(now: Meter) -> None:
            rate = f"{now.records_per_s:,.0f} records/s  {now.megabytes_per_s:,.1f} MB/s"
            progress.update(task, completed=now.fraction, rate=rate)

        meter.on_tick = show
        yield


def _report(done: str, topic: str, meter: Meter, latencies: dict[str, Histogram], as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "topic": topic,
                "records": meter.records,
                "bytes": meter.bytes,
                "seconds": round(meter.elapsed_s, 3),
                "records_per_second": round(meter.records_per_s),
                "megabytes_per_second": round(meter.megabytes_per_s, 2),
                "latency_ms": {name: histogram.summary() for name, histogram in latencies.items()},
            }
        )
        return
    print(f"{done} {meter.records:,} records, {meter.bytes / 1e6:,.1f} MB in {meter.elapsed_s:.2f} s")
    print(f"  {meter.records_per_s:,.0f} records/s, {meter.megabytes_per_s:,.1f} MB/s")
    for name, histogram in latencies.items():
        if histogram.count:
            _draw(name, histogram)


def _draw(name: str, histogram: Histogram) -> None:
    print(f"\n{name}, ms: " + "  ".join(f"{key} {value:.2f}" for key, value in histogram.summary().items()))
    bars = list(histogram.bars())
    most = max(bar.values for bar in bars)
    for bar in bars:
        drawn = "#" * -(-bar.values * BAR_WIDTH // most)
        print(f"  {_short(bar.low_us):>8} - {_short(bar.high_us):<8} {drawn:<{BAR_WIDTH}} {bar.values:,}")


def _short(value_us: int) -> str:
    if value_us < 1000:
        return f"{value_us} us"
    return f"{value_us / 1000:.3g} ms" if value_us < 1_000_000 else f"{value_us / 1e6:.3g} s"
