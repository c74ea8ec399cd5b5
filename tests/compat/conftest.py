"""The server under test: a broker of our own, a cluster of them (BRAID_COMPAT_BROKERS), or any Kafka named by
BRAID_COMPAT_BOOTSTRAP.

The suite speaks only through stock clients, so it says the same thing of every server; `scripts/compat` runs
it against Apache Kafka as well, which proves that the tests demand what Kafka does, not what we imagine.
"""

from __future__ import annotations

import itertools
import os
import uuid
import warnings
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from tests.compat import confluent_calls

with warnings.catch_warnings():
    # kafka-python loads its schemas with a call that newer Pythons deprecate; only our warnings are errors.
    warnings.simplefilter("ignore")
    from tests.compat.group_members import HEARTBEAT_MS, SESSION_MS

STREAMS_SESSION_MS = 6_000
FOREIGN_SERVER = "BRAID_COMPAT_BOOTSTRAP"
BROKERS = "BRAID_COMPAT_BROKERS"
SHORT_SESSIONS = {
    "group_min_session_timeout_ms": 1_000,
    "group_initial_rebalance_delay_ms": 300,
    "group_consumer_session_timeout_ms": SESSION_MS,
    "group_consumer_heartbeat_interval_ms": HEARTBEAT_MS,
    "group_streams_session_timeout_ms": STREAMS_SESSION_MS,
    "group_streams_initial_rebalance_delay_ms": 500,
}
"""So that tests need not wait long for what a dead member leaves."""


@pytest.fixture(scope="session")
def bootstrap() -> Iterator[str]:
    foreign = os.environ.get(FOREIGN_SERVER)
    if foreign:
        yield foreign
        return
    from braidmq import testing

    brokers = int(os.environ.get(BROKERS, "1"))
    made = testing.broker if brokers == 1 else partial(testing.cluster, brokers)
    with made(**SHORT_SESSIONS) as server:
        yield server.bootstrap


@pytest.fixture(scope="session")
def new_name() -> Callable[[], str]:
    """Topic names that no earlier run on the same server has used."""
    run, count = uuid.uuid4().hex[:8], itertools.count()
    return lambda: f"compat-{run}-{next(count)}"


@pytest.fixture
def topic(bootstrap: str, new_name: Callable[[], str]) -> str:
    """A fresh topic of two partitions, made by a client other than most of those tested on it."""
    name = new_name()
    confluent_calls.create_topic(bootstrap, name, partitions=2)
    return name
