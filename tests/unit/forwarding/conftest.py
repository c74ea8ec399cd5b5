"""A cluster of three for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from unit.forwarding.cluster import Cluster, running


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    with running(tmp_path, monkeypatch) as made:
        yield made
