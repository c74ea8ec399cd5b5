"""A range of a partition from the segments on this machine's disk, mapped into memory: no broker, no socket.

The broker says where it keeps a partition (DescribeLogDirs), and the driver checks that the directory is
there and belongs to that topic: Braid has the topic's id in the directory's name, Kafka in
`partition.metadata`. A task checks that it runs on the same machine as the driver. It reads only offsets
below the high watermark, and those are never rewritten in place: retention unlinks a file, compaction
replaces it, and the map of an open file keeps its content. Every batch's CRC is checked.

Anything unexpected (a missing file, a damaged or missing batch, a transaction whose outcome only the broker
knows) ends the local part, and the rest is read from the broker.
"""

from __future__ import annotations

import base64
import mmap
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from braidmq.client.cluster import Cluster, TopicPartition
from braidmq.client.errors import ClientError
from braidmq.spark.options import Isolation
from braidmq.spark.source.fetch import CHECKED_BYTES
from braidmq.spark.source.local_index import near
from braidmq.spark.source.log_dirs import describe
from braidmq.wire.batch_walker import check_batches, skip_batches
from braidmq.wire.checksum import crc32c
from braidmq.wire.errors import ApiError
from braidmq.wire.records import CONTROL, TRANSACTIONAL, check_stored

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
SUFFIX = ".log"
DIGITS = 20
BRAID_NAME_CHARACTERS = 200
BRAID_ID_DIGITS = 12


def machine() -> str:
    """Identifies this machine until its next reboot."""
    boot = BOOT_ID.read_text().strip() if BOOT_ID.is_file() else ""
    return f"{socket.gethostname()}/{boot}"


def find_directories(
    cluster: Cluster, topic_ids: Mapping[str, bytes], some: list[TopicPartition]
) -> dict[TopicPartition, str]:
    """The directories of partitions that are on this machine, according to their leaders."""
    found: dict[TopicPartition, str] = {}
    try:
        for connection, group in cluster.by_leader(some):
            if not connection.is_local:
                continue
            answer = describe(connection, group)
            roots = [Path(result.log_dir) for result in answer.results if not result.error_code]
            for at in group:
                if at.topic in topic_ids and (place := _directory(roots, at, topic_ids[at.topic])):
                    found[at] = place
    except (ApiError, ClientError):
        # The broker does not support this, or does not allow it: read over the network.
        return found
    return found


def _directory(roots: list[Path], at: TopicPartition, topic_id: bytes) -> str | None:
    for root in roots:
        braid = f"{at.topic[:BRAID_NAME_CHARACTERS]}.{topic_id.hex()[:BRAID_ID_DIGITS]}"
        place = root / "topics" / braid / str(at.partition)
        # A partition without records has no directory.
        if _readable(place) or (_readable(place.parent) and not place.exists()):
            return str(place)
        if _readable(place := root / str(at)) and _kafka_id(place) == topic_id:
            return str(place)
    return None


def _readable(directory: Path) -> bool:
    return os.access(directory, os.R_OK | os.X_OK)


def _kafka_id(place: Path) -> bytes | None:
    """The topic id in a partition directory of Apache Kafka."""
    with suppress(OSError, ValueError):
        for line in (place / "partition.metadata").read_text().splitlines():
            if line.startswith("topic_id:"):
                return base64.urlsafe_b64decode(line.partition(":")[2].strip() + "==")
    return None


class LocalRange:
    """Reads batches from a partition's directory from `start` on; `position` is the next offset."""

    def __init__(self, directory: str, start: int, end: int, isolation: Isolation) -> None:
        self._directory = directory
        self._end = end
        self._isolation = isolation
        self.position = start

    def batches(self) -> Iterator[memoryview]:
        """Batches in order, some at a time, until `end` or until only the broker can continue."""
        while self.position < self._end:
            before = self.position
            base = self._segment()
            if base is None:
                return
            view = self._map(base)
            if view is None:
                return
            yield from self._segment_batches(view, near(self._file(base), base, view, self.position))
            if self.position == before:
                return

    def _segment(self) -> int | None:
        """The first offset of the segment that holds `position`."""
        names: list[str] = []
        with suppress(OSError):
            names = [path.name for path in Path(self._directory).iterdir()]
        bases = [int(name[:DIGITS]) for name in names if name.endswith(SUFFIX) and name[:DIGITS].isdigit()]
        return max((base for base in bases if base <= self.position), default=None)

    def _file(self, base: int) -> Path:
        return Path(self._directory) / f"{base:0{DIGITS}d}{SUFFIX}"

    def _map(self, base: int) -> memoryview | None:
        """A segment's bytes; they stay readable when the file is unlinked meanwhile."""
        try:
            with open(self._file(base), "rb") as file:
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError):
            # Deleted since the directory was listed, not readable, or empty.
            return None
        mapped.madvise(mmap.MADV_SEQUENTIAL)
        return memoryview(mapped)

    def _segment_batches(self, view: memoryview, at: int) -> Iterator[memoryview]:
        """The batches from `position` on, which is not before the batch at `at`."""
        mask = CONTROL | TRANSACTIONAL if self._isolation is Isolation.READ_COMMITTED else CONTROL
        at = skip_batches(view, at, self.position)
        while self.position < self._end:
            end, following = check_batches(view, at, self._end, mask, CHECKED_BYTES, crc32c)
            if end > at:
                yield view[at:end]
                at, self.position = end, following
                continue
            header = check_stored(view, at, len(view))
            if header is not None and header.base_offset >= self._end:
                # Compaction removed the rest of the range.
                self.position = self._end
            if header is None or header.attributes & mask != CONTROL:
                return
            at, self.position = at + header.size, header.next_offset
