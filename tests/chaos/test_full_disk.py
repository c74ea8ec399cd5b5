"""A real file system that fills up: a small tmpfs, which needs root to mount."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.chaos import full_disk
from tests.chaos.kills import Plan
from tests.hostile import batches, calls
from tests.hostile.raw import Connection

from braidmq.testing import broker

MEBIBYTE = 1 << 20
KAFKA_STORAGE_ERROR = 56


@pytest.fixture
def disk() -> Iterator[Path]:
    try:
        with full_disk.small_disk(24 * MEBIBYTE) as path:
            yield path
    except full_disk.CannotMountError as reason:
        pytest.skip(str(reason))


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
def test_a_full_disk_refuses_writes_and_serves_reads(disk: Path, full_percent: int) -> None:
    """L7: a clear error, reads go on, and writes come back once there is room; nothing acked is lost."""
    options = {
        "disk_clean_percent": full_percent,
        "disk_force_percent": full_percent,
        "disk_full_percent": full_percent,
        "log_retention_check_interval_ms": 100,
    }
    ballast = disk / "ballast"
    ballast.write_bytes(bytes(8 * MEBIBYTE))
    with broker(data=disk / "braid", **options) as server, Connection(server.bootstrap) as connection:
        assert calls.create_topic(connection, "t", config={"segment.bytes": str(2 * MEBIBYTE)})[0] == 0
        acked, code = fill(connection, "t", 200)
        assert code == KAFKA_STORAGE_ERROR
        assert acked > 10
        assert all_readable(connection, "t", acked)
        ballast.unlink()
        assert comes_back(connection, "t")
        server.kill()
        server.restart()
        with Connection(server.bootstrap) as after:
            assert all_readable(after, "t", acked + 1)


def test_a_broker_starts_on_a_disk_without_a_free_byte(disk: Path, tmp_path: Path) -> None:
    """L7: from what it has kept back; then it serves reads, and writes once there is room."""
    options = {f"disk_{level}_percent": 100 for level in ("clean", "force", "full")}
    data = tmp_path / "braid"
    data.mkdir()
    (disk / "data").mkdir()
    (data / "data").symlink_to(disk / "data")
    with broker(data=data, **options) as server:
        with Connection(server.bootstrap) as connection:
            assert calls.create_topic(connection, "t")[0] == 0
            assert calls.produce(connection, "t", batches.simple(b"kept")).code == 0
        take_everything(disk / "ballast")
        server.kill()
        server.restart()
        with Connection(server.bootstrap) as connection:
            assert b"kept" in calls.fetch(connection, "t", 0).records
            (disk / "ballast").unlink()
            assert comes_back(connection, "t")


def take_everything(ballast: Path) -> None:
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass
    assert os.statvfs(ballast.parent).f_bavail == 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2], ids=["at the watermark", "by ENOSPC itself"])
def test_producers_carry_on_when_a_full_disk_has_room_again(seed: int) -> None:
    """L7 L6 P4: idempotent producers through two fills, perhaps a kill; nothing lost or doubled."""
    try:
        done = full_disk.run(Plan(kills=2, seed=seed, senders=1, partitions=2))
    except full_disk.CannotMountError as reason:
        pytest.skip(str(reason))
    assert done.history.read_count >= done.history.acked_count > 0


def all_readable(connection: Connection, topic: str, count: int) -> bool:
    for offset in range(count):
        fetched = calls.fetch(connection, topic, offset)
        if fetched.code != 0 or len(fetched.records) < 200_000:
            return False
    return True


def comes_back(connection: Connection, topic: str) -> bool:
    """The next writes may still be refused until the broker has looked at the disk again."""
    block = batches.simple(os.urandom(200_000))
    for _ in range(100):
        if calls.produce(connection, topic, block).code == 0:
            return True
        time.sleep(0.1)
    return False
