"""Compiled modules for all tests of them: a build takes longer than they do, so they are one xdist group."""

from __future__ import annotations

import shutil
import sysconfig
from pathlib import Path

import pytest

from unit.wire.compiling import build, installed


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """All that is compiled, by name, in a directory of its own: a module cannot be loaded twice from one."""
    where = tmp_path_factory.mktemp("kernel")
    if found := installed():
        return {path.name.partition(".")[0]: Path(shutil.copy(path, where)) for path in found}
    pytest.importorskip("Cython")
    if shutil.which((sysconfig.get_config_var("CC") or "cc").split()[0]) is None:
        pytest.skip("there is no C compiler here")
    return {path.name.partition(".")[0]: path for path in build(where)}
