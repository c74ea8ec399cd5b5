"""When, on which commit and on which machine (without its name): what a reader needs to judge the figures."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import confluent_kafka

SYNCS = 100
HERE = Path(__file__).parent


def describe(directory: Path, versions: dict[str, str]) -> dict[str, str]:
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
        "commit": _commit(),
        "CPU": f"{os.cpu_count()} x {_cpu_model()}, shared by server and client",
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        "disk": f"{_filesystem(directory)}, fdatasync of 1 KB in {_sync_ms(directory):.2f} ms (median)",
        "kernel": f"{platform.system()} {platform.release()}",
        "Python": platform.python_version(),
        "librdkafka": confluent_kafka.libversion()[0],
        **versions,
    }


def _commit() -> str:
    """The commit that is checked out, with a plus sign if files differ from it."""
    command = ["git", "describe", "--always", "--exclude=*", "--dirty=+"]
    try:
        done = subprocess.run(command, cwd=HERE, capture_output=True, text=True)
    except OSError:
        return "unknown"
    return done.stdout.strip() or "unknown"


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _filesystem(directory: Path) -> str:
    """The type of the file system that holds the directory, from the longest mount point above it."""
    best, kind = "", "unknown file system"
    for line in Path("/proc/mounts").read_text().splitlines():
        _, point, found, *_ = line.split()
        if directory.resolve().is_relative_to(point) and len(point) >= len(best):
            best, kind = point, found
    return kind


def _sync_ms(directory: Path) -> float:
    samples_ms = []
    with tempfile.TemporaryFile(dir=directory) as file:
        for _ in range(SYNCS):
            file.write(b"x" * 1024)
            file.flush()
            started = time.perf_counter()
            os.fdatasync(file.fileno())
            samples_ms.append((time.perf_counter() - started) * 1000)
    return statistics.median(samples_ms)
