"""The four codecs of record batches behind two calls: `deflate` and `inflate`.

`inflate` is the only way compressed bytes from outside are opened. Its caller names the most bytes it is
willing to hold, and no codec gets a larger buffer, whatever the input declares about itself: output goes
into a buffer of our own size, never into one sized by the sender. Declared sizes are used as a first
guess and disbelieved when the input is too short to hold that much; a guess that proves too small is
multiplied until the cap.

What is written is what Kafka's Java client can read, as it is the strictest reader: snappy in the framing
of xerial's snappy-java, and lz4 frames of independent 64 KiB blocks (linked blocks are refused there).
What is read is wider: raw snappy too, any lz4 frame, gzip of several members, zstd of several frames.

cramjam does all four, except that zstd, which is what large topics are packed with, is packed and first
opened by zstandard, which keeps its working memory from call to call: 1.2 times as fast for batches of
250 KB, twice for those of 16 KB.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any

import cramjam
import zstandard

from braidmq.wire.errors import ApiError, ErrorCode

Buffer = bytes | bytearray | memoryview

GZIP_LEVEL = 6
# Level 3, but with tables that stay in a core's cache: up to 1.1 times as fast for large batches, as dense.
ZSTD_SETTINGS = zstandard.ZstdCompressionParameters(compression_level=3, hash_log=15, chain_log=16)
XERIAL_MAGIC = b"\x82SNAPPY\x00"
XERIAL_HEADER = XERIAL_MAGIC + b"\x00\x00\x00\x01" + b"\x00\x00\x00\x01"
XERIAL_BLOCK_BYTES = 32 * 1024
# Magic, flags (version 1, independent blocks), block size (64 KiB), and the checksum of those two bytes.
LZ4_HEADER = b"\x04\x22\x4d\x18\x60\x40\x82"
LZ4_BLOCK_BYTES = 64 * 1024
LZ4_STORED = 0x8000_0000
LZ4_END = b"\x00\x00\x00\x00"

# The densest snappy element is a copy of 64 bytes written in 3; a longer claim is a lie.
SNAPPY_RATIO_MAX = 22
GUESS_RATIO = 8
GUESS_RATIO_MAX = 64
GUESS_BYTES_MIN = 4096
GROWTH = 8
ZSTD_WINDOW_BYTES_MAX = 8 * 1024 * 1024
"""What zstandard may keep for a frame that does not tell its size; up to level 19 no more is needed."""
ZSTD_HEADER_BYTES_MAX = 18
ZSTD_BLOCK_HEADER_BYTES = 3
ZSTD_RUN = 1
ZSTD_BLOCKS_MAX = 1024
"""Further than that a frame is not walked through; 128 MB have as many in full blocks."""
# Any bytes that no real output ends with by chance.
END_MARK = bytes.fromhex("d1b54a32d192ed03aef17502108ef2d9")


class Codec(IntEnum):
    """The codec of a batch, as its attributes' lowest three bits name it."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


def deflate(codec: Codec, payload: Buffer) -> Buffer:
    """`payload` compressed; the same object back for `Codec.NONE`."""
    return _DEFLATE[codec](payload)


def inflate(codec: Codec, payload: Buffer, bytes_max: int) -> Buffer:
    """`payload` decompressed into at most `bytes_max` bytes.

    ApiError: MESSAGE_TOO_LARGE when it would need more, CORRUPT_MESSAGE when it is not what `codec` writes.
    """
    if codec == Codec.NONE:
        if len(payload) > bytes_max:
            raise _too_large(codec, bytes_max)
        return payload
    if codec == Codec.SNAPPY:
        return _inflate_snappy(payload, bytes_max)
    if codec == Codec.ZSTD and (plain := _inflate_zstd(payload, bytes_max)) is not None:
        return plain
    return _inflate_growing(codec, payload, bytes_max)


def _too_large(codec: Codec, bytes_max: int) -> ApiError:
    return ApiError(
        ErrorCode.MESSAGE_TOO_LARGE, f"{codec.name.lower()} payload inflates to more than {bytes_max} bytes"
    )


def _corrupt(codec: Codec, why: object) -> ApiError:
    return ApiError(ErrorCode.CORRUPT_MESSAGE, f"{codec.name.lower()} payload cannot be inflated: {why}")


# Reading


def _inflate_growing(codec: Codec, payload: Buffer, bytes_max: int) -> memoryview:
    """Try with a buffer that is probably right, and with larger ones while it comes back full.

    The codecs raise one error for a buffer too small and for a damaged input. What tells them apart is
    whether the output reached the end of the buffer, which a mark there shows: damaged input must not be
    able to make us take all that is allowed.
    """
    into = _DECOMPRESS_INTO[codec]
    capacity = min(_guess_bytes(codec, payload), bytes_max)
    while True:
        room = bytearray(capacity)
        mark = END_MARK[:capacity]
        room[capacity - len(mark) :] = mark
        try:
            return memoryview(room)[: into(payload, room)]
        except cramjam.DecompressionError as error:
            if mark and room.endswith(mark):
                raise _corrupt(codec, error) from None
        if capacity == bytes_max:
            raise _too_large(codec, bytes_max)
        capacity = min(capacity * GROWTH, bytes_max)
        del room


_idle_openers: list[zstandard.ZstdDecompressor] = []
"""One for each thread that was ever in the middle of a frame: zstandard lets the others run meanwhile."""


def _inflate_zstd(payload: Buffer, bytes_max: int) -> bytes | None:
    """The content of one frame that keeps to what is likely; None for all else, which takes the longer way.

    zstandard takes as much memory as a frame declares, and overlooks what follows a frame that declares
    nothing, so both are looked at before.
    """
    declared = _zstd_declared(payload)
    capacity = min(_guess_bytes(Codec.ZSTD, payload), bytes_max)
    if declared > capacity or (not declared and not _zstd_is_one_frame(payload)):
        return None
    try:
        opener = _idle_openers.pop()
    except IndexError:
        opener = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_BYTES_MAX)
    try:
        return opener.decompress(payload, max_output_size=capacity, allow_extra_data=False)
    except zstandard.ZstdError:
        return None
    finally:
        _idle_openers.append(opener)


def _guess_bytes(codec: Codec, payload: Buffer) -> int:
    """How much room to try first: the declared size if believable, else a few times the input."""
    declared = _DECLARED[codec](payload) if codec in _DECLARED else 0
    if 0 < declared <= len(payload) * GUESS_RATIO_MAX:
        return declared
    return max(len(payload) * GUESS_RATIO, GUESS_BYTES_MIN)


def _gzip_declared(payload: Buffer) -> int:
    """The last four bytes of a member: its length modulo 2^32."""
    return int.from_bytes(payload[-4:], "little")


def _zstd_declared(payload: Buffer) -> int:
    """The frame content size of the first frame, or 0 when it has none."""
    return _zstd_header(payload)[0]


def _zstd_header(payload: Buffer) -> tuple[int, int]:
    """How many bytes the first frame declares, or 0, and where its blocks begin (RFC 8878, 3.1.1.1)."""
    if len(payload) < ZSTD_HEADER_BYTES_MAX:
        return 0, len(payload)
    descriptor = payload[4]
    single_segment = descriptor >> 5 & 1
    size_bytes = (single_segment, 2, 4, 8)[descriptor >> 6]
    at = 5 + (1 - single_segment) + (0, 1, 2, 4)[descriptor & 3]
    declared = int.from_bytes(payload[at : at + size_bytes], "little")
    return declared + 256 if size_bytes == 2 else declared, at + size_bytes


def _zstd_is_one_frame(payload: Buffer) -> bool:
    """Whether the payload ends with the last block of its first frame (RFC 8878, 3.1.1.2)."""
    at = _zstd_header(payload)[1]
    for _ in range(ZSTD_BLOCKS_MAX):
        if at + ZSTD_BLOCK_HEADER_BYTES > len(payload):
            break
        block = int.from_bytes(payload[at : at + ZSTD_BLOCK_HEADER_BYTES], "little")
        is_run = block >> 1 & 3 == ZSTD_RUN
        at += ZSTD_BLOCK_HEADER_BYTES + (1 if is_run else block >> 3)
        if block & 1:
            checksum_bytes = 4 * (payload[4] >> 2 & 1)
            return at + checksum_bytes == len(payload)
    return False


def _inflate_snappy(payload: Buffer, bytes_max: int) -> Buffer:
    framed = payload[: len(XERIAL_MAGIC)] == XERIAL_MAGIC
    blocks = _xerial_blocks(payload) if framed else [memoryview(payload)]
    sizes = [_snappy_declared(block) for block in blocks]
    total = sum(sizes)
    if total > bytes_max:
        raise _too_large(Codec.SNAPPY, bytes_max)
    room = memoryview(bytearray(total))
    at = 0
    for block, size in zip(blocks, sizes, strict=True):
        try:
            cramjam.snappy.decompress_raw_into(block, room[at : at + size])
        except cramjam.DecompressionError as error:
            raise _corrupt(Codec.SNAPPY, error) from None
        at += size
    return room


def _xerial_blocks(payload: Buffer) -> list[memoryview]:
    """The raw snappy blocks of xerial's framing: after the header, each after its 4-byte length."""
    view = memoryview(payload)
    blocks = []
    at = len(XERIAL_HEADER)
    if len(view) < at:
        raise _corrupt(Codec.SNAPPY, "cut inside the xerial header")
    while at < len(view):
        size = int.from_bytes(view[at : at + 4], "big", signed=True)
        at += 4
        if size <= 0 or at + size > len(view):
            raise _corrupt(Codec.SNAPPY, f"block of {size} bytes where {len(view) - at} are left")
        blocks.append(view[at : at + size])
        at += size
    return blocks


def _snappy_declared(block: memoryview) -> int:
    """The length a raw block declares, refused when the block is too short to hold that much."""
    try:
        declared = cramjam.snappy.decompress_raw_len(block)
    except cramjam.DecompressionError as error:
        raise _corrupt(Codec.SNAPPY, error) from None
    if declared > len(block) * SNAPPY_RATIO_MAX:
        raise _corrupt(Codec.SNAPPY, f"{declared} bytes declared in a block of {len(block)}")
    return declared


# Writing


def _store(payload: Buffer) -> Buffer:
    return payload


def _deflate_gzip(payload: Buffer) -> Buffer:
    return bytes(cramjam.gzip.compress(payload, GZIP_LEVEL))


_idle_packers: list[zstandard.ZstdCompressor] = []
"""As with those that open: making a new one takes as long as packing 16 KB."""


def _deflate_zstd(payload: Buffer) -> Buffer:
    try:
        packer = _idle_packers.pop()
    except IndexError:
        packer = zstandard.ZstdCompressor(compression_params=ZSTD_SETTINGS)
    try:
        return packer.compress(payload)
    finally:
        _idle_packers.append(packer)


def _deflate_snappy(payload: Buffer) -> Buffer:
    view = memoryview(payload)
    out = bytearray(XERIAL_HEADER)
    for at in range(0, len(view), XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[at : at + XERIAL_BLOCK_BYTES]))
        out += len(block).to_bytes(4, "big")
        out += block
    return out


def _deflate_lz4(payload: Buffer) -> Buffer:
    view = memoryview(payload)
    out = bytearray(LZ4_HEADER)
    for at in range(0, len(view), LZ4_BLOCK_BYTES):
        plain = view[at : at + LZ4_BLOCK_BYTES]
        block = bytes(cramjam.lz4.compress_block(plain, store_size=False))
        if len(block) < len(plain):
            out += len(block).to_bytes(4, "little")
            out += block
        else:
            out += (len(plain) | LZ4_STORED).to_bytes(4, "little")
            out += plain
    out += LZ4_END
    return out


_DEFLATE: dict[Codec, Callable[[Buffer], Buffer]] = {
    Codec.NONE: _store,
    Codec.GZIP: _deflate_gzip,
    Codec.SNAPPY: _deflate_snappy,
    Codec.LZ4: _deflate_lz4,
    Codec.ZSTD: _deflate_zstd,
}
_DECLARED: dict[Codec, Callable[[Buffer], int]] = {Codec.GZIP: _gzip_declared, Codec.ZSTD: _zstd_declared}
_DECOMPRESS_INTO: dict[Codec, Callable[[Any, Any], int]] = {
    Codec.GZIP: cramjam.gzip.decompress_into,
    Codec.LZ4: cramjam.lz4.decompress_into,
    Codec.ZSTD: cramjam.zstd.decompress_into,
}
