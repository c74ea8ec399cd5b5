"""One fixture: `place`, which opens a store of each kind in turn."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from conformance import places

LOCAL = {"file": places.file, "served-unix": places.served_unix, "served-tcp": places.served_tcp}


@pytest.fixture(params=["memory", *LOCAL])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> places.Opener:
    if request.param == "memory":
        return places.memory
    return partial(LOCAL[request.param], tmp_path / "store")
