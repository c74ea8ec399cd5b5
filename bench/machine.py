"""The machine in words, without its name: what somebody needs to judge the figures."""

from __future__ import annotations

import os
import platform
import statistics
import tempfile
import time
from pathlib import Path

import confluent_kafka

SYNCS = 100


def describe(directory: Path, versions: dict[str, str]) -> dict[str, str]:
    return {
        "CPU": f"{os.cpu_count()} x {_cpu_model()}, shared by server and client",
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        "disk": f"{_filesystem(directory)}, fdatasync of 1 KB in {_sync_ms(directory):.2f} ms (median)",
        "kernel": f"{platform.system()} {platform.release()}",
        "Python": platform.python_version(),
        "librdkafka": confluent_kafka.libversion()[0],
        **versions,
    }


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
