"""What of a file is in memory, as far as the kernel tells, and bringing the rest there."""

from __future__ import annotations

import os

STRIDE_BYTES = 64 * 1024
"""How far apart bytes are looked at: the kernel reads ahead, and lets go, in larger pieces than this."""
READ_BYTES = 256 * 1024
# Linux alone can tell. Elsewhere nothing is known to be in memory, and everything is read first.
_NOWAIT: int | None = getattr(os, "RWF_NOWAIT", None)


def is_resident(fd: int, position: int, size: int) -> bool:
    """Whether bytes can be read without waiting for the disk; looked at in places, not byte by byte."""
    if _NOWAIT is None:
        return False
    byte = bytearray(1)
    try:
        for at in range(position, position + size, STRIDE_BYTES):
            os.preadv(fd, (byte,), at, _NOWAIT)
        os.preadv(fd, (byte,), position + size - 1, _NOWAIT)
    except OSError:
        # EAGAIN: it would wait. Anything else: this file system cannot tell, so it is read to be sure.
        return False
    return True


def read_through(fd: int, position: int, size: int) -> None:
    """Reads bytes so that they are in memory; blocks, with the interpreter free."""
    scratch = memoryview(bytearray(min(READ_BYTES, size)))
    end = position + size
    while position < end:
        count = os.preadv(fd, (scratch[: end - position],), position)
        if count == 0:
            return
        position += count
