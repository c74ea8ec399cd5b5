"""The Spark sink on Apache Kafka: the very same windows as in tests/spark, on the other server."""

from __future__ import annotations

import os

import pytest
from tests.compat.conftest import FOREIGN_SERVER
from tests.spark.test_sink_windows import *  # noqa: F403

pytestmark = pytest.mark.skipif(
    FOREIGN_SERVER not in os.environ, reason="tests/spark runs these against Braid already"
)
