"""Compaction keeps the newest record of every key, and nobody notices but the disk."""

from __future__ import annotations

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sim.workload import PATH
from tests.unit.log.compacted import CONFIG, DELETE_RETENTION_MS, CompactedLog, Pair
from tests.unit.log.logs import corrupt, names

from braidmq.log import doctor
from braidmq.log.compaction import CompactionLimits, compact
from braidmq.log.key_map import KeyMap
from braidmq.wire.compress import Codec
from braidmq.wire.errors import ApiError, ErrorCode
from braidmq.wire.records import build_batch, parse_header

KEYS = st.sampled_from([b"a", b"b", b"c", b"d", b"e", b"f"])
PAIRS = st.lists(st.tuples(KEYS, st.one_of(st.none(), st.binary(max_size=60))), min_size=1, max_size=5)
BATCHES = st.lists(st.tuples(PAIRS, st.sampled_from(Codec)), min_size=1, max_size=14)


@given(
    rounds=st.lists(BATCHES, min_size=1, max_size=4), keys_max=st.integers(1, 8), pass_ms=st.integers(0, 2000)
)
@settings(max_examples=60, deadline=None)
def test_every_key_keeps_its_last_value_whatever_is_written(
    rounds: list[list[tuple[list[Pair], Codec]]], keys_max: int, pass_ms: int
) -> None:
    """L9: a compacted log says the same as a dict, in several passes when the keys do not fit the memory."""
    limits = CompactionLimits(dirty_ratio_min=0.0, map_bytes_max=32 * (keys_max + 1))
    compacted = CompactedLog(limits=limits)
    for batches in rounds:
        for pairs, codec in batches:
            compacted.append(*pairs, codec=codec)
        compacted.clock.advance_ms(pass_ms)
        compacted.end_segment()
        compacted.compact_all()
        compacted.check()
        keys = [record.key for record in compacted.records()]
        assert len(keys) == len(set(keys)), "of every key one record is left"
    compacted.log.close()
    compacted.open()
    compacted.check()
    assert doctor.verify(compacted.disk, PATH) == []


def test_superseded_records_go_and_offsets_stay() -> None:
    """L9: what is left has the offsets it always had, in batches that cover the same offsets."""
    compacted = CompactedLog()
    compacted.append((b"a", b"1"), (b"b", b"1"), (b"c", b"1"))
    compacted.append((b"a", b"2"))
    compacted.append((b"b", b"2"), (b"a", b"3"))
    compacted.end_segment()
    job = compacted.compact()
    assert job is not None
    assert job.bytes_after < job.bytes_before
    assert compacted.offsets() == [2, 4, 5]
    assert [(header.base_offset, header.last_offset) for header, _ in compacted.batches()] == [
        (0, 2),
        (3, 3),
        (4, 5),
    ]
    compacted.check()
    assert compacted.compact() is None, "nothing is left to do"


def test_gaps_side_by_side_become_one_small_batch() -> None:
    """L9: a key written a thousand times takes the room of one."""
    compacted = CompactedLog()
    for number in range(1000):
        compacted.append((b"a", b"%d" % number))
    compacted.end_segment()
    compacted.compact()
    assert compacted.offsets() == [999]
    assert len(names(compacted.disk, ".log")) == 1, "small segments were put together"
    compacted.append((b"a", b"again"))
    compacted.end_segment()
    compacted.compact()
    assert [header.record_count for header, _ in compacted.batches()] == [0, 1]
    compacted.check()


def test_a_tombstone_stays_for_its_time_and_then_goes() -> None:
    """L9: readers on their way see the deletion; after delete.retention.ms it takes no room."""
    compacted = CompactedLog()
    compacted.append((b"a", b"1"), (b"b", b"1"))
    compacted.append((b"a", None))
    compacted.end_segment()
    compacted.compact()
    assert compacted.offsets() == [1, 2]
    compacted.clock.advance_ms(DELETE_RETENTION_MS - 5)
    compacted.append((b"c", b"1"))
    compacted.end_segment()
    compacted.compact()
    assert compacted.offsets() == [1, 2, 3]
    compacted.clock.advance_ms(10)
    compacted.append((b"d", b"1"))
    compacted.end_segment()
    compacted.compact()
    assert compacted.offsets() == [1, 3, 4]
    compacted.check()


def test_the_newest_batch_of_a_producer_stays_for_its_sequence_number() -> None:
    """L9: even when the producer snapshot is lost, a retry is not written twice."""
    compacted = CompactedLog()
    compacted.append((b"a", b"1"), (b"b", b"1"), producer_id=7, base_sequence=0)
    last = build_batch([(b"a", b"2", [], 1)], Codec.GZIP, 2, 7, 0)
    compacted.log.append(memoryview(bytearray(last)), parse_header(last))
    compacted.append((b"a", b"3"), (b"b", b"3"))
    compacted.end_segment()
    compacted.compact()
    assert [(header.last_offset, header.record_count) for header, _ in compacted.batches()] == [
        (1, 0),
        (2, 0),
        (4, 2),
    ]
    compacted.log.close()
    compacted.disk.unlink(PATH / "producers")
    compacted.open()
    again = compacted.log.append(memoryview(bytearray(last)), parse_header(last))
    assert (again.base_offset, again.duplicate) == (2, True)


def test_aborted_records_go_and_hide_nothing() -> None:
    """L9: what a transaction took back does not count as the newest of its key."""
    compacted = CompactedLog()
    compacted.append((b"a", b"1"), (b"b", b"1"))
    compacted.append((b"a", b"never"), producer_id=7, base_sequence=0, transactional=True)
    compacted.mark(7, commit=False)
    compacted.append((b"b", b"2"), producer_id=8, base_sequence=0, transactional=True)
    compacted.expect([(b"b", b"2")])
    compacted.mark(8, commit=True)
    compacted.append((b"z", b"1"))
    compacted.end_segment()
    compacted.compact()
    assert compacted.offsets() == [0, 4, 6]
    controls = [header.base_offset for header, _ in compacted.batches() if header.is_control]
    assert controls == [3, 5], "markers stay for a while"
    compacted.clock.advance_ms(DELETE_RETENTION_MS + 1)
    compacted.append((b"z", b"2"))
    compacted.end_segment()
    compacted.compact()
    controls = [header.base_offset for header, _ in compacted.batches() if header.is_control]
    assert controls == [5], "and as long as their transaction has records"
    compacted.check()


def test_a_reader_keeps_the_file_it_has_while_the_next_gets_the_new_one() -> None:
    """L9: compaction blocks no reader and pulls nothing from under one."""
    compacted = CompactedLog()
    for number in range(20):
        compacted.append((b"a", b"%d" % number))
    compacted.end_segment()
    slice_before = compacted.log.read(0, 100_000, compacted.log.end_offset)
    assert slice_before is not None
    content = slice_before.read()
    compacted.compact()
    assert slice_before.read() == content
    slice_before.release()
    assert compacted.offsets() == [19]
    compacted.log.abandon()
    assert compacted.disk.open_files == 0


def test_appends_and_reads_go_on_between_the_steps_of_a_job() -> None:
    """L9: the log works while its segments change places."""
    compacted = CompactedLog()
    for number in range(60):
        compacted.append((b"%d" % (number % 7), b"x" * 40))
    compacted.end_segment()
    job = compacted.compactor.begin(compacted.clock.now_ms, compacted.log.end_offset, CONFIG)
    assert job is not None
    assert compacted.compactor.begin(compacted.clock.now_ms, compacted.log.end_offset, CONFIG) is None
    while not job.ended:
        job.run()
        compacted.append((b"1", b"meanwhile"))
        compacted.check()
        compacted.compactor.done(job)
        compacted.check()


def test_a_job_whose_segments_are_deleted_meanwhile_changes_nothing() -> None:
    """L9: retention may win the race."""
    compacted = CompactedLog()
    for number in range(60):
        compacted.append((b"a", b"%d" % number))
    compacted.end_segment()
    job = compacted.compactor.begin(compacted.clock.now_ms, compacted.log.end_offset, CONFIG)
    assert job is not None
    job.run()
    assert compacted.log.drop_oldest()
    compacted.compactor.done(job)
    job.run()
    compacted.compactor.done(job)
    assert job.ended
    assert names(compacted.disk, ".swap") == []
    assert not any("cleaned" in name for name in names(compacted.disk))
    assert compacted.offsets()[-1] == 59


def test_a_job_whose_segments_are_cut_meanwhile_brings_nothing_back() -> None:
    """L9: what a follower had to cut off stays cut off."""
    compacted = CompactedLog()
    for number in range(8):
        compacted.append((b"%d" % (number % 5), b"x"))
    compacted.end_segment()
    job = compacted.compactor.begin(compacted.clock.now_ms, compacted.log.end_offset, CONFIG)
    assert job is not None
    job.run()
    compacted.log.truncate_to(4)
    compacted.compactor.done(job)
    job.run()
    compacted.compactor.done(job)
    assert job.ended
    assert compacted.offsets() == [0, 1, 2, 3]


def test_a_gap_over_several_leader_epochs_is_sound() -> None:
    """L9: every stored epoch is still the one that wrote its offset, also without a checkpoint."""
    compacted = CompactedLog()
    for leader_epoch in range(4):
        for value in (b"1", b"2"):
            batch = build_batch([(b"a", value, [], 1)])
            compacted.log.append(memoryview(batch), parse_header(batch), leader_epoch)
    compacted.end_segment()
    compacted.compact()
    compacted.log.close()
    for name in ("producers", "checkpoint"):
        compacted.open()
        assert compacted.offsets() == [7]
        assert compacted.log.end_offset_for_epoch(3)[0] == 3
        assert doctor.verify(compacted.disk, PATH) == []
        compacted.log.abandon()
        if compacted.disk.exists(PATH / name):
            compacted.disk.unlink(PATH / name)
    compacted.open()
    assert compacted.offsets() == [7]


def test_a_round_waits_until_enough_is_dirty() -> None:
    """L9: min.cleanable.dirty.ratio."""
    compacted = CompactedLog(limits=CompactionLimits(dirty_ratio_min=0.5))
    for number in range(100):
        compacted.append((b"%d" % number, b"x" * 20))
    compacted.end_segment()
    assert compacted.compact() is not None
    for number in range(20):
        compacted.append((b"%d" % number, b"y" * 20))
    compacted.end_segment()
    assert compacted.compact() is None
    for number in range(100):
        compacted.append((b"%d" % number, b"z" * 20))
    compacted.end_segment()
    assert compacted.compact() is not None
    compacted.check()


def test_nothing_at_or_past_the_limit_is_touched() -> None:
    """L9: undecided transactions and the open segment are left alone."""
    compacted = CompactedLog()
    for number in range(40):
        compacted.append((b"a", b"%d" % number))
        if number % 10 == 9:
            compacted.end_segment()
    assert compact(compacted.compactor, compacted.clock.now_ms, 15, CONFIG) is not None
    assert compacted.offsets() == list(range(9, 40))
    assert compact(compacted.compactor, compacted.clock.now_ms, 15, CONFIG) is None


def test_young_segments_wait_for_their_lag() -> None:
    """L9: min.compaction.lag.ms."""
    compacted = CompactedLog(limits=CompactionLimits(dirty_ratio_min=0.0, lag_min_ms=1_000))
    compacted.append((b"a", b"1"))
    compacted.append((b"a", b"2"))
    compacted.end_segment()
    assert compacted.compact() is None
    compacted.clock.advance_ms(1_000)
    assert compacted.compact() is not None
    assert compacted.offsets() == [1]


def test_old_records_are_compacted_however_few_they_are() -> None:
    """L9: max.compaction.lag.ms, counted from the first record no round has looked at, and once only."""
    compacted = CompactedLog(limits=CompactionLimits(dirty_ratio_min=0.9, lag_max_ms=1_000))
    for number in range(100):
        compacted.append((b"%d" % number, b"x" * 20))
    compacted.end_segment()
    assert compacted.compact() is not None
    compacted.clock.advance_ms(5_000)
    assert compacted.compact() is None
    compacted.append((b"1", None))
    compacted.end_segment()
    compacted.clock.advance_ms(1_000)
    assert compacted.compact() is None
    compacted.clock.advance_ms(1)
    assert compacted.compact() is not None
    assert 1 not in compacted.offsets()
    assert compacted.compact() is None
    compacted.check()


def test_a_lag_at_least_wins_over_a_lag_at_most() -> None:
    """L9: what may not be compacted yet is not, although it is overdue."""
    limits = CompactionLimits(dirty_ratio_min=0.9, lag_min_ms=1_000, lag_max_ms=500)
    compacted = CompactedLog(limits=limits)
    compacted.append((b"a", b"1"), (b"a", b"2"))
    compacted.end_segment()
    compacted.clock.advance_ms(900)
    assert compacted.compact() is None
    compacted.clock.advance_ms(100)
    assert compacted.compact() is not None


def test_damage_is_reported_and_not_sealed_with_a_new_checksum() -> None:
    """L9: a flipped bit stops the round; the segment stays as it is for the doctor."""
    compacted = CompactedLog()
    compacted.append((b"a", b"1"))
    compacted.append((b"a", b"2"))
    compacted.end_segment()
    corrupt(compacted.disk, names(compacted.disk, ".log")[0], 70)
    before = compacted.disk.read_file(PATH / names(compacted.disk, ".log")[0])
    with pytest.raises(ApiError) as refused:
        compacted.compact()
    assert refused.value.code is ErrorCode.CORRUPT_MESSAGE
    assert compacted.disk.read_file(PATH / names(compacted.disk, ".log")[0]) == before
    assert not any("cleaned" in name or "swap" in name for name in names(compacted.disk))


def test_a_batch_that_cannot_be_opened_stays_and_stops_nothing() -> None:
    """L9: a producer that compressed garbage cannot keep a topic from being compacted."""
    compacted = CompactedLog()
    compacted.append((b"a", b"1"))
    garbage = build_batch([(b"a", b"x" * 40, [], 1)], Codec.GZIP)
    garbage[61:] = bytes(len(garbage) - 61)
    garbage[17:21] = crc32c(garbage[21:]).to_bytes(4, "big")
    compacted.log.append(memoryview(garbage), parse_header(garbage))
    compacted.append((b"a", b"2"))
    compacted.end_segment()
    compacted.compact()
    assert [header.record_count for header, _ in compacted.batches()] == [0, 1, 1]


def test_a_full_disk_ends_the_round_and_leaves_the_log_alone() -> None:
    """L9: compaction needs room for one segment; without it, nothing is lost."""
    compacted = CompactedLog()
    for number in range(60):
        compacted.append((b"%d" % (number % 7), b"x" * 40))
    compacted.end_segment()
    compacted.disk.room_bytes = 200
    with pytest.raises(OSError, match="no space"):
        compacted.compact()
    compacted.check()
    compacted.disk.room_bytes = None
    assert compacted.compact() is not None
    compacted.check()


@given(st.lists(st.tuples(st.binary(max_size=3), st.integers(0, 2**62)), max_size=60), st.integers(1, 40))
def test_a_key_map_is_a_dict_that_can_be_full(puts: list[tuple[bytes, int]], keys_max: int) -> None:
    """L9: hashes of keys in fixed memory."""
    found, expected = KeyMap(keys_max), dict[bytes, int]()
    for key, offset in puts:
        fits = key in expected or len(expected) < keys_max
        assert found.put(key, offset) is fits
        if fits:
            expected[key] = offset
    assert all(found.get(key) == expected.get(key, -1) for key, _ in puts)
    assert KeyMap.keys_in(found.size_bytes) <= keys_max + 12
