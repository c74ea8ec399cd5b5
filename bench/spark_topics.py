"""Topics full of rows for Spark to read, filled as fast as a broker takes them."""

from __future__ import annotations

import random
import re

import numpy as np

from braidmq.client import Acks, Admin, Cluster
from braidmq.client.batch_sender import BatchSender
from braidmq.client.cluster import TopicPartition
from braidmq.wire.compress import Codec
from braidmq.wire.records import BatchBuilder, seal_batch

PARTITIONS = 8
TIMESTAMP_MS = 1_700_000_000_000
STATES = ("new", "paid", "packed", "shipped", "returned")
WARES = ("anvil", "bobbin", "candle", "dowel", "easel", "funnel", "girder", "hinge")
LINE_BYTES_MAX = 50
APART_BYTES = 4_000_000
"""How far apart in a partition orders are that differ in their number only: beyond what zstd looks back."""
ORDER = b'{"order":'
DIGITS = 9
PLACES = 10 ** np.arange(DIGITS - 1, -1, -1)


def order(chance: random.Random, size_bytes: int) -> bytes:
    """An order of exactly that size, as long as it has 100 bytes: a head, then as many lines as fit."""
    head = f'{ORDER.decode()}{0:0{DIGITS}},"customer":"c-{chance.randrange(10**6):06}","status":'
    head += f'"{chance.choice(STATES)}","total":{chance.randrange(10**6) / 100:.2f},"lines":['
    lines: list[str] = []
    while len(head) + sum(map(len, lines)) + LINE_BYTES_MAX + len(lines) + 2 <= size_bytes:
        ware, count = f"{chance.choice(WARES)}-{chance.randrange(10**4):04}", chance.randrange(1, 99)
        price = chance.randrange(10**5) / 100
        lines.append(f'{{"sku":"{ware}","count":{count},"price":{price:.2f}}}')
    return (head + ",".join(lines) + "]}").ljust(size_bytes).encode()


class Orders:
    """The orders of one batch, which can be had again under other numbers, so that no two values are alike.

    A value that comes again is looked up in a dictionary by whoever writes Parquet, and hardly stored.
    """

    def __init__(self, chance: random.Random, count: int, value_bytes: int) -> None:
        builder = BatchBuilder()
        builder.extend((b"%d" % at, order(chance, value_bytes), (), TIMESTAMP_MS) for at in range(count))
        self._plain = builder.finish()
        self._count = count
        self._digits_at = np.array([found.end() for found in re.finditer(ORDER, self._plain)])[:, np.newaxis]

    def batch(self, first: int, codec: Codec) -> bytearray:
        """These orders, numbered from `first` on."""
        numbers = np.arange(first, first + self._count)[:, np.newaxis]
        plain = bytearray(self._plain)
        view = np.frombuffer(plain, np.uint8)
        view[self._digits_at + np.arange(DIGITS)] = numbers // PLACES % 10 + ord("0")
        return seal_batch(plain, self._count, TIMESTAMP_MS, TIMESTAMP_MS, codec=codec)


def apart(chance: random.Random, count: int, value_bytes: int) -> list[Orders]:
    """Batches to be written one after the other, again and again."""
    return [Orders(chance, count, value_bytes) for _ in range(APART_BYTES // (count * value_bytes))]


def fill(bootstrap: str, topic: str, rows: int, value_bytes: int, codec: str, batch_bytes: int) -> None:
    """So many rows over all partitions; values are orders in JSON."""
    with Admin(bootstrap) as admin:
        admin.create_topic(topic, PARTITIONS, configs={"flush": "async", "retention.ms": "-1"})
    chance = random.Random(7)
    each = max(1, min(batch_bytes // value_bytes, rows // PARTITIONS))
    kinds = apart(chance, each, value_bytes)
    with Cluster(bootstrap) as cluster:
        sender = BatchSender(cluster, acks=Acks.LEADER)
        for turn, first in enumerate(range(0, rows, each)):
            left = rows - first
            orders = (
                kinds[turn // PARTITIONS % len(kinds)] if left >= each else Orders(chance, left, value_bytes)
            )
            at = TopicPartition(topic, turn % PARTITIONS)
            sender.send(at, orders.batch(first, Codec[codec.upper()]))
        sender.flush()
