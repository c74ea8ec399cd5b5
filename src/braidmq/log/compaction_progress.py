"""How far a log was compacted, in a small file of its own.

Below that offset every record was looked at in a round that ended well, and none of an aborted transaction is
left. A file that is missing or damaged means 0, which costs a round and nothing else.
"""

from __future__ import annotations

from braidmq.platform.disk import Disk
from braidmq.wire.checksum import crc32c

PROGRESS_NAME = "compacted"


def read(disk: Disk, path: str) -> int:
    try:
        check, _, offset = disk.read_file(f"{path}/{PROGRESS_NAME}").partition(b" ")
    except FileNotFoundError:
        return 0
    return int(offset) if check == b"%08x" % crc32c(offset) else 0


def write(disk: Disk, path: str, offset: int) -> None:
    """Blocks until it is durable."""
    digits = b"%d" % offset
    disk.write_atomically(f"{path}/{PROGRESS_NAME}", b"%08x %s" % (crc32c(digits), digits))
