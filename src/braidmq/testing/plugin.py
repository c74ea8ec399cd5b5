"""The pytest fixture `braid_broker`: a fresh broker for one test.

Options of the broker go into a mark: `@pytest.mark.braid(flush="async", num_partitions=1)`. A suite that
would rather share one broker writes its own fixture around `braidmq.testing.broker()`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from braidmq.testing.process import BrokerProcess


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "braid(**options): options of the broker behind braid_broker")


@pytest.fixture
def braid_broker(request: pytest.FixtureRequest) -> Iterator[BrokerProcess]:
    """A running broker with an empty data directory."""
    from braidmq.testing.process import broker

    mark = request.node.get_closest_marker("braid")
    with broker(**(mark.kwargs if mark else {})) as running:
        yield running
