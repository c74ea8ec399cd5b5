"""Records of the internal topic: Kafka's bytes, read back as they were written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.group.events import GroupSnapshot, MemberSnapshot
from braidmq.group.offsets import Committed
from braidmq.group.records import StoredGroup, StoredOffset, group_key, group_record, offset_record, parse
from braidmq.wire.errors import ProtocolError

texts = st.text(max_size=8)
int32s = st.integers(0, 2**31 - 1)
int64s = st.integers(0, 2**62)
commits = st.builds(Committed, int64s, int32s, texts, int64s, st.none())
members = st.builds(
    MemberSnapshot,
    texts,
    st.none() | texts,
    texts,
    texts,
    int32s,
    int32s,
    st.binary(max_size=8),
    st.binary(max_size=8),
)
snapshots = st.builds(
    GroupSnapshot,
    texts,
    texts,
    int32s,
    st.none() | texts,
    st.none() | texts,
    st.lists(members, max_size=3).map(tuple),
)


def test_an_offset_is_written_in_the_bytes_of_kafka() -> None:
    """C6: version 1 of the key and 3 of the value, as stock tools read them."""
    key, value = offset_record("g1", "orders", 7, Committed(42, 5, "note", 1_700_000_000_000))
    assert key == b"\x00\x01\x00\x02g1\x00\x06orders\x00\x00\x00\x07"
    assert value == (
        b"\x00\x03" + (42).to_bytes(8, "big") + b"\x00\x00\x00\x05\x00\x04note"
        + (1_700_000_000_000).to_bytes(8, "big")
    )  # fmt: skip


def test_a_group_is_written_in_the_bytes_of_kafka() -> None:
    """C6: version 2 of the key and 3 of the value."""
    member = MemberSnapshot("m-1", "i", "c", "/h", 60_000, 10_000, b"sub", b"asg")
    key, value = group_record(GroupSnapshot("g1", "consumer", 3, "range", "m-1", (member,)), 9)
    assert key == group_key("g1") == b"\x00\x02\x00\x02g1"
    assert value == (
        b"\x00\x03\x00\x08consumer\x00\x00\x00\x03\x00\x05range\x00\x03m-1"
        + (9).to_bytes(8, "big")
        + b"\x00\x00\x00\x01\x00\x03m-1\x00\x01i\x00\x01c\x00\x02/h"
        + (60_000).to_bytes(4, "big") + (10_000).to_bytes(4, "big")
        + b"\x00\x00\x00\x03sub\x00\x00\x00\x03asg"
    )  # fmt: skip


@given(texts, texts, int32s, commits)
def test_an_offset_is_read_back(group: str, topic: str, partition: int, committed: Committed) -> None:
    """C6: and its tombstone as the end of it."""
    stored = parse(*offset_record(group, topic, partition, committed))
    assert stored == StoredOffset(group, topic, partition, committed)
    assert parse(*offset_record(group, topic, partition, None)) == StoredOffset(group, topic, partition, None)


def test_an_offset_with_an_end_of_its_own_is_read_back() -> None:
    """C6: such commits are written in the one version that can say so; it knows no leader epoch."""
    committed = Committed(1, -1, "", 5, expire_ms=99)
    assert parse(*offset_record("g", "t", 0, committed)) == StoredOffset("g", "t", 0, committed)


@given(snapshots, int64s)
def test_a_group_is_read_back(snapshot: GroupSnapshot, wall_ms: int) -> None:
    """C6: with the time at which it was stored, and its tombstone as the end of it."""
    assert parse(*group_record(snapshot, wall_ms)) == StoredGroup(snapshot.group_id, snapshot, wall_ms)
    assert parse(group_key(snapshot.group_id), None) == StoredGroup(snapshot.group_id, None, None)


def test_records_of_other_kinds_are_passed_over() -> None:
    """C6: a newer broker may have written keys we have no table for."""
    assert parse(b"\x00\x63whatever", b"\x00\x00") is None


@given(st.binary(max_size=40), st.none() | st.binary(max_size=40))
def test_damaged_records_are_protocol_errors(key: bytes, value: bytes | None) -> None:
    """C6: whatever bytes stand in the topic, nothing but a ProtocolError comes of them."""
    try:
        stored = parse(key, value)
    except ProtocolError:
        return
    assert stored is None or isinstance(stored, StoredGroup | StoredOffset)


def test_a_key_without_a_version_is_a_protocol_error() -> None:
    """C6: and says what is wrong."""
    with pytest.raises(ProtocolError, match="version"):
        parse(b"\x00", None)
