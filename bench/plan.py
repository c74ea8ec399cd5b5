"""Every load of the comparison, by name, in the order they run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from .load_backlog import backlog
from .load_cold import cold_partitions, cold_reads
from .load_commits import commits, many_groups
from .load_connections import idle_connections
from .load_consume import consume_cold, consume_hot
from .load_latency import latency
from .load_many import many_producers
from .load_members import idle_members
from .load_partitions import many_partitions
from .load_produce import Volume, produce
from .load_rebalance import rebalance
from .load_share import share
from .load_start import start_to_first_ack
from .load_stock import stock_consume, stock_produce
from .load_transactions import bulk_transactions, small_transactions
from .members import Kind
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
    backlog: int
    partitions: int
    connections: int
    rebalances: int
    commit_seconds: float
    groups: int
    share_records: int
    transactions_seconds: float
    members: int
    members_seconds: float
    first_fetch_seconds: float


FULL = Size(
    rounds=3,
    warmup_seconds=25,
    volume=Volume(2.5, 1_500_000_000),
    consume_bytes=1_500_000_000,
    latency_seconds=8,
    many_seconds=4,
    stock_bytes=300_000_000,
    backlog=100_000_000,
    partitions=10_000,
    connections=10_000,
    rebalances=7,
    commit_seconds=3,
    groups=1_000,
    share_records=200_000,
    transactions_seconds=3,
    members=10_000,
    members_seconds=10,
    first_fetch_seconds=20,
)
QUICK = Size(
    rounds=1,
    warmup_seconds=8,
    volume=Volume(1, 500_000_000),
    consume_bytes=300_000_000,
    latency_seconds=3,
    many_seconds=1.5,
    stock_bytes=100_000_000,
    backlog=5_000_000,
    partitions=1_000,
    connections=1_000,
    rebalances=3,
    commit_seconds=1.5,
    groups=200,
    share_records=100_000,
    transactions_seconds=1.5,
    members=1_000,
    members_seconds=6,
    first_fetch_seconds=8,
)

VALUE_BYTES = {"100 B": 100, "1 KB": 1_000, "10 KB": 10_000}
PARTITIONS = {"1 partition": 1, "16 partitions": 16}
ACKS = {"acks=1": 1, "acks=all": -1}
RATES = (1_000, 20_000)
SHARE_CONSUMERS = {"1 consumer": 1, "4 consumers": 4, "16 consumers": 16}


def loads(size: Size) -> list[Load]:
    return [
        *_start(),
        *_produce(size),
        *_small(size),
        *_backlog(size),
        *_latency(size),
        *_consume(size),
        *_beside(size),
        *_stock(size),
        *_groups(size),
        *_share(size),
        *_transactions(size),
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


def _backlog(size: Size) -> list[Load]:
    return [
        Load(
            f"produce 100 B, 16 partitions, acks=1, cached, behind {size.backlog:,} unread messages",
            "backlog",
            Stage.WARM,
            30 + size.backlog / 1_500_000,
            partial(backlog, messages=size.backlog, volume=size.volume),
        )
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


def _beside(size: Size) -> list[Load]:
    return [
        Load(
            "end to end at 1,000 msg/s, cached, beside cold reads of 16 partitions",
            "beside",
            Stage.WARM,
            size.consume_bytes / 150e6 + 2 * size.latency_seconds + 4,
            partial(cold_reads, total_bytes=size.consume_bytes, seconds=size.latency_seconds),
        )
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


def _groups(size: Size) -> list[Load]:
    rebalances = [
        Load(
            f"11th consumer joins 10, {kind}",
            "groups",
            Stage.WARM,
            12 if kind is Kind.CONSUMER else 4 + size.rebalances / 2,
            # Members that look in every five seconds, as the server wants it, would make it a long load.
            partial(rebalance, kind=kind, times=1 if kind is Kind.CONSUMER else size.rebalances),
        )
        for kind in Kind
    ]
    return [
        *rebalances,
        Load(
            "commits of 64 consumers in 8 groups",
            "groups",
            Stage.WARM,
            size.commit_seconds + 5,
            partial(commits, seconds=size.commit_seconds),
        ),
    ]


def _share(size: Size) -> list[Load]:
    return [
        Load(
            f"share group, 1 KB, 1 partition, {name}",
            "share groups",
            Stage.WARM,
            1 + size.share_records / 60_000,
            partial(share, consumers=consumers, records=size.share_records),
        )
        for name, consumers in SHARE_CONSUMERS.items()
    ]


def _transactions(size: Size) -> list[Load]:
    bulk = [
        Load(
            f"transactions {bytes_name}, commit every 100 ms",
            "transactions",
            Stage.WARM,
            size.transactions_seconds + 2,
            partial(
                bulk_transactions,
                value_bytes=VALUE_BYTES[bytes_name],
                seconds=size.transactions_seconds,
                bytes_max=size.volume.bytes_max,
            ),
        )
        for bytes_name in ("100 B", "1 KB")
    ]
    small = Load(
        "transactions of one record, 16 producers",
        "transactions",
        Stage.WARM,
        size.transactions_seconds + 1,
        partial(small_transactions, seconds=size.transactions_seconds),
    )
    return [*bulk, small]


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
            f"end to end at 1,000 msg/s, cached, beside a first fetch of {size.partitions:,} partitions",
            "wide",
            Stage.STOPPED,
            30 + size.partitions / 200 + size.first_fetch_seconds,
            partial(cold_partitions, partitions=size.partitions, seconds=size.first_fetch_seconds),
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
        Load(
            f"{size.groups:,} groups",
            "wide",
            Stage.STOPPED,
            25 + 2 * size.commit_seconds,
            partial(many_groups, groups=size.groups, seconds=size.commit_seconds),
            rounds_max=1,
        ),
        Load(
            f"{size.members:,} idle members",
            "wide",
            Stage.STOPPED,
            25 + size.members / 300,
            partial(idle_members, members=size.members, seconds=size.members_seconds),
            rounds_max=1,
        ),
    ]
