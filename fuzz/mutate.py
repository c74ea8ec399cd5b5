"""Random damage to inputs that were sound: the fallback where no coverage-guided fuzzer is installed."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

BYTES_MAX = 16 * 1024
EDGES = (0, 1, -1, 2, 7, 127, 128, 255, 256, 32767, -32768, 65535, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63))
VARINT_EDGES = (
    b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x7f", b"\xff" * 9 + b"\x01", b"\xff" * 12,
    b"\x80" * 5 + b"\x00", b"\x80\x01", b"\xfe\xff\xff\xff\x0f",
)  # fmt: skip

Damage = Callable[[random.Random, bytearray, Sequence[bytes]], None]


def mutated(chance: random.Random, seeds: Sequence[bytes]) -> bytes:
    """One of the seeds with one to six kinds of damage done to it."""
    out = bytearray(chance.choice(seeds))
    for _ in range(chance.choice((1, 1, 1, 2, 3, 6))):
        chance.choice(DAMAGES)(chance, out, seeds)
    return bytes(out[:BYTES_MAX])


def reframed(chance: random.Random, frames: Sequence[bytes]) -> bytes:
    """One of the frames damaged, most of the time with a size prefix that is right again."""
    frame = bytearray(mutated(chance, frames))
    if chance.random() < 0.9 and len(frame) > 4:
        frame[:4] = (len(frame) - 4).to_bytes(4, "big")
    return bytes(frame)


def _at(chance: random.Random, out: bytearray) -> int:
    return chance.randrange(len(out)) if out else 0


def _flip_bit(chance: random.Random, out: bytearray, _: Sequence[bytes]) -> None:
    if out:
        out[_at(chance, out)] ^= 1 << chance.randrange(8)


def _set_byte(chance: random.Random, out: bytearray, _: Sequence[bytes]) -> None:
    if out:
        out[_at(chance, out)] = chance.randrange(256)


def _set_edge(chance: random.Random, out: bytearray, _: Sequence[bytes]) -> None:
    size = chance.choice((1, 2, 4, 8))
    at = _at(chance, out)
    out[at : at + size] = (chance.choice(EDGES) % (1 << 8 * size)).to_bytes(size, "big")


def _set_varint(chance: random.Random, out: bytearray, _: Sequence[bytes]) -> None:
    at = _at(chance, out)
    out[at : at + chance.randrange(3)] = chance.choice(VARINT_EDGES)


def _delete(chance: random.Random, out: bytearray, _: Sequence[bytes]) -> None:
    at = _at(chance, out)
    del out[at : at + chance.choice((1, 1, 2, 4, 20))]


def _cut(chance: random.Random, out: bytearray, _: Sequence[bytes]) -> None:
    del out[_at(chance, out) :]


def _insert(chance: random.Random, out: bytearray, _: Sequence[bytes]) -> None:
    at = _at(chance, out)
    out[at:at] = chance.randbytes(chance.choice((1, 1, 2, 4, 20)))


def _repeat(chance: random.Random, out: bytearray, _: Sequence[bytes]) -> None:
    at = _at(chance, out)
    out[at:at] = out[at : at + chance.randrange(1, 40)] * chance.choice((1, 2, 30))


def _splice(chance: random.Random, out: bytearray, seeds: Sequence[bytes]) -> None:
    other = chance.choice(seeds)
    if other:
        start = chance.randrange(len(other))
        out[_at(chance, out) :] = other[start:]


DAMAGES: tuple[Damage, ...] = (
    _flip_bit, _flip_bit, _set_byte, _set_byte, _set_edge, _set_edge, _set_varint,
    _delete, _cut, _insert, _repeat, _splice,
)  # fmt: skip
