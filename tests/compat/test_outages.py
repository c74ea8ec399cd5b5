"""A stream on Spark, topic to topic, while its broker is away for half a minute."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from tests.compat.conftest import FOREIGN_SERVER
from tests.compat.test_spark import ASKED_FOR
from tests.spark.conftest import spark  # noqa: F401
from tests.spark.test_faults import AWAY, Away, copy_through

from braidmq.testing import BrokerProcess

AWAY_S = 30.0
pytestmark = [
    pytest.mark.skipif(ASKED_FOR not in os.environ, reason="scripts/compat runs what takes minutes"),
    pytest.mark.skipif(FOREIGN_SERVER in os.environ, reason="another's server is not ours to stop"),
    pytest.mark.braid(num_partitions=1),
    pytest.mark.timeout(400),
]


@pytest.mark.parametrize("away", AWAY)
def test_a_broker_that_is_away_for_half_a_minute_is_waited_for(
    spark: Any,  # noqa: F811
    braid_broker: BrokerProcess,
    tmp_path: Path,
    away: Away,
) -> None:
    """S2 S3: stopped in its tracks, or ended and started again; the same run of the query goes on."""
    copy_through(spark, braid_broker, tmp_path, away, AWAY_S)
