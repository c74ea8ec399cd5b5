"""A real file system that fills up: a small tmpfs, which needs root to mount."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.hostile import batches, calls
from tests.hostile.raw import Connection

from braidmq.testing import broker

MEBIBYTE = 1 << 20
STORAGE_ERROR = 56
FULL_DISK_CODES = (STORAGE_ERROR, 44, 89)


@contextmanager
def small_disk(path: Path, size_bytes: int) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("mounting a tmpfs needs root")
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(path)]
    mounted = subprocess.run(command, capture_output=True, text=True)
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount a tmpfs: {mounted.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def fill(connection: Connection, topic: str, tries: int) -> tuple[int, int]:
    """Produces until refused: (records acked, the refusal's code)."""
    block = batches.simple(os.urandom(200_000))
    for acked in range(tries):
        code, text = calls.produce_message(connection, topic, block)
        if code != 0:
            assert text, "a refusal says why"
            return acked, code
    raise AssertionError("the disk never filled")


@pytest.mark.parametrize("full_percent", [95, 100], ids=["at the watermark", "by ENOSPC itself"])
def test_a_full_disk_refuses_writes_and_serves_reads(tmp_path: Path, full_percent: int) -> None:
    """L7: a clear error, reads go on, and writes come back once there is room; nothing acked is lost."""
    options = {
        "disk_clean_percent": full_percent,
        "disk_force_percent": full_percent,
        "disk_full_percent": full_percent,
        "log_retention_check_interval_ms": 100,
    }
    with small_disk(tmp_path / "disk", 24 * MEBIBYTE) as disk:
        ballast = disk / "ballast"
        ballast.write_bytes(bytes(8 * MEBIBYTE))
        with broker(data=disk / "braid", **options) as server, Connection(server.bootstrap) as connection:
            assert calls.create_topic(connection, "t", config={"segment.bytes": str(2 * MEBIBYTE)})[0] == 0
            acked, code = fill(connection, "t", 200)
            assert code in FULL_DISK_CODES
            assert acked > 10
            assert all_readable(connection, "t", acked)
            ballast.unlink()
            assert comes_back(connection, "t")
            server.kill()
            server.restart()
            with Connection(server.bootstrap) as after:
                assert all_readable(after, "t", acked + 1)


def all_readable(connection: Connection, topic: str, count: int) -> bool:
    for offset in range(count):
        fetched = calls.fetch(connection, topic, offset)
        if fetched.code != 0 or len(fetched.records) < 200_000:
            return False
    return True


def comes_back(connection: Connection, topic: str) -> bool:
    """The next writes may still be refused until the broker has looked at the disk again."""
    import time

    block = batches.simple(os.urandom(200_000))
    for _ in range(100):
        if calls.produce(connection, topic, block).code == 0:
            return True
        time.sleep(0.1)
    return False
