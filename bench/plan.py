"""Every load of the comparison, by name, in the order they run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from .load_connections import idle_connections
from .load_consume import consume_cold, consume_hot
from .load_latency import latency
from .load_many import many_producers
from .load_partitions import many_partitions
from .load_produce import Volume, produce
from .load_start import start_to_first_ack
from .load_stock import stock_consume, stock_produce
from .metric import Figures
from .server import Durability, Server


class Stage(StrEnum):
    """What a load expects of the server it is given."""

    WARM = "warm"
    """Running and warmed up, shared with the other loads of the round."""
    STOPPED = "stopped"
    """Stopped, in a directory of the load's own."""


@dataclass(frozen=True, slots=True)
class Load:
    name: str
    group: str
    stage: Stage
    seconds: float
    """About how long one run takes, for the time left shown in the progress line."""
    run: Callable[[Server], Figures]
    rounds_max: int = 1_000


@dataclass(frozen=True, slots=True)
class Size:
    """How much of everything: the whole comparison, or a quick look."""

    rounds: int
    warmup_seconds: float
    volume: Volume
    consume_bytes: int
    latency_seconds: float
    many_seconds: float
    stock_bytes: int
    partitions: int
    connections: int


FULL = Size(
    rounds=3,
    warmup_seconds=25,
    volume=Volume(2.5, 1_500_000_000),
    consume_bytes=1_500_000_000,
    latency_seconds=8,
    many_seconds=4,
    stock_bytes=300_000_000,
    partitions=10_000,
    connections=10_000,
)
QUICK = Size(
    rounds=1,
    warmup_seconds=8,
    volume=Volume(1, 500_000_000),
    consume_bytes=300_000_000,
    latency_seconds=3,
    many_seconds=1.5,
    stock_bytes=100_000_000,
    partitions=1_000,
    connections=1_000,
)

VALUE_BYTES = {"100 B": 100, "1 KB": 1_000, "10 KB": 10_000}
PARTITIONS = {"1 partition": 1, "16 partitions": 16}
ACKS = {"acks=1": 1, "acks=all": -1}
RATES = (1_000, 20_000)


def loads(size: Size) -> list[Load]:
    return [
        *_start(),
        *_produce(size),
        *_small(size),
        *_latency(size),
        *_consume(size),
        *_stock(size),
        *_wide(size),
    ]


def _start() -> list[Load]:
    return [Load("start on an existing topic", "start", Stage.STOPPED, 20, start_to_first_ack)]


def _produce(size: Size) -> list[Load]:
    return [
        Load(
            f"produce {bytes_name}, {partitions_name}, {acks_name}, {durability}",
            "produce",
            Stage.WARM,
            size.volume.seconds + 1.5,
            partial(
                produce,
                value_bytes=value_bytes,
                partitions=partitions,
                acks=acks,
                durability=durability,
                volume=size.volume,
            ),
        )
        for durability in Durability
        for bytes_name, value_bytes in VALUE_BYTES.items()
        for partitions_name, partitions in PARTITIONS.items()
        for acks_name, acks in ACKS.items()
    ]


def _small(size: Size) -> list[Load]:
    return [
        Load(
            f"64 producers, one 100 B message in flight each, {durability}",
            "small requests",
            Stage.WARM,
            size.many_seconds + 1,
            partial(many_producers, seconds=size.many_seconds, durability=durability),
        )
        for durability in Durability
    ]


def _latency(size: Size) -> list[Load]:
    return [
        Load(
            f"end to end at {rate:,} msg/s, {durability}",
            "latency",
            Stage.WARM,
            size.latency_seconds + 2,
            partial(latency, rate=rate, seconds=size.latency_seconds, durability=durability),
        )
        for durability in Durability
        for rate in RATES
    ]


def _consume(size: Size) -> list[Load]:
    seconds = size.consume_bytes / 150e6
    return [
        Load(
            f"consume 1 KB, {partitions_name}, {kind}",
            "consume",
            Stage.WARM,
            seconds,
            partial(run, value_bytes=1_000, partitions=partitions, total_bytes=size.consume_bytes),
        )
        for kind, run in (("hot", consume_hot), ("cold", consume_cold))
        for partitions_name, partitions in PARTITIONS.items()
    ]


def _stock(size: Size) -> list[Load]:
    return [
        Load(
            f"librdkafka {verb} {bytes_name}, 16 partitions",
            "stock client",
            Stage.WARM,
            size.stock_bytes / 60e6,
            partial(
                run,
                value_bytes=VALUE_BYTES[bytes_name],
                partitions=16,
                messages=size.stock_bytes // VALUE_BYTES[bytes_name],
            ),
        )
        for verb, run in (("produce", stock_produce), ("consume", stock_consume))
        for bytes_name in ("100 B", "1 KB")
    ]


def _wide(size: Size) -> list[Load]:
    return [
        Load(
            f"{size.partitions:,} partitions",
            "wide",
            Stage.STOPPED,
            size.partitions / 100,
            partial(many_partitions, partitions=size.partitions, volume=size.volume),
            rounds_max=1,
        ),
        Load(
            f"{size.connections:,} idle connections",
            "wide",
            Stage.STOPPED,
            15 + size.latency_seconds,
            partial(idle_connections, connections=size.connections, seconds=size.latency_seconds),
            rounds_max=1,
        ),
    ]
