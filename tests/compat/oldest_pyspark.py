"""An environment with the oldest pyspark that pyproject.toml allows, so that what it says stays proven."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
ENVIRONMENT = ROOT / ".venv-oldest"
PYTHON = ENVIRONMENT / "bin" / "python"
OURS = ("pyspark==", "py4j==")
"""Pins that go with the newest pyspark."""


def oldest() -> str:
    """The version behind `pyspark>=` in the extra `spark`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    matches = [re.fullmatch(r"pyspark>=([\d.]+)", each) for each in project["optional-dependencies"]["spark"]]
    (found,) = [match[1] for match in matches if match]
    return found


def prepare() -> Path:
    """The Python of the environment, which is made where it is missing or does not fit any more."""
    pins = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith(OURS)]
    pins.append(f"pyspark=={oldest()}")
    wanted = hashlib.sha256("\n".join([sys.version, (ROOT / "pyproject.toml").read_text(), *pins]).encode())
    stamp = ENVIRONMENT / "installed"
    if stamp.exists() and stamp.read_text() == wanted.hexdigest():
        return PYTHON
    shutil.rmtree(ENVIRONMENT, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(ENVIRONMENT)], check=True)
    constraints = ENVIRONMENT / "constraints.txt"
    constraints.write_text("\n".join(pins) + "\n")
    install = [str(PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    install += ["-c", str(constraints)]
    subprocess.run([*install, "setuptools", "cython", "wheel"], check=True)
    subprocess.run([*install, "--no-build-isolation", "-e", ".[dev]"], check=True, cwd=ROOT)
    stamp.write_text(wanted.hexdigest())
    return PYTHON
