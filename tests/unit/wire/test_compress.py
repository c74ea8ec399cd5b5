"""The four codecs: what one side packs the other opens, and nothing opens to more than was allowed."""

from __future__ import annotations

import gzip
import subprocess
import sys
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import cramjam
import lz4.frame
import pytest
import snappy
import zstandard
from aiokafka import codec as aiokafka_codec
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka import codec as kafka_python_codec

from braidmq.wire.compress import XERIAL_BLOCK_BYTES, XERIAL_HEADER, Codec, deflate, inflate
from braidmq.wire.errors import ApiError, ErrorCode

PACKING = [codec for codec in Codec if codec != Codec.NONE]
MIB = 1024 * 1024
TEXT = b"".join(b"line %d of a text that repeats itself\n" % number for number in range(5000))
FOREIGN_DECODE: dict[Codec, list[Callable[[bytes], bytes]]] = {
    Codec.GZIP: [gzip.decompress, kafka_python_codec.gzip_decode, aiokafka_codec.gzip_decode],
    Codec.SNAPPY: [kafka_python_codec.snappy_decode, aiokafka_codec.snappy_decode],
    Codec.LZ4: [lz4.frame.decompress, kafka_python_codec.lz4_decode, aiokafka_codec.lz4_decode],
    Codec.ZSTD: [
        lambda packed: bytes(cramjam.zstd.decompress(packed)),
        kafka_python_codec.zstd_decode,
        aiokafka_codec.zstd_decode,
    ],
}


def _zstd_without_size(plain: bytes, checksum: bool = False) -> bytes:
    packer = zstandard.ZstdCompressor(write_checksum=checksum).compressobj()
    return packer.compress(plain) + packer.flush()


FOREIGN_ENCODE: list[tuple[str, Codec, Callable[[bytes], bytes]]] = [
    ("python gzip", Codec.GZIP, gzip.compress),
    ("kafka-python gzip", Codec.GZIP, kafka_python_codec.gzip_encode),
    ("two gzip members", Codec.GZIP, lambda plain: gzip.compress(plain[:99]) + gzip.compress(plain[99:])),
    ("raw snappy", Codec.SNAPPY, snappy.compress),
    ("kafka-python xerial", Codec.SNAPPY, kafka_python_codec.snappy_encode),
    ("aiokafka xerial", Codec.SNAPPY, aiokafka_codec.snappy_encode),
    (
        "xerial of tiny blocks",
        Codec.SNAPPY,
        lambda p: kafka_python_codec.snappy_encode(p, xerial_blocksize=7),
    ),
    ("lz4 frame, linked", Codec.LZ4, lambda plain: lz4.frame.compress(plain, block_linked=True)),
    (
        "lz4 frame, checksums",
        Codec.LZ4,
        lambda p: lz4.frame.compress(p, content_checksum=1, block_checksum=1),
    ),
    ("kafka-python lz4", Codec.LZ4, kafka_python_codec.lz4_encode),
    ("aiokafka lz4", Codec.LZ4, aiokafka_codec.lz4_encode),
    ("two lz4 frames", Codec.LZ4, lambda p: lz4.frame.compress(p[:99]) + lz4.frame.compress(p[99:])),
    ("zstd with its size", Codec.ZSTD, zstandard.ZstdCompressor().compress),
    ("zstd without its size", Codec.ZSTD, _zstd_without_size),
    ("zstd with a checksum", Codec.ZSTD, lambda plain: _zstd_without_size(plain, checksum=True)),
    ("kafka-python zstd", Codec.ZSTD, kafka_python_codec.zstd_encode),
    ("two zstd frames", Codec.ZSTD, lambda p: _zstd_without_size(p[:99]) + _zstd_without_size(p[99:])),
]


@pytest.mark.parametrize("codec", Codec)
@settings(max_examples=60, deadline=None)
@given(plain=st.one_of(st.binary(max_size=5000), st.builds(bytes.__mul__, st.binary(), st.integers(0, 3000))))
def test_what_is_deflated_inflates_to_the_same_bytes(codec: Codec, plain: bytes) -> None:
    """L2: every codec gives back what it was given, from any kind of buffer."""
    assert bytes(inflate(codec, deflate(codec, plain), len(plain))) == plain
    assert bytes(inflate(codec, memoryview(deflate(codec, memoryview(plain))), len(plain))) == plain


@pytest.mark.parametrize("codec", PACKING)
@pytest.mark.parametrize("size", [1, XERIAL_BLOCK_BYTES, 65536, 65537, len(TEXT)])
def test_stock_decoders_open_what_we_deflate(codec: Codec, size: int) -> None:
    """F1: the codecs of other clients read ours, at and around every block size."""
    packed = bytes(deflate(codec, TEXT[:size]))
    for decode in FOREIGN_DECODE[codec]:
        assert bytes(decode(packed)) == TEXT[:size]


@pytest.mark.parametrize("codec", PACKING)
def test_incompressible_bytes_survive_stock_decoders(codec: Codec) -> None:
    """F1: blocks that do not shrink are stored, in each format's own way."""
    noise = zlib.compress(TEXT, 9) * 20
    for decode in FOREIGN_DECODE[codec]:
        assert bytes(decode(bytes(deflate(codec, noise)))) == noise


@pytest.mark.parametrize(("name", "codec", "encode"), FOREIGN_ENCODE, ids=[row[0] for row in FOREIGN_ENCODE])
@pytest.mark.parametrize("size", [100, 3000, len(TEXT)])
def test_we_inflate_what_stock_encoders_pack(
    name: str, codec: Codec, encode: Callable[[bytes], bytes], size: int
) -> None:
    """F1: each framing found in the wild opens, also at a cap of exactly its size."""
    plain = TEXT[:size]
    assert bytes(inflate(codec, encode(plain), MIB)) == plain, name
    assert bytes(inflate(codec, encode(plain), len(plain))) == plain, name


def test_threads_deflate_and_inflate_at_the_same_time() -> None:
    """L2: a codec that keeps memory from call to call keeps it for each thread."""

    def mixed_up(number: int) -> int:
        plain = b"%d" % number + TEXT
        return sum(inflate(Codec.ZSTD, deflate(Codec.ZSTD, plain), MIB) != plain for _ in range(200))

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(mixed_up, range(8))) == [0] * 8


def test_lz4_frames_have_independent_blocks_because_java_refuses_linked_ones() -> None:
    """F1: the frame's flags say version 1 and independent blocks."""
    described = lz4.frame.get_frame_info(bytes(deflate(Codec.LZ4, TEXT)))
    assert not described["block_linked"]
    assert described["block_size_id"] == lz4.frame.BLOCKSIZE_MAX64KB


@pytest.mark.parametrize("codec", Codec)
def test_one_byte_over_the_cap_is_refused(codec: Codec) -> None:
    """W5: the cap is exact."""
    packed = deflate(codec, TEXT)
    with pytest.raises(ApiError) as refused:
        inflate(codec, packed, len(TEXT) - 1)
    assert refused.value.code == ErrorCode.MESSAGE_TOO_LARGE
    assert str(len(TEXT) - 1) in refused.value.message


@pytest.mark.parametrize("codec", PACKING)
def test_a_payload_cut_at_any_byte_is_refused(codec: Codec) -> None:
    """W5: half a payload never opens."""
    packed = bytes(deflate(codec, TEXT[:300]))
    whole_blocks = {len(XERIAL_HEADER)} if codec == Codec.SNAPPY else set()
    for cut in range(len(packed)):
        if cut in whole_blocks:
            continue
        with pytest.raises(ApiError) as refused:
            inflate(codec, packed[:cut], 64 * 1024)
        assert refused.value.code == ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("codec", PACKING)
@settings(max_examples=150, deadline=None)
@given(junk=st.binary(max_size=300))
def test_junk_is_refused_or_opens_within_the_cap(codec: Codec, junk: bytes) -> None:
    """W5: any bytes either open or raise the one error."""
    for payload in (junk, XERIAL_HEADER + junk, b"\x28\xb5\x2f\xfd" + junk, b"\x04\x22\x4d\x18" + junk):
        try:
            opened = inflate(codec, payload, 1000)
        except ApiError:
            continue
        assert len(opened) <= 1000


@pytest.mark.parametrize(
    ("block", "words"),
    [
        pytest.param(b"\xff\xff\x3f" + b"\x00" * 10, "1048575 bytes declared", id="a lie"),
        pytest.param(b"\xff\xff\xff\xff\x0f" + b"\x00", "4294967295 bytes declared", id="a large lie"),
        pytest.param(b"\xff\xff\xff\xff\xff\xff", "cannot be inflated", id="a length that does not end"),
    ],
)
@pytest.mark.parametrize("framed", [False, True])
def test_a_snappy_block_that_declares_more_than_it_can_hold_is_refused(
    block: bytes, words: str, framed: bool
) -> None:
    """W5: memory is never taken on a sender's word."""
    payload = XERIAL_HEADER + len(block).to_bytes(4, "big") + block if framed else block
    with pytest.raises(ApiError, match=words) as refused:
        inflate(Codec.SNAPPY, payload, 2**40)
    assert refused.value.code == ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("length", [-1, 0, 6, 2**31 - 1])
def test_a_xerial_block_that_does_not_fit_is_refused(length: int) -> None:
    """W5: block lengths are checked against what is left."""
    payload = XERIAL_HEADER + length.to_bytes(4, "big", signed=True) + b"\x00" * 5
    with pytest.raises(ApiError, match="block of"):
        inflate(Codec.SNAPPY, payload, MIB)


# Bombs: the memory of another process is measured while it refuses them

OPEN_AND_MEASURE = """
import resource, sys
from braidmq.wire.compress import Codec, deflate, inflate
from braidmq.wire.errors import ApiError
codec, bytes_max = Codec(int(sys.argv[1])), int(sys.argv[2])
bomb = sys.stdin.buffer.read()
inflate(codec, deflate(codec, b"warm" * 1000), bytes_max)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for _ in range(3):
    try:
        print(len(inflate(codec, bomb, bytes_max)))
    except ApiError as error:
        print(error.code.name)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def _xerial_bomb(zeros: bytes) -> bytes:
    block = bytes(cramjam.snappy.compress_raw(zeros))
    return XERIAL_HEADER + 4 * (len(block).to_bytes(4, "big") + block)


def _zstd_rle_bomb(_: bytes) -> bytes:
    """512 blocks that each say "128 KiB of zero" in four bytes, under a window of 128 MiB."""
    block = (128 * 1024 << 3 | 1 << 1).to_bytes(3, "little") + b"\x00"
    last = (128 * 1024 << 3 | 1 << 1 | 1).to_bytes(3, "little") + b"\x00"
    return b"\x28\xb5\x2f\xfd" + b"\x00" + b"\x88" + block * 511 + last


def _zstd_of_empty_blocks(plain: bytes) -> bytes:
    """A frame without its size that begins with a hundred thousand blocks of nothing."""
    frame = _zstd_without_size(plain)
    blocks_at = 6
    return frame[:blocks_at] + bytes(3) * 100_000 + frame[blocks_at:]


def _gzip_that_claims_little(zeros: bytes) -> bytes:
    return gzip.compress(zeros)[:-4] + (100).to_bytes(4, "little")


BOMBS: list[tuple[str, Codec, Callable[[bytes], bytes]]] = [
    ("gzip", Codec.GZIP, gzip.compress),
    ("gzip that claims to be small", Codec.GZIP, _gzip_that_claims_little),
    ("gzip of a thousand members", Codec.GZIP, lambda zeros: gzip.compress(zeros[: 64 * 1024]) * 1000),
    ("raw snappy", Codec.SNAPPY, lambda zeros: bytes(cramjam.snappy.compress_raw(zeros))),
    ("xerial snappy", Codec.SNAPPY, _xerial_bomb),
    ("lz4", Codec.LZ4, lz4.frame.compress),
    ("lz4 without its size", Codec.LZ4, lambda zeros: lz4.frame.compress(zeros, store_size=False)),
    ("zstd", Codec.ZSTD, zstandard.ZstdCompressor().compress),
    ("zstd without its size", Codec.ZSTD, _zstd_without_size),
    ("zstd of run-length blocks", Codec.ZSTD, _zstd_rle_bomb),
]


def _opened_elsewhere(codec: Codec, payload: bytes, bytes_max: int) -> tuple[list[bytes], int]:
    """What three attempts gave in another process, and by how many KiB its memory grew."""
    done = subprocess.run(
        [sys.executable, "-c", OPEN_AND_MEASURE, str(int(codec)), str(bytes_max)],
        input=payload, capture_output=True, check=True, env={"PYTHONPATH": ":".join(sys.path)}, timeout=60,
    )  # fmt: skip
    *outcomes, grown_kib = done.stdout.split()
    return outcomes, int(grown_kib)


def test_a_frame_of_empty_blocks_opens() -> None:
    """W5: it is not walked through block by block in Python, and says the same."""
    assert bytes(inflate(Codec.ZSTD, _zstd_of_empty_blocks(TEXT), MIB)) == TEXT


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="ru_maxrss is in KiB on Linux only")
@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_a_damaged_payload_does_not_take_all_that_is_allowed(codec: Codec) -> None:
    """W5: 128 MiB are allowed, and a few hundred damaged bytes take none of it."""
    packed = bytearray(deflate(codec, TEXT))
    packed[len(packed) // 2 :] = bytes(len(packed) // 2)
    outcomes, grown_kib = _opened_elsewhere(codec, bytes(packed), 128 * MIB)
    assert outcomes == [b"CORRUPT_MESSAGE"] * 3
    assert grown_kib < 8 * 1024


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="ru_maxrss is in KiB on Linux only")
@pytest.mark.parametrize(("name", "codec", "pack"), BOMBS, ids=[row[0] for row in BOMBS])
def test_a_bomb_is_refused_without_taking_more_memory_than_the_cap(
    name: str, codec: Codec, pack: Callable[[bytes], bytes]
) -> None:
    """W5: 64 MiB of zeros against a cap of 2 MiB, refused three times within the cap and a few buffers."""
    outcomes, grown_kib = _opened_elsewhere(codec, pack(bytes(64 * MIB)), 2 * MIB)
    assert outcomes == [b"MESSAGE_TOO_LARGE"] * 3, name
    assert grown_kib < 8 * 1024, name
