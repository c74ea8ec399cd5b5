"""A disk that fills up and empties again under load, with the history checked at the end.

The data lies on a small tmpfs (root is needed to mount one). Again and again a file takes nearly all the
space that is left; writes must then be refused, reads must go on, and once the file is gone the very same
producers must carry on, with nothing lost or doubled. Some rounds kill the broker while the disk is full: it
must start and serve reads without a byte to spare. Segments are large, so that the force watermark, whose
work is to delete old segments, finds none.
"""

from __future__ import annotations

import os
import random
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from confluent_kafka import TopicPartition
from tests.chaos.kills import TOPIC, Plan, Progress, create_topic, judge, let_work
from tests.chaos.load import (
    WAIT_S,
    ChaosFailed,
    Follower,
    Journal,
    Sender,
    consumer,
    read_everything,
    records,
)

from braidmq.testing import BrokerProcess, broker

DISK_BYTES = 512 << 20
SLACK_BYTES_MAX = 200_000
KILL_WHILE_FULL = 0.15
STALLED_S = 0.3


class CannotMountError(Exception):
    """There is no small disk to be had here; the text says why."""


@contextmanager
def small_disk(size_bytes: int) -> Iterator[Path]:
    if os.geteuid() != 0:
        raise CannotMountError("mounting a tmpfs needs root")
    with tempfile.TemporaryDirectory(prefix="small-disk-") as path:
        command = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", path]
        mounted = subprocess.run(command, capture_output=True, text=True)
        if mounted.returncode != 0:
            raise CannotMountError(f"cannot mount a tmpfs: {mounted.stderr.strip()}")
        try:
            yield Path(path)
        finally:
            subprocess.run(["umount", "-l", path], check=True)


def run(plan: Plan, report: Callable[[Progress], None] = lambda _: None) -> Progress:
    """Fills the disk `plan.kills` times; raises ChaosFailed when a promise was broken."""
    chance, journal, began = random.Random(plan.seed), Journal(), time.monotonic()
    # Half the runs stop at the watermark, half run into ENOSPC itself.
    percent = 95 if plan.seed % 2 else 100
    watermarks = {f"disk_{level}_percent": percent for level in ("clean", "force", "full")}
    options = {**watermarks, "log_retention_check_interval_ms": 100, "log_checkpoint_interval_ms": 300}
    progress = Progress(0, journal.history, 0.0, what="fills")
    with small_disk(DISK_BYTES) as disk, broker(data=disk / "braid", **options) as server:
        create_topic(server.bootstrap, plan.partitions, {})
        workers = _workers(journal, server.bootstrap, plan)
        try:
            while progress.kills < plan.kills and not journal.stop.is_set():
                if plan.seconds is not None and time.monotonic() - began > plan.seconds:
                    break
                let_work(journal, chance, plan.load_s_max)
                _fill_and_empty(journal, server, disk, chance)
                progress.kills += 1
                progress.elapsed_s = time.monotonic() - began
                report(progress)
        except BaseException:
            journal.stop.set()
            raise
        journal.finish(workers)
        read_everything(journal, server.bootstrap, TOPIC, plan.partitions)
    journal.history.conclude()
    judge(plan, journal.history)
    return progress


def _workers(journal: Journal, bootstrap: str, plan: Plan) -> list[Sender | Follower]:
    senders = [Sender(journal, bootstrap, TOPIC, plan.partitions, number) for number in range(plan.senders)]
    return [*senders, Follower(journal, bootstrap, TOPIC, plan.partitions, "follower")]


def _fill_and_empty(journal: Journal, server: BrokerProcess, disk: Path, chance: random.Random) -> None:
    ballast = disk / "ballast"
    try:
        _take_all_but(ballast, chance.randrange(SLACK_BYTES_MAX))
        _await_standstill(journal)
        if chance.random() < KILL_WHILE_FULL:
            server.kill()
            server.restart()
        _read_while_full(server.bootstrap, chance.randrange(2))
    finally:
        ballast.unlink(missing_ok=True)


def _take_all_but(ballast: Path, slack_bytes: int) -> None:
    """In steps, each half of what is still free: the broker takes some of it at the same time."""
    with open(ballast, "wb") as file:
        size = 0
        while (free := _free_bytes(ballast.parent) - slack_bytes) > 0:
            step = max(free // 2, 4096)
            with suppress(OSError):
                os.posix_fallocate(file.fileno(), size, step)
                size += step


def _free_bytes(path: Path) -> int:
    free = os.statvfs(path)
    return free.f_bavail * free.f_frsize


def _await_standstill(journal: Journal) -> None:
    """Until nothing has been acked for a moment; with the disk full that cannot take long."""
    deadline = time.monotonic() + WAIT_S
    seen, since = journal.history.acked_count, time.monotonic()
    while time.monotonic() - since < STALLED_S:
        journal.check()
        if journal.history.acked_count != seen:
            seen, since = journal.history.acked_count, time.monotonic()
        if time.monotonic() > deadline:
            raise ChaosFailed("writes are still acked though the disk is full")
        time.sleep(0.02)


def _read_while_full(bootstrap: str, partition: int) -> None:
    reader = consumer(bootstrap)
    try:
        reader.assign([TopicPartition(TOPIC, partition, 0)])
        deadline = time.monotonic() + WAIT_S
        while not records(reader.consume(100, timeout=0.2)):
            if time.monotonic() > deadline:
                raise ChaosFailed("reads stopped when the disk was full")
    finally:
        reader.close()
