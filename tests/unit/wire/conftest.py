"""One build for all tests of compiled modules: it takes longer than they do, so they are one xdist group."""

from __future__ import annotations

import shutil
import sysconfig
from pathlib import Path

import pytest

from unit.wire.compiling import build


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """All that is compiled, by name, in a directory of its own."""
    pytest.importorskip("Cython")
    if shutil.which((sysconfig.get_config_var("CC") or "cc").split()[0]) is None:
        pytest.skip("there is no C compiler here")
    return {path.name.partition(".")[0]: path for path in build(tmp_path_factory.mktemp("kernel"))}
