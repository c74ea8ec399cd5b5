"""What the steps of a Spark read are timed with."""

from __future__ import annotations

import pyarrow as pa
import pytest
from bench import spark_parts

from braidmq.wire.compress import Codec


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_a_partition_has_as_many_different_orders_as_it_says(codec: Codec) -> None:
    partition = spark_parts.Partition(1_000, codec)
    table = pa.Table.from_batches(partition.decoded("offset", "value"))
    assert table["offset"].to_pylist() == list(range(partition.rows))
    assert len(table["value"].unique()) == partition.rows


def test_every_step_runs_and_takes_time() -> None:
    timed, rows = spark_parts.steps(1_000)
    found = spark_parts.nanoseconds(timed, rows, turns=1)
    assert found.keys() == timed.keys()
    assert min(found.values()) > 0
