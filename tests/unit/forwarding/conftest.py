"""A cluster of three for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from unit.forwarding.cluster import Front, fronted


@pytest.fixture
def front(tmp_path: Path) -> Iterator[Front]:
    with fronted(tmp_path) as made:
        yield made
