"""How a key decides about the partition of its record, which is up to each client."""

from __future__ import annotations

from enum import StrEnum


class Partitioner(StrEnum):
    """By librdkafka's names. A key has one partition only while all who send its records use the same."""

    MURMUR2 = "murmur2_random"
    """Of Kafka's own client, of kafka-python and of ours."""
    CRC32 = "consistent_random"
    """Of librdkafka, and so of confluent-kafka and of most clients that are not in Java."""
