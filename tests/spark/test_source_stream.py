"""Streams of topics through `spark.readStream.format("braid")`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Fill = Callable[..., None]
NewTopic = Callable[..., str]


def test_a_stream_goes_on_where_its_checkpoint_ends(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, fill: Fill, tmp_path: Path
) -> None:
    """S2: available-now reads what is there and stops; the next run reads only what came since."""
    topic = new_topic(partitions=2)
    fill(topic, [b"a", b"b"], partition=0)
    seen: list[tuple[int, list[bytes]]] = []

    def run() -> None:
        stream = spark.readStream.format("braid").option("bootstrap.servers", bootstrap)
        frame = stream.option("subscribe", topic).option("startingOffsets", "earliest").load()
        query = (
            frame.writeStream.foreachBatch(
                lambda rows, number: seen.append((number, sorted(bytes(row.value) for row in rows.collect())))
            )
            .option("checkpointLocation", str(tmp_path))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    run()
    fill(topic, [b"c"], partition=1)
    run()

    assert seen == [(0, [b"a", b"b"]), (1, [b"c"])]
