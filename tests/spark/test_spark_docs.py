"""The code in docs/spark.md, block by block in one session, as a reader would type it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from braidmq.testing import BrokerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = Path(__file__).parents[2] / "docs" / "spark.md"
BLOCK = re.compile(r"^```py\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ADDRESS = "127.0.0.1:9092"


def test_the_page_about_spark_runs_from_top_to_bottom(
    spark: SparkSession, braid_broker: BrokerProcess, tmp_path: Path
) -> None:
    """S1 S2: every block, with what the ones before it have made."""
    names: dict[str, Any] = {"spark": spark, "checkpoint": str(tmp_path)}
    text = PAGE.read_text(encoding="utf-8").replace(ADDRESS, braid_broker.bootstrap)

    blocks = BLOCK.findall(text)
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)

    assert len(blocks) >= 6
    assert names["late"].count() > 0
