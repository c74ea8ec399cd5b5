"""What runs in a Python worker: a split in, Arrow record batches out."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pyarrow as pa

from braidmq.client.cluster import TopicPartition
from braidmq.client.consumer import Consumer
from braidmq.spark import positions
from braidmq.spark.columns import arrow_schema
from braidmq.spark.query import Query
from braidmq.spark.splits import Split


def read_split(query: Query, columns: tuple[str, ...], split: Split) -> Iterator[pa.RecordBatch]:
    """The records of a split, some thousands at a time."""
    freeze_garbage()
    schema = arrow_schema(columns)
    at = TopicPartition(split.topic, split.partition)
    with positions.connect(query) as cluster, Consumer(cluster, partition_max_bytes=4_194_304) as consumer:
        consumer.seek(split.topic, split.partition, split.start)
        while consumer.position(*at) < split.end:
            messages = [message for message in consumer.poll() if message.offset < split.end]
            rows = [
                {
                    "key": message.key,
                    "value": message.value,
                    "topic": message.topic,
                    "partition": message.partition,
                    "offset": message.offset,
                    "timestamp": message.timestamp_ms * 1000,
                    "timestampType": 0,
                    "headers": [{"key": name, "value": value} for name, value in message.headers] or None,
                    "tag": None,
                    "messageId": None,
                }
                for message in messages
            ]
            if rows:
                yield pa.RecordBatch.from_pylist(rows, schema=schema)


def freeze_garbage() -> None:
    """Spark's worker collects garbage after every task, over all its imports: 60 ms that freezing saves."""
    if gc.get_freeze_count() == 0:
        gc.collect()
        gc.freeze()
