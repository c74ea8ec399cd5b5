"""The project's own build, run on a copy of what it compiles."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import braidmq.wire

WIRE = Path(braidmq.wire.__file__).parent
ROOT = Path(__file__).parents[3]


def installed() -> list[Path]:
    """What the install has compiled; nothing if that is not all, or older than a source."""
    found = []
    for types in WIRE.glob("*.pxd"):
        sources = (types, types.with_suffix(".py"))
        module = types.with_name(f"{types.stem}{sysconfig.get_config_var('EXT_SUFFIX')}")
        newest_ns = max(source.stat().st_mtime_ns for source in sources)
        if not module.exists() or module.stat().st_mtime_ns < newest_ns:
            return []
        found.append(module)
    return found


def build(where: Path, **environment: str) -> list[Path]:
    """Runs the project's own setup.py on a copy of the kernel; the compiled modules that came out."""
    (where / "src/braidmq/wire").mkdir(parents=True)
    shutil.copy(ROOT / "setup.py", where)
    for types in WIRE.glob("*.pxd"):
        for source in (types, types.with_suffix(".py")):
            shutil.copy(source, where / "src/braidmq/wire")
    for package in ("braidmq", "braidmq/wire"):
        (where / "src" / package / "__init__.py").touch()
    subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--build-lib", "out"],
        cwd=where, check=True, capture_output=True, timeout=110, env={**os.environ, **environment},
    )  # fmt: skip
    return sorted((where / "out").rglob("*.so"))
