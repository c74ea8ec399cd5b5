"""Compaction of logs with transactions: what was committed last survives, what was aborted never shows.

The reader here does what clients do at read_committed: a fetch names the aborted transactions it reads
through, and from a transaction's first offset on its producer's batches are skipped until its abort marker.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.sim.disk import Crash
from tests.sim.workload import PATH, checkpoint, flush
from tests.unit.log.compacted import CONFIG, DELETE_RETENTION_MS, CompactedLog, Pair

from braidmq.log import doctor
from braidmq.log.compaction import CompactionJob, CompactionLimits
from braidmq.log.log import Log
from braidmq.log.transactions import MarkerType, parse_end_marker
from braidmq.wire.records import HEADER_BYTES, Record, build_batch, parse_header, records

PRODUCERS = (1, 2, 3)
KEYS = st.sampled_from([b"a", b"b", b"c", b"d"])
PAIRS = st.lists(st.tuples(KEYS, st.one_of(st.none(), st.binary(max_size=60))), min_size=1, max_size=3)


def stable_offset(log: Log) -> int:
    return log.producers.known_transactions().last_stable_offset(log.durable_offset)


def read_committed(log: Log, offset: int, max_bytes: int = 700) -> Iterator[Record]:
    """What a client at read_committed gets from `offset` on, fetch by fetch."""
    transactions, stable = log.producers.known_transactions(), stable_offset(log)
    while offset < stable and (found := log.read(offset, max_bytes, stable)) is not None:
        end = log.offset_after(offset, found)
        named = transactions.aborted_between(offset, stable if end is None else end)
        content = found.read()
        found.release()
        aborting: set[int] = set()
        at = 0
        while at + HEADER_BYTES <= len(content) and at + parse_header(content, at).size <= len(content):
            header = parse_header(content, at)
            batch = content[at : at + header.size]
            aborting |= {one.producer_id for one in named if one.first_offset <= header.last_offset}
            named = [one for one in named if one.first_offset > header.last_offset]
            if header.is_control:
                marker = parse_end_marker(batch) if header.record_count else None
                if marker is not None and marker.outcome is MarkerType.ABORT:
                    aborting.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in aborting):
                yield from (record for record in records(batch) if record.offset >= offset)
            at += header.size
            offset = header.next_offset


def values_of(found: Iterator[Record]) -> dict[bytes, bytes]:
    values: dict[bytes, bytes] = {}
    for record in found:
        assert record.key is not None
        values.pop(record.key, None)
        if record.value is not None:
            values[record.key] = record.value
    return values


def transact(compacted: CompactedLog, producer_id: int, sequence: int, *pairs: Pair) -> None:
    compacted.append(*pairs, producer_id=producer_id, base_sequence=sequence, transactional=True)


def compact_stable(compacted: CompactedLog) -> None:
    """One round up to the last stable offset, as the broker begins it."""
    job = compacted.compactor.begin(compacted.clock.now_ms, stable_offset(compacted.log), CONFIG)
    while job is not None and not job.ended:
        job.run()
        compacted.compactor.done(job)


def test_a_committed_value_survives_an_abort_whose_marker_lies_in_a_later_segment() -> None:
    """L9 T2: the aborted record is the newest of its key in the segment, and must not count."""
    compacted = CompactedLog()
    compacted.append((b"a", b"committed"))
    transact(compacted, 7, 0, (b"a", b"aborted"))
    compacted.end_segment()
    compacted.mark(7, commit=False)
    compacted.append((b"z", b"1"))
    flush(compacted.log)
    compact_stable(compacted)
    assert values_of(read_committed(compacted.log, 0)) == {b"a": b"committed", b"z": b"1"}
    compacted.check()


def test_a_committed_value_survives_an_abort_whose_marker_is_not_stable_yet() -> None:
    """L9 T2: the marker lies after the beginning of a transaction that is still open."""
    compacted = CompactedLog()
    compacted.append((b"a", b"committed"))
    transact(compacted, 7, 0, (b"a", b"aborted"))
    compacted.end_segment()
    transact(compacted, 8, 0, (b"b", b"undecided"))
    compacted.mark(7, commit=False)
    flush(compacted.log)
    assert stable_offset(compacted.log) == 2
    compact_stable(compacted)
    assert values_of(read_committed(compacted.log, 0)) == {b"a": b"committed"}
    assert compacted.offsets() == [0, 2]


def test_an_abort_whose_marker_is_compacted_away_hides_nothing_that_follows() -> None:
    """L9 T2: clients would go on skipping the producer's batches, since no marker ends the abort."""
    compacted = CompactedLog()
    transact(compacted, 7, 0, (b"a", b"aborted"))
    compacted.mark(7, commit=False)
    compacted.append((b"z", b"1"))
    compacted.end_segment()
    compact_stable(compacted)
    compacted.clock.advance_ms(DELETE_RETENTION_MS + 1)
    transact(compacted, 7, 1, (b"a", b"committed"))
    compacted.mark(7, commit=True)
    compacted.end_segment()
    compact_stable(compacted)
    assert not any(header.is_control and header.base_offset == 1 for header, _ in compacted.batches())
    assert values_of(read_committed(compacted.log, 0, 100_000)) == {b"a": b"committed", b"z": b"1"}


def test_the_list_of_aborted_transactions_ends_where_compaction_has_been() -> None:
    """L9 T2: a topic of aborts does not make its checkpoints grow for ever, nor after a restart."""
    compacted = CompactedLog()
    for number in range(200):
        transact(compacted, 7, number, (b"%d" % (number % 5), b"aborted"))
        compacted.mark(7, commit=False)
    compacted.append((b"z", b"1"))
    compacted.end_segment()
    known = compacted.log.producers.known_transactions()
    assert len(known.aborted_between(0, compacted.log.end_offset)) == 200
    size_before = len(known.snapshot(compacted.log.end_offset))
    compact_stable(compacted)
    assert known.aborted_between(0, compacted.log.end_offset) == []
    assert len(known.snapshot(compacted.log.end_offset)) <= size_before - 200 * 32
    compacted.log.abandon()
    compacted.open()
    restored = compacted.log.producers.known_transactions()
    assert restored.aborted_between(0, compacted.log.end_offset) == []
    assert values_of(read_committed(compacted.log, 0)) == {b"z": b"1"}


def test_a_start_offset_that_was_not_checkpointed_brings_no_aborted_record_back() -> None:
    """C7 T2: power is lost between the snapshot and the checkpoint that a DeleteRecords waits for."""
    compacted = CompactedLog()
    transact(compacted, 7, 0, (b"a", b"aborted"))
    compacted.mark(7, commit=False)
    compacted.append((b"z", b"1"))
    flush(compacted.log)
    checkpoint(compacted.log)
    compacted.log.delete_before(2)
    job = compacted.log.checkpoint_begin()
    assert job is not None
    images = []
    compacted.disk.on_operation = lambda _: images.append(compacted.disk.crash(Crash.LOST, random.Random(0)))
    job.run()
    for image in images:
        found = CompactedLog(image)
        assert values_of(read_committed(found.log, found.log.start_offset)) == {b"z": b"1"}
    compacted.log.checkpoint_done(job)


def test_a_swap_that_a_power_loss_undoes_brings_no_aborted_record_back() -> None:
    """L9 T2: power is lost during a checkpoint that is written while the rename of a swap is not synced."""
    compacted = CompactedLog()
    transact(compacted, 7, 0, (b"a", b"aborted"))
    compacted.mark(7, commit=False)
    compacted.append((b"z", b"1"))
    compacted.end_segment()
    compaction = compacted.compactor.begin(compacted.clock.now_ms, stable_offset(compacted.log), CONFIG)
    assert compaction is not None
    compaction.run()
    compacted.compactor.done(compaction)
    assert compaction.replaced
    job = compacted.log.checkpoint_begin()
    assert job is not None
    images = []

    def lose_power(_: str) -> None:
        for seed in range(20):
            images.append(compacted.disk.crash(Crash.REORDERED, random.Random(seed)))

    compacted.disk.on_operation = lose_power
    job.run()
    assert images
    for image in images:
        found = CompactedLog(image)
        assert values_of(read_committed(found.log, 0)) == {b"z": b"1"}


class CompactedAgainstDict(RuleBasedStateMachine):
    """The log beside every operation by its offset; what is committed is worked out from those."""

    def __init__(self) -> None:
        super().__init__()
        self.compacted = CompactedLog()
        self.operations: dict[int, tuple[int, list[Pair] | bool]] = {}
        """By offset: producer (-1 for none) with its pairs, or with the outcome that its marker says."""
        self.job: CompactionJob | None = None
        self.sequences = dict.fromkeys(PRODUCERS, 0)

    @initialize(keys_max=st.integers(1, 8))
    def limit_memory(self, keys_max: int) -> None:
        """With few keys in memory a round ends before the last segment that it could clean."""
        limits = CompactionLimits(dirty_ratio_min=0.0, map_bytes_max=32 * (keys_max + 1))
        self.compacted = CompactedLog(limits=limits)

    @property
    def log(self) -> Log:
        return self.compacted.log

    @rule(pairs=PAIRS)
    def write(self, pairs: list[Pair]) -> None:
        self.operations[self.compacted.append(*pairs)] = (-1, pairs)

    @rule(producer_id=st.sampled_from(PRODUCERS), pairs=PAIRS)
    def write_in_a_transaction(self, producer_id: int, pairs: list[Pair]) -> None:
        offset = self.log.end_offset
        transact(self.compacted, producer_id, self.sequences[producer_id], *pairs)
        self.sequences[producer_id] += len(pairs)
        self.operations[offset] = (producer_id, pairs)

    @precondition(lambda self: bool(self.log.producers.known_transactions().open_transactions()))
    @rule(data=st.data(), commit=st.booleans())
    def end_a_transaction(self, data: st.DataObject, commit: bool) -> None:
        opened = self.log.producers.known_transactions().open_transactions()
        producer_id = data.draw(st.sampled_from([one.producer_id for one in opened]))
        self.operations[self.log.end_offset] = (producer_id, commit)
        self.compacted.mark(producer_id, commit)

    @rule(checkpointed=st.booleans())
    def flush(self, checkpointed: bool) -> None:
        flush(self.log)
        if checkpointed:
            checkpoint(self.log)

    @rule()
    def end_segment(self) -> None:
        self.compacted.end_segment()

    @rule(steps=st.integers(1, 8), later_ms=st.sampled_from([1, DELETE_RETENTION_MS + 1]))
    def compact(self, steps: int, later_ms: int) -> None:
        """Some steps of a round, as many as it may take; the next time it goes on where it stopped."""
        self.compacted.clock.advance_ms(later_ms)
        if self.job is None:
            self.job = self.compacted.compactor.begin(
                self.compacted.clock.now_ms, stable_offset(self.log), CONFIG
            )
        while self.job is not None and steps:
            steps -= 1
            self.job.run()
            self.compacted.compactor.done(self.job)
            self.check_committed()
            self.job = None if self.job.ended else self.job

    @rule(crash=st.sampled_from([None, *Crash]), seed=st.integers(0, 2**32))
    def restart(self, crash: Crash | None, seed: int) -> None:
        self.job = None
        if crash is None:
            self.log.close()
        else:
            self.compacted.disk = self.compacted.disk.crash(crash, random.Random(seed))
        self.compacted.open()
        kept = {at: one for at, one in self.operations.items() if at < self.log.end_offset}
        self.operations = kept
        for producer_id in PRODUCERS:
            self.sequences[producer_id] = sum(
                len(what) for who, what in kept.values() if who == producer_id and isinstance(what, list)
            )

    def committed(self) -> dict[int, Pair]:
        """By offset, every record below the last stable offset that was not aborted."""
        stable = stable_offset(self.log)
        found: dict[int, Pair] = {}
        undecided: dict[int, dict[int, Pair]] = {producer_id: {} for producer_id in PRODUCERS}
        for offset, (producer_id, what) in sorted(self.operations.items()):
            if isinstance(what, bool):
                decided, undecided[producer_id] = undecided[producer_id], {}
                found |= decided if what else {}
            else:
                pairs = dict(enumerate(what, offset))
                (found if producer_id < 0 else undecided[producer_id]).update(pairs)
        return {offset: found[offset] for offset in sorted(found) if offset < stable}

    @invariant()
    def check_committed(self) -> None:
        values: dict[bytes, bytes] = {}
        committed = self.committed()
        for key, value in committed.values():
            values.pop(key, None)
            if value is not None:
                values[key] = value
        for max_bytes in (300, 100_000):
            assert values_of(read_committed(self.log, 0, max_bytes)) == values
            for record in read_committed(self.log, self.log.end_offset // 2, max_bytes):
                assert committed[record.offset] == (record.key, record.value)

    def teardown(self) -> None:
        self.log.close()
        if not self.compacted.disk.exists(PATH):
            return  # nothing was written
        findings = doctor.verify(self.compacted.disk, PATH)
        # A crash may cost indexes, which are not synced and are rebuilt when used, and unsynced segments.
        assert [one for one in findings if not one.file.endswith(("index", ".lost"))] == []


TestCompactedAgainstDict = CompactedAgainstDict.TestCase
TestCompactedAgainstDict.__doc__ = "L9 T2 L6: transactions, segments, compaction and crashes in any order."
TestCompactedAgainstDict.settings = settings(max_examples=300, stateful_step_count=40, deadline=None)


def test_a_batch_without_records_left_of_an_abort_names_no_transaction() -> None:
    """L9 T2: the newest batch of a producer stays for its sequence, and opens nothing when it is replayed."""
    compacted = CompactedLog()
    transact(compacted, 7, 0, (b"a", b"aborted"))
    compacted.mark(7, commit=False)
    compacted.append((b"z", b"1"))
    compacted.end_segment()
    compact_stable(compacted)
    compacted.log.close()
    compacted.disk.unlink(PATH / "producers")
    compacted.open()
    assert compacted.log.producers.known_transactions().open_transactions() == []
    assert values_of(read_committed(compacted.log, 0)) == {b"z": b"1"}
    again = build_batch([(b"a", b"aborted", [], 1)], base_sequence=0, producer_id=7, producer_epoch=0)
    assert compacted.log.append(memoryview(again), parse_header(again)).duplicate
