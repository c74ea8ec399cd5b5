"""Batch reads of topics through `spark.read.format("braid")`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Fill = Callable[..., None]
NewTopic = Callable[..., str]
TopicFrame = Callable[..., "DataFrame"]


def test_a_topic_is_a_table(new_topic: NewTopic, fill: Fill, topic_frame: TopicFrame) -> None:
    """S1: all records of all partitions, with the columns of Spark's Kafka source."""
    topic = new_topic(partitions=2)
    fill(topic, [b"zero", b"one"], partition=0)
    fill(topic, [b"two"], partition=1)

    frame = topic_frame(topic)

    assert frame.columns == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    found = sorted((row.partition, row.offset, bytes(row.value), row.topic) for row in frame.collect())
    assert found == [(0, 0, b"zero", topic), (0, 1, b"one", topic), (1, 0, b"two", topic)]
