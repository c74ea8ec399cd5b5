"""Power is cut after every disk operation of a partition in which producers open, commit and abort.

What recovery knows of transactions, from a snapshot and the batches behind it, must be what anybody would
read from the log as it was found: which are open, which were aborted, and how far it is stable.
"""

from __future__ import annotations

import random

import pytest
from tests.sim.clock import SimClock
from tests.sim.disk import Crash, SimDisk
from tests.sim.workload import checkpoint, flush, open_log, read_batches, small_config

from braidmq.log.log import Log
from braidmq.log.transactions import EndMarker, MarkerType, PartitionTransactions, parse_end_marker
from braidmq.wire.errors import ApiError
from braidmq.wire.records import build_batch, parse_header

WORKLOADS = 6
STEPS = 50
PRODUCERS = 4
CONFIG = small_config(retention_bytes="-1")


class Producers:
    """Producers that write and end transactions by protocol 2: each end raises the epoch."""

    def __init__(self, disk: SimDisk, seed: int) -> None:
        self.disk = disk
        self.clock = SimClock()
        self.chance = random.Random(seed)
        self.log = open_log(disk, self.clock, CONFIG)
        self.epochs = [0] * PRODUCERS
        self.sequences = [0] * PRODUCERS

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.clock.advance_ms(10)
            step = self.chance.choices(
                [self.write, self.end, self.flush, self.checkpoint, self.reopen], [10, 5, 4, 2, 1]
            )[0]
            step()

    def write(self) -> None:
        number = self.chance.randrange(PRODUCERS)
        batch = build_batch(
            [(b"k", b"v" * 40, [], self.clock.now_ms)],
            producer_id=number,
            producer_epoch=self.epochs[number],
            base_sequence=self.sequences[number],
            transactional=True,
        )
        header = parse_header(batch)
        guard = self.log.producers.known_transactions().begin_verification(header)
        self.log.append(memoryview(batch), header, guard=guard)
        self.sequences[number] += 1

    def end(self) -> None:
        number = self.chance.randrange(PRODUCERS)
        marker = EndMarker(number, self.epochs[number] + 1, self.chance.choice(list(MarkerType)), 0)
        if self.log.producers.known_transactions().check_marker(marker, 2):
            self.log.append_marker(marker)
        self.epochs[number] += 1
        self.sequences[number] = 0

    def flush(self) -> None:
        flush(self.log)

    def checkpoint(self) -> None:
        checkpoint(self.log)

    def reopen(self) -> None:
        self.log.close()
        self.log = open_log(self.disk, self.clock, CONFIG)


def told_by_the_log(log: Log) -> PartitionTransactions:
    """All that the log's own bytes say, read from its first batch on."""
    known = PartitionTransactions()
    for offset, batch in read_batches(log, log.start_offset, log.end_offset):
        marker = parse_end_marker(batch)
        if marker is None:
            known.append(parse_header(batch), offset)
        else:
            known.end(marker, offset)
    return known


def check(disk: SimDisk, clock: SimClock) -> None:
    log = open_log(disk, clock, CONFIG)
    told = told_by_the_log(log)
    known = log.producers.known_transactions()
    end = log.end_offset
    assert known.open_transactions() == told.open_transactions()
    assert known.last_stable_offset(end) == told.last_stable_offset(end)
    assert known.aborted_between(0, end) == told.aborted_between(0, end)
    for opened in known.open_transactions():
        # Several ends may have been lost, of which the snapshot knows only the epoch.
        epoch = max(opened.producer_epoch + 1, known.producer_epoch(opened.producer_id))
        marker = EndMarker(opened.producer_id, epoch, MarkerType.ABORT, 0)
        assert known.check_marker(marker, 2), "what is open can be ended, whatever was lost"


@pytest.mark.parametrize("seed", range(WORKLOADS))
def test_recovery_knows_of_every_transaction_what_the_log_says(seed: int) -> None:
    """T2 L6: snapshot, replay, lost and torn tails; open transactions can always be ended."""
    disk = SimDisk()
    producers = Producers(disk, seed)
    chance = random.Random(seed + 1_000)
    images = 0

    def cut(_: str) -> None:
        nonlocal images
        for crash in (Crash.LOST, Crash.KEPT, Crash.TORN, Crash.REORDERED):
            images += 1
            check(disk.crash(crash, chance), producers.clock)

    disk.on_operation = cut
    producers.run(STEPS)
    assert images > STEPS


@pytest.mark.parametrize("damage", ["lost", "flipped"])
def test_a_damaged_snapshot_is_made_good_from_the_log(damage: str) -> None:
    """T2 L6: and so is one of an earlier format."""
    disk = SimDisk()
    producers = Producers(disk, 99)
    producers.run(STEPS)
    producers.log.close()
    name = producers.log._path + "/producers"
    if damage == "lost":
        disk.unlink(name)
    else:
        disk.write_atomically(name, b"braidpr1" + bytes(40))
    check(disk, producers.clock)
    assert any("snapshot" in note for note in open_log(copied(disk, name), producers.clock, CONFIG).notes)


def copied(disk: SimDisk, name: str) -> SimDisk:
    """The disk again as it was before anybody opened the log: without its snapshot."""
    image = disk.crash(Crash.KEPT, random.Random(0))
    image.unlink(name)
    return image


def test_a_log_cut_behind_settled_transactions_is_read_again() -> None:
    """T2 L10: as a follower cuts what its leader does not have."""
    disk = SimDisk()
    producers = Producers(disk, 5)
    while producers.log.end_offset < 40:
        producers.run(1)
    producers.flush()
    producers.log.truncate_to(20)
    told = told_by_the_log(producers.log)
    known = producers.log.producers.known_transactions()
    assert producers.log.end_offset == 20
    assert known.open_transactions() == told.open_transactions()
    assert known.aborted_between(0, 20) == told.aborted_between(0, 20)


def test_the_first_batch_after_a_raised_epoch_has_sequence_0() -> None:
    """T2 P4: what a producer sent for the transaction before cannot slip into the next (KIP-890)."""
    disk = SimDisk()
    producers = Producers(disk, 1)
    producers.chance = random.Random(0)
    producers.epochs[0] = 0
    batch = build_batch(
        [(b"k", b"v", [], 0)], producer_id=0, producer_epoch=0, base_sequence=0, transactional=True
    )
    guard = producers.log.producers.known_transactions().begin_verification(parse_header(batch))
    producers.log.append(memoryview(batch), parse_header(batch), guard=guard)
    producers.log.append_marker(EndMarker(0, 1, MarkerType.COMMIT, 0))
    producers.log.close()
    log = open_log(disk, producers.clock, CONFIG)
    late = build_batch(
        [(b"k", b"v", [], 0)], producer_id=0, producer_epoch=1, base_sequence=1, transactional=True
    )
    with pytest.raises(ApiError) as refused:
        log.append(memoryview(late), parse_header(late))
    assert refused.value.code.name == "OUT_OF_ORDER_SEQUENCE_NUMBER"
