"""Idempotent producers: retries are recognised, gaps refused, the memory bounded."""

from __future__ import annotations

import pytest
from tests.sim.clock import SimClock
from tests.sim.disk import SimDisk
from tests.sim.workload import PATH, checkpoint, flush
from tests.unit.log.logs import append, batch_of, corrupt, names, open_log, topic_config

from braidmq.log.producer_state import BATCHES_KEPT, SEQUENCE_MAX, ProducerLimits, ProducerState
from braidmq.wire.errors import ApiError, ErrorCode
from braidmq.wire.records import parse_header

KEEP = ProducerLimits(expiration_ms=1000, ids_max=3)


def sent(base_sequence: int, records: int = 1, producer_id: int = 9, epoch: int = 0) -> bytearray:
    values = [b"v"] * records
    return batch_of(*values, producer_id=producer_id, producer_epoch=epoch, base_sequence=base_sequence)


def test_a_retry_gets_the_offset_of_the_first_try_and_is_not_written_again() -> None:
    """P4: no duplicates on retry, for each of the last five batches."""
    log = open_log(SimDisk(), topic_config(segment_bytes="100000"))
    for number in range(8):
        assert append(log, sent(2 * number, records=2)).base_offset == 2 * number
    size = log.size_bytes
    for number in range(8 - BATCHES_KEPT, 8):
        assert append(log, sent(2 * number, records=2)) == (2 * number, -1, True)
    assert (log.end_offset, log.size_bytes) == (16, size)


@pytest.mark.parametrize(("base_sequence", "records"), [(0, 1), (3, 1), (5, 1), (7, 1), (100, 1), (4, 2)])
def test_a_gap_or_a_batch_too_old_is_out_of_order(base_sequence: int, records: int) -> None:
    """P4: order is kept; what is neither next nor a known retry is refused and not written."""
    log = open_log(SimDisk(), topic_config(segment_bytes="100000"))
    for number in range(6):
        append(log, sent(number))
    if base_sequence in (3, 5) and records == 1:
        assert append(log, sent(base_sequence)).duplicate
        return
    with pytest.raises(ApiError, match="sequence") as caught:
        append(log, sent(base_sequence, records))
    assert caught.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.end_offset == 6


def test_an_unknown_producer_may_begin_anywhere() -> None:
    """P4: a producer that was forgotten, or whose records expired, goes on where it is."""
    log = open_log(SimDisk())
    assert append(log, sent(1234)).base_offset == 0
    assert append(log, sent(1235)).base_offset == 1


def test_sequences_go_on_with_zero_after_the_largest() -> None:
    """P4: 2^31-1 is followed by 0, also inside a batch."""
    log = open_log(SimDisk())
    append(log, sent(SEQUENCE_MAX - 1, records=2))
    assert not append(log, sent(0)).duplicate
    log = open_log(SimDisk())
    append(log, sent(SEQUENCE_MAX, records=2))
    assert append(log, sent(SEQUENCE_MAX, records=2)).duplicate
    assert not append(log, sent(1)).duplicate


def test_a_new_epoch_begins_at_zero_and_fences_the_old() -> None:
    """P4: INVALID_PRODUCER_EPOCH for a producer that was replaced."""
    log = open_log(SimDisk())
    append(log, sent(0))
    with pytest.raises(ApiError) as caught:
        append(log, sent(1, epoch=1))
    assert caught.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    append(log, sent(0, epoch=1))
    with pytest.raises(ApiError) as caught:
        append(log, sent(1, epoch=0))
    assert caught.value.code is ErrorCode.INVALID_PRODUCER_EPOCH


def test_producers_are_independent() -> None:
    """P4: sequences are per producer id."""
    log = open_log(SimDisk())
    append(log, sent(0, producer_id=1))
    append(log, sent(50, producer_id=2))
    append(log, sent(1, producer_id=1))
    assert {entry.producer_id: entry.last_sequence for entry in list(log.producers)} == {1: 1, 2: 50}


def test_a_refused_write_is_not_remembered() -> None:
    """P4 L7: a batch that the disk refused can be sent again and is stored then."""
    disk = SimDisk()
    log = open_log(disk)
    append(log, sent(0))
    disk.room_bytes = 5
    with pytest.raises(ApiError):
        append(log, sent(1))
    disk.room_bytes = None
    assert append(log, sent(1)) == (1, -1, False)


def test_state_survives_a_clean_restart_and_a_kill() -> None:
    """P4 L6: snapshots and replay of the tail."""
    disk = SimDisk()
    log = open_log(disk)
    append(log, sent(0, records=3))
    flush(log)
    checkpoint(log)
    append(log, sent(3))
    log.abandon()
    log = open_log(disk)
    assert append(log, sent(0, records=3)) == (0, -1, True)
    assert append(log, sent(3)) == (3, -1, True)
    log.close()
    log = open_log(disk)
    assert append(log, sent(3)).duplicate
    assert append(log, sent(4)).base_offset == 4


@pytest.mark.parametrize("harm", ["flip", "remove", "cut"])
def test_a_damaged_snapshot_is_rebuilt_from_the_log(harm: str) -> None:
    """P4 L6: every byte of the snapshot is covered by its CRC, and everything in it can be derived."""
    disk = SimDisk()
    log = open_log(disk)
    for number in range(30):
        append(log, sent(number))
    log.close()
    assert "producers" in names(disk)
    if harm == "flip":
        corrupt(disk, "producers", 25)
    elif harm == "remove":
        disk.unlink(PATH / "producers")
    else:
        disk._inode(PATH / "producers").truncate(20)
    log = open_log(disk)
    assert any("rebuilt" in note for note in log.notes)
    assert append(log, sent(29)) == (29, -1, True)
    log.close()
    assert open_log(disk).notes == []


def test_every_byte_of_a_snapshot_is_checked() -> None:
    """P4 L6: no flipped bit is taken for producer state."""
    state = ProducerState(KEEP)
    for number in range(3):
        state.record(parse_header(sent(number, producer_id=number)), number, 5)
    content = state.snapshot(10)
    assert ProducerState(KEEP).restore(content) == 10
    for byte in range(len(content)):
        for bit in range(8):
            damaged = bytearray(content)
            damaged[byte] ^= 1 << bit
            assert ProducerState(KEEP).restore(bytes(damaged)) is None
        assert ProducerState(KEEP).restore(content[:byte]) is None


def test_silent_producers_are_forgotten_by_time_and_by_number() -> None:
    """P4 L12: memory for producers is bounded; the longest silent goes first."""
    state = ProducerState(KEEP)
    for turn, (producer_id, sequence) in enumerate([(1, 0), (2, 0), (3, 0), (1, 1), (4, 0)]):
        state.record(parse_header(sent(sequence, producer_id=producer_id)), turn, now_ms=100 * turn)
    assert [entry.producer_id for entry in state] == [3, 1, 4]
    state.expire(now_ms=1199)
    assert [entry.producer_id for entry in state] == [3, 1, 4]
    state.expire(now_ms=1300)
    assert [entry.producer_id for entry in state] == [4]


def test_expired_producers_leave_the_snapshot_with_the_next_checkpoint() -> None:
    """P4 L12: the snapshot does not grow for ever."""
    disk, clock = SimDisk(), SimClock()
    log = open_log(disk, clock=clock)
    append(log, sent(0))
    flush(log)
    checkpoint(log)
    before = disk.size(PATH / "producers")
    clock.advance_ms(2 * 86_400_000)
    checkpoint(log)
    assert disk.size(PATH / "producers") < before
    assert list(log.producers) == []


def test_a_snapshot_from_past_the_end_is_not_believed_later() -> None:
    """P4 L6: with checkpoint and tail lost, a lost batch is not taken for stored when others grow there."""
    disk = SimDisk()
    log = open_log(disk, topic_config(segment_bytes="100000"))
    append(log, batch_of(b"v"))
    size = log.size_bytes
    for number in range(4):
        append(log, sent(number))
    log.close()
    disk.unlink(PATH / "checkpoint")
    disk._inode(PATH / names(disk, ".log")[0]).truncate(size)
    log = open_log(disk, topic_config(segment_bytes="100000"))
    assert log.end_offset == 1
    for _ in range(9):
        append(log, batch_of(b"others"))
    flush(log)
    log.abandon()
    log = open_log(disk, topic_config(segment_bytes="100000"))
    assert append(log, sent(3)) == (10, -1, False)
