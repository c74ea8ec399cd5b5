"""The code about Spark in docs/use/spark.md and in the README, in one session, as a reader would type it."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from braidmq.client import Producer
from braidmq.testing import BrokerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "use" / "spark.md"
README = ROOT / "README.md"
BLOCK = re.compile(r"^```py\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ADDRESS = "127.0.0.1:9092"


def test_the_page_about_spark_runs_from_top_to_bottom(
    spark: SparkSession, braid_broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S1 S2: every block, with what the ones before it have made."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    names: dict[str, Any] = {"spark": spark}

    assert run_blocks(PAGE, braid_broker.bootstrap, names) >= 6

    assert names["late"].count() > 0


def test_the_readme_shows_a_topic_as_a_dataframe(spark: SparkSession, braid_broker: BrokerProcess) -> None:
    """S1: the first lines about Spark that a newcomer sees."""
    with Producer(braid_broker.bootstrap) as producer:
        producer.send("orders", b"one coffee", key=b"table 7")
    names: dict[str, Any] = {"spark": spark}

    assert run_blocks(README, braid_broker.bootstrap, names) == 1

    (row,) = names["orders"].collect()
    assert (row.key, row.value) == (b"table 7", b"one coffee")


def run_blocks(page: Path, bootstrap: str, names: dict[str, Any]) -> int:
    """How many blocks there were."""
    blocks = BLOCK.findall(page.read_text(encoding="utf-8").replace(ADDRESS, bootstrap))
    for block in blocks:
        exec(compile(block, str(page), "exec"), names)
    return len(blocks)
