"""`python -m bench.spark_parts`: what our own part of a Spark read is made of, step by step, in memory.

No Spark, no broker, no disk: checking batches, unpacking them, decoding them into Arrow, and writing that as
Parquet, each for the same rows as `scripts/bench-spark` reads. The steps take turns; the median counts.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable, Iterator
from itertools import cycle

import pyarrow as pa
from rich.console import Console
from rich.table import Table

from braidmq.spark.parquet.files import ROW_GROUP_BYTES, parquet_writer
from braidmq.spark.source.arrow import ArrowDecoder
from braidmq.spark.source.fetch import CHECKED_BYTES
from braidmq.spark.worker import keep_memory
from braidmq.wire import kernel
from braidmq.wire.batch_walker import check_batches
from braidmq.wire.checksum import crc32c
from braidmq.wire.compress import Codec

from .load_spark import FULL, LARGE_BATCH
from .spark_job import EXPORTED
from .spark_topics import apart

TURNS = 15
OFFSET_BYTES = 8
PARQUET_CODECS = ("none", "snappy", "lz4", "zstd")
Step = Callable[[], object]


class Partition:
    """Some rows as a partition holds them, packed or not; as many as make a row group of Parquet."""

    def __init__(self, value_bytes: int, codec: Codec) -> None:
        each = LARGE_BATCH // value_bytes
        batches = cycle(apart(random.Random(7), each, value_bytes))
        self.rows = 0
        self._stored = bytearray()
        while self.rows * value_bytes < ROW_GROUP_BYTES:
            batch = next(batches).batch(self.rows, codec)
            batch[:OFFSET_BYTES] = self.rows.to_bytes(OFFSET_BYTES, "big")
            self._stored += batch
            self.rows += each

    def checked(self) -> Iterator[memoryview]:
        """The batches, some at a time, as the local log hands them to the decoder."""
        view, at = memoryview(self._stored), 0
        while at < len(view):
            end, _ = check_batches(view, at, self.rows, 0, CHECKED_BYTES, crc32c)
            if end == at:
                raise RuntimeError(f"the batch at {at} is damaged")
            yield view[at:end]
            at = end

    def decoded(self, *columns: str) -> list[pa.RecordBatch]:
        """Checked and in Arrow."""
        decoder = ArrowDecoder(columns, "orders", 0, 0, self.rows)
        found = [rows for batches in self.checked() for rows in decoder.feed(batches)]
        return found + list(decoder.flush())


def steps(value_bytes: int) -> tuple[dict[str, Step], int]:
    """What can be timed by its name, and how many rows each step handles."""
    plain, packed = Partition(value_bytes, Codec.NONE), Partition(value_bytes, Codec.ZSTD)
    table = pa.Table.from_batches(plain.decoded(*EXPORTED))
    if table.num_rows != plain.rows or packed.rows != plain.rows:
        raise RuntimeError(f"{table.num_rows} rows were decoded, {plain.rows} are there")
    found: dict[str, Step] = {
        "check CRCs": lambda: list(plain.checked()),
        "check, decode keys and times": lambda: plain.decoded("key", "timestamp"),
        "check, decode values": lambda: plain.decoded("value"),
        "check, decode the columns that are exported": lambda: plain.decoded(*EXPORTED),
        "check, unpack zstd, decode values": lambda: packed.decoded("value"),
    }
    for codec in PARQUET_CODECS:
        found[f"write Parquet of those columns, codec {codec}"] = lambda codec=codec: _write(table, codec)
    return found, plain.rows


def _write(table: pa.Table, codec: str) -> None:
    with parquet_writer(pa.BufferOutputStream(), EXPORTED, codec) as writer:
        writer.write_table(table)


def nanoseconds(timed: dict[str, Step], rows: int, turns: int) -> dict[str, float]:
    """CPU time for a row, the median of the turns; a first one does not count."""
    taken: dict[str, list[float]] = {name: [] for name in timed}
    for _ in range(turns + 1):
        for name, step in timed.items():
            started = time.thread_time_ns()
            step()
            taken[name].append((time.thread_time_ns() - started) / rows)
    return {name: statistics.median(times[1:]) for name, times in taken.items()}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.spark_parts", description=__doc__)
    parser.add_argument("--turns", type=int, default=TURNS, metavar="N", help=f"of each step ({TURNS})")
    turns = parser.parse_args().turns
    keep_memory()
    sizes = {name: nanoseconds(*steps(value_bytes), turns) for name, value_bytes, _ in FULL.topics}
    compiled = "compiled" if kernel.COMPILED else "not compiled"
    shown = Table("CPU ns a row", *sizes, title=f"median of {turns} turns, kernel {compiled}")
    for name in next(iter(sizes.values())):
        shown.add_row(name, *(f"{times[name]:,.0f}" for times in sizes.values()))
    Console().print(shown)


if __name__ == "__main__":
    main()
