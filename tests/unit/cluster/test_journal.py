"""What a file of journal entries holds, and whether its unreadable end is torn or damaged."""

from __future__ import annotations

import json
import struct

import pytest

from braidmq.cluster import journal
from braidmq.cluster.journal import Tail
from braidmq.wire.checksum import crc32c

DAMAGED = (Tail.DAMAGED, Tail.DAMAGED_LAST)


def written(*changes: journal.Change) -> tuple[bytes, int]:
    """A journal of changes, and the byte at which the last one begins."""
    content, last = b"", 0
    for change in changes:
        last = len(content)
        content += journal.encode(change, last)
    return content, last


def old_entry(change: journal.Change) -> bytes:
    """An entry as the first releases wrote it: not padded."""
    body = json.dumps(change, separators=(",", ":")).encode()
    return struct.pack(">II", len(body), crc32c(body)) + body


def test_an_entry_cut_off_at_any_byte_leaves_the_earlier_ones() -> None:
    """L6: a torn tail is told from damage, and nothing before it is given up."""
    content, last = written({"a": 1}, {"b": 2})
    assert journal.read(content) == ([{"a": 1}, {"b": 2}], len(content), Tail.NONE)
    for cut in range(last + 1, len(content)):
        assert journal.read(content[:cut]) == ([{"a": 1}], last, Tail.TORN)


def test_a_bit_flipped_anywhere_is_damage() -> None:
    """L6 N4: also in the last entry, whose commit may have been reported as done."""
    for content, last in (
        written({"a": 1}, {"b": 2}),
        (old_entry({"a": 1}) + old_entry({"b": "see @ 64 here"}), len(old_entry({"a": 1}))),
    ):
        for at in range(len(content)):
            for bit in range(8):
                damaged = bytearray(content)
                damaged[at] ^= 1 << bit
                found = journal.read(bytes(damaged))
                assert found.tail is (Tail.DAMAGED if at < last else Tail.DAMAGED_LAST)
                assert found.end == (0 if at < last else last)


def test_a_damaged_last_entry_says_how_to_go_on() -> None:
    """O1 N4: a person has to decide, so the message names both ways."""
    content, last = written({"a": 1}, {"b": 2})
    found = journal.read(content[:-4] + b"XXXX")
    said = journal.complaint("metadata.store", found)
    assert f"metadata.store: the entry at byte {last} is damaged" in said
    assert "backup" in said
    assert "braid doctor DIR --repair" in said
    content = content[:12] + b"X" + content[13:]
    assert "doctor" not in journal.complaint("metadata.store", journal.read(content))


@pytest.mark.parametrize("first_bytes", [1, 200, 480, 501, 3000])
def test_an_entry_whose_sectors_reached_the_disk_in_part_is_torn(first_bytes: int) -> None:
    """L6: a power loss writes any sectors of an unsynced entry; the others read as zeros."""
    content, start = written({"a": "x" * first_bytes}, {"b": "y" * 1800})
    sectors = range(start // 512, (len(content) + 511) // 512)
    for lost in range(1, 2 ** len(sectors)):
        image = bytearray(content)
        for number, sector in enumerate(sectors):
            if lost >> number & 1:
                begin, end = max(sector * 512, start), min(sector * 512 + 512, len(content))
                image[begin:end] = bytes(end - begin)
        assert journal.read(bytes(image)) == ([{"a": "x" * first_bytes}], start, Tail.TORN)


@pytest.mark.parametrize("zeros", [1, 3, 8, 4096])
def test_a_tail_of_zeros_is_torn(zeros: int) -> None:
    """L6: a power loss may leave a file longer than what was written to it."""
    content, _ = written({"a": 1}, {"b": 2})
    assert journal.read(content + bytes(zeros)) == ([{"a": 1}, {"b": 2}], len(content), Tail.TORN)


def test_a_torn_entry_does_not_excuse_damage_to_the_one_before() -> None:
    """L6 N4: the entry before the torn one was reported as done."""
    content, last = written({"a": 1}, {"b": 2})
    damaged = bytearray(content + b"\x00\x00\x01\x00torn" + bytes(100))
    damaged[last + 12] ^= 1
    found = journal.read(bytes(damaged))
    assert found.end == last
    assert found.tail in DAMAGED
