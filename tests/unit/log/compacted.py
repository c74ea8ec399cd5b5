"""What the tests of compaction share: a log of keys and values, and what must come out of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tests.sim.clock import SimClock
from tests.sim.disk import SimDisk
from tests.sim.workload import PATH, checkpoint, flush, read_batches
from tests.unit.log.logs import open_log, topic_config

from braidmq.log.compaction import CompactionJob, CompactionLimits, Compactor, compact
from braidmq.log.log import Log
from braidmq.log.transactions import EndMarker, MarkerType
from braidmq.wire.compress import Codec
from braidmq.wire.records import BatchHeader, Record, build_batch, parse_header, records

Pair = tuple[bytes, bytes | None]
DELETE_RETENTION_MS = 1_000
CONFIG = topic_config(delete_retention_ms=str(DELETE_RETENTION_MS))
EAGER = CompactionLimits(dirty_ratio_min=0.0)


class CompactedLog:
    """A log, and beside it every record as it was written and the value that each key must have."""

    def __init__(self, disk: SimDisk | None = None, limits: CompactionLimits = EAGER) -> None:
        self.disk = SimDisk() if disk is None else disk
        self.clock = SimClock()
        self.limits = limits
        self.written: dict[int, Record] = {}
        self.values: dict[bytes, bytes] = {}
        self.open()

    def open(self) -> None:
        self.log: Log = open_log(self.disk, CONFIG, self.clock)
        self.compactor = Compactor(self.log, self.disk, str(PATH), self.limits)

    def append(
        self,
        *pairs: Pair,
        codec: Codec = Codec.NONE,
        producer_id: int = -1,
        base_sequence: int = -1,
        transactional: bool = False,
    ) -> int:
        """Writes a batch of keys and values; its base offset. Of a transaction nothing is expected yet."""
        rows = []
        for key, value in pairs:
            self.clock.advance_ms(1)
            rows.append((key, value, [("h", b"1")], self.clock.now_ms))
        epoch = 0 if producer_id >= 0 else -1
        batch = build_batch(rows, codec, base_sequence, producer_id, epoch, transactional)
        header = parse_header(batch)
        transactions = self.log.producers.known_transactions() if transactional else None
        guard = None if transactions is None else transactions.begin_verification(header)
        base_offset = self.log.append(memoryview(batch), header, guard=guard).base_offset
        self.written |= {record.offset: record for record in records(batch)}
        if not transactional:
            self.expect(pairs)
        return base_offset

    def expect(self, pairs: Sequence[Pair]) -> None:
        for key, value in pairs:
            if value is None:
                self.values.pop(key, None)
            else:
                self.values[key] = value

    def mark(self, producer_id: int, commit: bool) -> None:
        """Ends a transaction as its coordinator does."""
        self.log.append_marker(
            EndMarker(producer_id, 0, MarkerType.COMMIT if commit else MarkerType.ABORT, 0)
        )

    def end_segment(self) -> None:
        """Ends the last segment and makes the recovery point pass it."""
        flush(self.log)
        self.log.roll(self.clock.now_ms)
        checkpoint(self.log)

    def compact(self) -> CompactionJob | None:
        return compact(self.compactor, self.clock.now_ms, self.log.durable_offset, CONFIG)

    def compact_all(self) -> None:
        while self.compact() is not None and self.compactor.cleaned_offset < self.log._active.base_offset:
            pass

    # -- what came out --------------------------------------------------------------------------

    def batches(self) -> list[tuple[BatchHeader, bytes]]:
        found = read_batches(self.log, self.log.start_offset, self.log.end_offset)
        return [(parse_header(content), content) for _, content in found]

    def records(self) -> Iterator[Record]:
        for header, content in self.batches():
            if not header.is_control:
                yield from records(content)

    def offsets(self) -> list[int]:
        return [record.offset for record in self.records()]

    def check(self) -> None:
        """Offsets are covered and never change hands, and each key has its last value."""
        expected = self.log.start_offset
        for header, _ in self.batches():
            assert header.base_offset == expected, "every offset is covered once"
            expected = header.next_offset
        assert expected == self.log.end_offset
        values: dict[bytes, bytes] = {}
        for record in self.records():
            assert record == self.written[record.offset], "a record that stays is the same in all its parts"
            assert record.key is not None
            if record.value is None:
                values.pop(record.key, None)
            else:
                values[record.key] = record.value
        assert values == self.values
