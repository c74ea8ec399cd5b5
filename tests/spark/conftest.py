"""One Spark session for all tests of a process that need one: starting a JVM takes longer than most of them.

The tests that share it belong to one of two xdist groups, so that two JVMs are started and not one in each
process (`--dist loadgroup` in scripts/test). These groups are what all else waits for, and they begin first:
a test without the session belongs to whoever has time.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from braidmq.client import Producer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TIMEOUT_S = 400
QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""A JVM that lives for minutes is done sooner without its best compiler."""


def pytest_itemcollected(item: pytest.Item) -> None:
    """For what is collected in this folder, before anybody looks at the marks of groups."""
    if "spark" in getattr(item, "fixturenames", ()):
        group = "pipelines" if item.path.stem.startswith("test_pipelines") else "spark"
        item.add_marker(pytest.mark.xdist_group(group))
    # A test that is stopped in the middle of a call leaves a session that nobody can use.
    item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The session every test shares, as `braidmq.spark.session` makes it."""
    from braidmq.spark import session

    with tempfile.TemporaryDirectory(prefix="braid-spark-") as scratch:
        made = session(
            "braid tests",
            "local[2]",
            memory_mb=1024,
            ui=False,
            config={
                "spark.driver.extraJavaOptions": QUICK_START,
                "spark.local.dir": scratch,
                "spark.sql.warehouse.dir": f"{scratch}/warehouse",
            },
        )
        yield made
        made.stop()


@pytest.fixture
def topic_frame(spark: SparkSession, bootstrap: str) -> Callable[..., DataFrame]:
    """A topic as a batch DataFrame: `topic_frame("orders", includeHeaders="true")`."""

    def load(topic: str, **options: str) -> DataFrame:
        reader = spark.read.format("braid").option("bootstrap.servers", bootstrap).option("subscribe", topic)
        return reader.options(**options).load()

    return load


@pytest.fixture
def fill(bootstrap: str) -> Callable[..., None]:
    """Sends values to a topic: `fill("orders", [b"a", b"b"], partition=1)`."""

    def send(topic: str, values: list[bytes], partition: int | None = None) -> None:
        with Producer(bootstrap) as producer:
            for value in values:
                producer.send(topic, value, partition=partition)

    return send
