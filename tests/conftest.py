"""What all tests share: the fixture `braid_broker`, also where Braid is on the path but not installed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest
from hypothesis import settings

from braidmq.testing import BrokerProcess, broker

# A machine under load must not fail a test: none has a time to keep to.
settings.register_profile("braid", deadline=None)
settings.load_profile("braid")

_numbers = itertools.count(1)


def pytest_configure(config: pytest.Config) -> None:
    if not config.pluginmanager.has_plugin("braid"):
        config.pluginmanager.import_plugin("braidmq.testing.plugin")


@pytest.fixture(scope="session")
def shared_broker() -> Iterator[BrokerProcess]:
    """One broker for all tests that only need topics of their own."""
    with broker() as running:
        yield running


@pytest.fixture
def bootstrap(shared_broker: BrokerProcess) -> str:
    return shared_broker.bootstrap


@pytest.fixture
def new_topic(bootstrap: str) -> Callable[..., str]:
    """Makes topics with names of their own: `new_topic(partitions=2, **{"retention.ms": "1000"})`."""
    from braidmq.client import Admin

    def make(partitions: int = 1, **configs: str) -> str:
        name = f"topic-{next(_numbers)}"
        with Admin(bootstrap) as admin:
            admin.create_topic(name, partitions, configs=configs)
        return name

    return make
