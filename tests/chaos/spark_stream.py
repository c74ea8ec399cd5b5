"""The stream that `spark_kills` kills: a topic to another, in small batches, until it is told to finish.

    python -m tests.chaos.spark_stream BOOTSTRAP SOURCE SINK CHECKPOINT ROWS_PER_BATCH

Prints a line when the stream runs. With `--finish` it ends when everything there was has gone through, and
says what an audit of the two topics found. `--sabotage BUG` runs it with a bug of `spark_sabotage.py`.
"""

from __future__ import annotations

import os
import sys

from tests.chaos.spark_sabotage import BUG, FORMAT, SabotagedSource

from braidmq.spark import session
from braidmq.spark.rescue.audit import audit


def main(bootstrap: str, source: str, sink: str, checkpoint: str, rows: str, *flags: str) -> None:
    sink_format = "braid"
    if "--sabotage" in flags:
        os.environ[BUG] = flags[flags.index("--sabotage") + 1]
        sink_format = FORMAT
    spark = session("chaos", "local[2]", memory_mb=1024, ui=False)
    spark.dataSource.register(SabotagedSource)
    stream = (
        spark.readStream.format("braid").option("bootstrap.servers", bootstrap).option("subscribe", source)
    )
    frame = (
        stream.options(startingOffsets="earliest", maxOffsetsPerTrigger=rows).load().select("key", "value")
    )
    writer = frame.writeStream.format(sink_format).option("bootstrap.servers", bootstrap)
    writer = writer.options(topic=sink, checkpointLocation=checkpoint)
    finish = "--finish" in flags
    query = (
        writer.trigger(availableNow=True) if finish else writer.trigger(processingTime="0 seconds")
    ).start()
    print("running", flush=True)  # noqa: T201
    query.awaitTermination()
    if finish:
        sides = [
            spark.read.format("braid")
            .options(subscribe=topic, isolation="read_committed", includeHeaders="true")
            .option("bootstrap.servers", bootstrap)
            .load()
            for topic in (source, sink)
        ]
        found = audit(*sides)
        print("equal" if found.equal else f"differs: {found}", flush=True)  # noqa: T201
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
