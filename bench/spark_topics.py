"""Topics full of rows for Spark to read, filled as fast as a broker takes them."""

from __future__ import annotations

import random

from braidmq.client import Acks, Admin, Cluster
from braidmq.client.batch_sender import BatchSender
from braidmq.client.cluster import TopicPartition
from braidmq.wire.compress import Codec
from braidmq.wire.records import build_batch

PARTITIONS = 8
BATCH_BYTES = 250_000
TIMESTAMP_MS = 1_700_000_000_000
STATES = ("new", "paid", "packed", "shipped", "returned")
WARES = ("anvil", "bobbin", "candle", "dowel", "easel", "funnel", "girder", "hinge")
LINE_BYTES_MAX = 50


def order(chance: random.Random, size_bytes: int) -> bytes:
    """An order of exactly that size, as long as it has 100 bytes: a head, then as many lines as fit."""
    head = f'{{"order":{chance.randrange(10**9):09},"customer":"c-{chance.randrange(10**6):06}","status":'
    head += f'"{chance.choice(STATES)}","total":{chance.randrange(10**6) / 100:.2f},"lines":['
    lines: list[str] = []
    while len(head) + sum(map(len, lines)) + LINE_BYTES_MAX + len(lines) + 2 <= size_bytes:
        ware, count = f"{chance.choice(WARES)}-{chance.randrange(10**4):04}", chance.randrange(1, 99)
        price = chance.randrange(10**5) / 100
        lines.append(f'{{"sku":"{ware}","count":{count},"price":{price:.2f}}}')
    return (head + ",".join(lines) + "]}").ljust(size_bytes).encode()


def fill(bootstrap: str, topic: str, rows: int, value_bytes: int, codec: str) -> None:
    """So many rows over all partitions; values are orders in JSON, the same in each batch."""
    with Admin(bootstrap) as admin:
        admin.create_topic(topic, PARTITIONS, configs={"flush": "async", "retention.ms": "-1"})
    chance = random.Random(7)
    each = max(1, min(BATCH_BYTES // value_bytes, rows // PARTITIONS))
    values = [order(chance, value_bytes) for _ in range(each)]
    new = [(b"%d" % number, value, (), TIMESTAMP_MS) for number, value in enumerate(values)]
    packed = Codec[codec.upper()]
    whole = build_batch(new, packed)
    with Cluster(bootstrap) as cluster:
        sender = BatchSender(cluster, acks=Acks.LEADER)
        left, turn = rows, 0
        while left > 0:
            batch = whole if left >= each else build_batch(new[:left], packed)
            sender.send(TopicPartition(topic, turn % PARTITIONS), bytearray(batch))
            left -= each
            turn += 1
        sender.flush()
