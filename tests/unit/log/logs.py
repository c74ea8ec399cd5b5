"""What the tests of the log share: a log on a simulated disk with small segments, and ways to fill it."""

from __future__ import annotations

import random

from tests.sim.clock import SimClock
from tests.sim.disk import Crash, SimDisk
from tests.sim.workload import LIMITS, PATH

from braidmq.config import TopicConfig, configure
from braidmq.log.append_result import AppendResult
from braidmq.log.files import FileCache
from braidmq.log.log import Log
from braidmq.wire.records import NewRecord, build_batch, parse_header

BASE_MS = 1_700_000_000_000


def topic_config(**options: str) -> TopicConfig:
    """Options with underscores for dots, on small segments and a dense index."""
    small = {"segment.bytes": "1024", "index.interval.bytes": "64"}
    return configure({}).topic(small | {name.replace("_", "."): value for name, value in options.items()})


def open_log(
    disk: SimDisk,
    config: TopicConfig | None = None,
    clock: SimClock | None = None,
    files: FileCache | None = None,
) -> Log:
    files = FileCache(8) if files is None else files
    return Log.open(disk, PATH, config or topic_config(), clock or SimClock(), files, LIMITS)


def batch_of(
    *values: bytes,
    timestamp_ms: int = BASE_MS,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
) -> bytearray:
    """A batch of records whose timestamps go up by one each."""
    rows: list[NewRecord] = [(None, value, [], timestamp_ms + number) for number, value in enumerate(values)]
    return build_batch(
        rows, producer_id=producer_id, producer_epoch=producer_epoch, base_sequence=base_sequence
    )


def append(log: Log, batch: bytearray, leader_epoch: int = 0) -> AppendResult:
    return log.append(memoryview(batch), parse_header(batch), leader_epoch)


def fill(log: Log, batches: int, value: bytes = b"x" * 50, since_ms: int = BASE_MS) -> None:
    """Appends one-record batches whose timestamps are `since_ms` plus their offset."""
    for _ in range(batches):
        append(log, batch_of(value, timestamp_ms=since_ms + log.end_offset))


def names(disk: SimDisk, suffix: str = "") -> list[str]:
    return sorted(name for name in disk.listdir(PATH) if name.endswith(suffix))


def copy_of(disk: SimDisk) -> SimDisk:
    """The same files on another disk, all synced."""
    return disk.crash(Crash.KEPT, random.Random(0))


def corrupt(disk: SimDisk, name: str, byte: int, mask: int = 0x01) -> None:
    """Flips bits of one byte of a file, as rot does: on the platter and in every reader's eyes."""
    inode = disk._inode(PATH / name)
    inode.content[byte] ^= mask
    inode.durable[byte] ^= mask
