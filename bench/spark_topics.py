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


def fill(bootstrap: str, topic: str, rows: int, value_bytes: int, codec: str) -> None:
    """So many rows over all partitions; values are random hexadecimal digits, the same in each batch."""
    with Admin(bootstrap) as admin:
        admin.create_topic(topic, PARTITIONS, configs={"flush": "async", "retention.ms": "-1"})
    digits = random.Random(7)
    each = max(1, min(BATCH_BYTES // value_bytes, rows // PARTITIONS))
    values = [digits.randbytes(value_bytes // 2).hex().encode() for _ in range(each)]
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
