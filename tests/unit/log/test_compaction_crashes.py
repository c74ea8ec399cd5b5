"""Power is cut after every disk operation of a compaction, and of the recovery from it."""

from __future__ import annotations

import errno
import random

import pytest
from tests.sim.disk import Crash, SimDisk
from tests.sim.workload import flush
from tests.unit.log.compacted import CONFIG, CompactedLog
from tests.unit.log.logs import names

from braidmq.wire.compress import Codec

STATES = (*Crash, Crash.REORDERED, Crash.TORN)
SEEDS = 6


def filled(seed: int) -> CompactedLog:
    """A log of several segments: superseded keys, tombstones, a producer, an older compaction."""
    chance = random.Random(seed)
    compacted = CompactedLog()
    sequence = 0
    for part in range(2):
        for _ in range(25):
            pairs = [
                (b"%d" % chance.randint(0, 9), chance.choice((None, chance.randbytes(chance.randint(1, 60)))))
                for _ in range(chance.randint(1, 4))
            ]
            if chance.random() < 0.3:
                compacted.append(*pairs, producer_id=7, base_sequence=sequence)
                sequence += len(pairs)
            else:
                compacted.append(*pairs, codec=chance.choice(list(Codec)))
        compacted.end_segment()
        if part == 0:
            compacted.compact_all()
            compacted.clock.advance_ms(5_000)
    compacted.append((b"open", b"the last segment has records too"))
    flush(compacted.log)
    return compacted


def found_after(image: SimDisk, before: CompactedLog) -> CompactedLog:
    """The log as it is opened from a crashed disk, checked, with nothing half done left."""
    found = CompactedLog(image)
    found.written, found.values = before.written, dict(before.values)
    found.clock = before.clock
    found.check()
    assert found.log.notes == [], "recovery had nothing to cut"
    assert not any("cleaned" in name or "swap" in name for name in names(image))
    return found


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_power_loss_at_any_moment_leaves_the_old_log_or_the_new(seed: int) -> None:
    """L9 L6: no record of a key's newest value is lost or changed, and the next round does its work."""
    compacted = filled(seed)
    chance = random.Random(seed)
    images = 0

    def cut(_: str) -> None:
        nonlocal images
        for state in STATES:
            images += 1
            found = found_after(compacted.disk.crash(state, chance), compacted)
            if chance.random() < 0.2:
                found.compact_all()
                found.check()
                keys = [
                    record.key for record in found.records() if record.offset < found.compactor.cleaned_offset
                ]
                assert len(keys) == len(set(keys))
            found.log.abandon()
            assert found.disk.open_files == 0

    compacted.disk.on_operation = cut
    assert compacted.compact() is not None
    compacted.disk.on_operation = None
    compacted.check()
    assert images > 100


def test_a_power_loss_during_the_recovery_from_one_is_no_different() -> None:
    """L9 L6: finishing and undoing a swap may themselves be interrupted."""
    compacted = filled(seed=99)
    chance = random.Random(99)
    cuts = 0

    def cut(_: str) -> None:
        if not any("swap" in name for name in names(compacted.disk)):
            return
        for state in (Crash.LOST, Crash.KEPT, Crash.REORDERED):
            image = compacted.disk.crash(state, chance)

            def cut_again(_: str, image: SimDisk = image) -> None:
                nonlocal cuts
                if chance.random() < 0.7:
                    return
                cuts += 1
                for second in (Crash.LOST, Crash.KEPT, Crash.REORDERED):
                    found_after(image.crash(second, chance), compacted).log.abandon()

            image.on_operation = cut_again
            found_after(image, compacted).log.abandon()

    compacted.disk.on_operation = cut
    compacted.compact()
    assert cuts > 20


def test_a_disk_that_refuses_to_finish_a_swap_stops_compaction_and_not_the_log() -> None:
    """L9: the log reads on; the next start finishes what could not be finished."""
    compacted = filled(seed=5)
    job = compacted.compactor.begin(compacted.clock.now_ms, compacted.log.durable_offset, CONFIG)
    assert job is not None
    job.run()
    compacted.compactor.done(job)
    assert job.replaced

    def refuse(kind: str) -> None:
        if kind == "sync directory":
            raise OSError(errno.EIO, "planted failure")

    compacted.disk.on_operation = refuse
    with pytest.raises(OSError, match="planted"):
        job.run()
    compacted.compactor.done(job)
    compacted.disk.on_operation = None
    assert compacted.compactor.failed is job.error
    assert compacted.compact() is None
    compacted.check()
    for state in Crash:
        found_after(compacted.disk.crash(state, random.Random(5)), compacted).log.abandon()
