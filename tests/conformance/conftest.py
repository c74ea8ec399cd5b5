"""One fixture: `place`, which opens a store of each kind in turn."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from conformance import places

KINDS = ["memory", "file"]


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> places.Opener:
    if request.param == "memory":
        return places.memory
    return partial(places.file, tmp_path / "store")
