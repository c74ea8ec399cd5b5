"""A little of the disk that is kept back, so that a broker starts on a disk that is full.

A start writes: who runs here, and that it does. On a full disk that would fail, and with it the way to read
what is there and to delete some of it. So a file that says nothing holds the blocks that a start needs, and
goes when they are needed.
"""

from __future__ import annotations

import logging
from pathlib import Path

from braidmq.platform.disk import Disk

NAME = "reserve"
RESERVE_BYTES = 128 * 1024
ROOM_BYTES = 8 * RESERVE_BYTES
"""What must be free before the reserve is made."""

log = logging.getLogger("braid.broker")


def release(disk: Disk, data: Path) -> None:
    """Gives the reserve to a start that would have no room otherwise."""
    if disk.exists(data / NAME) and disk.usage(data).free_bytes < RESERVE_BYTES:
        log.warning("the disk is full: starting with what was kept back of it")
        disk.unlink(data / NAME)


def keep(disk: Disk, data: Path) -> None:
    """Keeps something back if there is room and nothing is kept."""
    try:
        if not disk.exists(data / NAME) and disk.usage(data).free_bytes >= ROOM_BYTES:
            disk.write_atomically(data / NAME, bytes(RESERVE_BYTES))
    except OSError as error:
        log.warning("cannot keep some of the disk back for the next start: %s", error)
