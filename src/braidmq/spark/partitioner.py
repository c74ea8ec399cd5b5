"""How a client chooses the partition of a record from its key."""

from __future__ import annotations

from enum import StrEnum


class Partitioner(StrEnum):
    """By librdkafka's names. A key stays in one partition only while all its producers use the same one."""

    MURMUR2 = "murmur2_random"
    """Of Kafka's Java client, kafka-python and Braid's client."""
    CRC32 = "consistent_random"
    """Of librdkafka, so of confluent-kafka and most clients that are not in Java."""
