"""What a partition knows of transactions: against a naive model, and corner by corner."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.txn.small_broker import batch_of

from braidmq.log.transactions import (
    GUARDS_MAX,
    Aborted,
    EndMarker,
    MarkerType,
    Open,
    PartitionTransactions,
    end_marker,
    parse_end_marker,
)
from braidmq.wire.errors import ApiError, ErrorCode
from braidmq.wire.records import BatchHeader, build_batch, parse_header, stamp

COMMIT, ABORT = MarkerType.COMMIT, MarkerType.ABORT


def header(
    producer_id: int, offset: int = 0, epoch: int = 0, sequence: int = 0, part: bool = True
) -> BatchHeader:
    batch = batch_of(producer_id, epoch, sequence, transactional=part)
    stamp(batch, offset, 0)
    return parse_header(batch)


def marker(producer_id: int, outcome: MarkerType, epoch: int = 0, coordinator_epoch: int = 0) -> EndMarker:
    return EndMarker(producer_id, epoch, outcome, coordinator_epoch)


def told(*steps: str) -> PartitionTransactions:
    """A log of one-record batches: `w1` is producer 1 writing, `c1` and `a1` its markers, `-` any other."""
    known = PartitionTransactions()
    tell(known, 0, *steps)
    return known


def tell(known: PartitionTransactions, offset: int, *steps: str) -> None:
    for at, step in enumerate(steps, offset):
        if step[0] == "w":
            known.append(header(int(step[1:])), at)
        elif step != "-":
            known.end(marker(int(step[1:]), COMMIT if step[0] == "c" else ABORT), at)


def refusal(known: PartitionTransactions, *args: object) -> ErrorCode:
    with pytest.raises(ApiError) as refused:
        known.check(*args)  # type: ignore[arg-type]
    return refused.value.code


# Markers


@given(
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**15 - 1),
    st.sampled_from(MarkerType),
    st.integers(-1, 2**31 - 1),
)
def test_a_marker_is_read_as_it_was_built(producer_id: int, epoch: int, outcome: MarkerType, by: int) -> None:
    """T2: end-transaction markers, as compaction and clients read them too."""
    built = end_marker(EndMarker(producer_id, epoch, outcome, by), timestamp_ms=5)
    found = parse_header(built)
    assert (found.is_control, found.is_transactional, found.base_sequence) == (True, True, -1)
    assert parse_end_marker(built) == EndMarker(producer_id, epoch, outcome, by)


def test_a_marker_has_kafkas_bytes() -> None:
    """T2: key of version and type, value of version and coordinator epoch."""
    built = bytes(end_marker(EndMarker(1, 2, COMMIT, 7), timestamp_ms=0))
    assert built[61:] == bytes.fromhex("20 00 00 00 08 00000001 0c 0000 00000007 00")


def test_control_batches_of_another_kind_are_no_markers() -> None:
    """T2: a leader change, an ordinary batch; one without a key cannot be read."""
    other = build_batch([(b"\x00\x00\x00\x02", b"", (), 0)], transactional=True, control=True)
    assert parse_end_marker(other) is None
    assert parse_end_marker(batch_of(1, 0)) is None
    with pytest.raises(ApiError):
        parse_end_marker(build_batch([(None, b"", (), 0)], transactional=True, control=True))


# The last stable offset and the aborted transactions


def test_the_oldest_open_transaction_holds_the_last_stable_offset() -> None:
    """T2: until its marker is there, and below the high watermark."""
    known = told("-", "w1", "w2", "-")
    assert known.last_stable_offset(4) == 1
    assert known.last_stable_offset(1) == 1
    tell(known, 4, "c1")
    assert (known.last_stable_offset(4), known.last_stable_offset(5)) == (1, 2)
    tell(known, 5, "a2", "-")
    assert [known.last_stable_offset(mark) for mark in (4, 5, 6, 7)] == [1, 2, 6, 7]


def test_aborted_transactions_are_found_by_what_is_fetched() -> None:
    """T2: those with records in the range, each with its first offset."""
    known = told("w1", "w2", "a2", "w3", "c3", "a1", "w4", "a4")
    two, one, four = Aborted(2, 1, 2, 0), Aborted(1, 0, 5, 6), Aborted(4, 6, 7, 8)
    assert known.aborted_between(0, 8) == [two, one, four]
    assert known.aborted_between(3, 8) == [one, four]
    assert known.aborted_between(0, 1) == [one]
    assert known.aborted_between(3, 6) == [one]
    assert known.aborted_between(6, 7) == [four]
    assert known.aborted_between(8, 9) == []


def test_a_marker_without_a_transaction_changes_nothing_for_readers() -> None:
    """T2: a marker may be written twice after a crash, or where nothing was written."""
    known = told("w1", "a1", "a1", "c2")
    assert known.aborted_between(0, 9) == [Aborted(1, 0, 1, 2)]
    assert known.last_stable_offset(4) == 4


def test_retention_forgets_what_nobody_can_ask_for() -> None:
    """T2: an open transaction stays, and the last stable offset is never before the start."""
    known = told("w1", "w2", "a2", "w3", "a3")
    known.begin_at(3)
    known.drop_aborted(3)
    assert known.aborted_between(0, 9) == [Aborted(3, 3, 4, 0)]
    assert (known.last_stable_offset(5), known.open_since(1)) == (3, 0)
    assert known.open_transactions() == [Open(1, 0, 0)]


STEPS = st.lists(st.sampled_from(["w1", "w2", "w3", "c1", "c2", "c3", "a1", "a2", "a3", "-"]), max_size=30)


class Naive:
    """The same from the whole log, the slow way."""

    def __init__(self, steps: list[str], cut: int) -> None:
        opened: dict[str, int] = {}
        self.spans: list[tuple[str, int, int, str]] = []
        for at, step in enumerate(steps[:cut]):
            if step[0] == "w":
                opened.setdefault(step[1:], at)
            elif step != "-" and step[1:] in opened:
                self.spans.append((step[1:], opened.pop(step[1:]), at, step[0]))
        self.open = opened

    def stable(self, mark: int) -> int:
        held = [*self.open.values(), *(first for _, first, last, _ in self.spans if last >= mark)]
        return min([mark, *held])

    def aborted(self, start: int, end: int) -> list[tuple[int, int, int]]:
        return [
            (int(who), first, last)
            for who, first, last, how in self.spans
            if how == "a" and last >= start and first < end
        ]


def agrees(known: PartitionTransactions, steps: list[str], end: int) -> None:
    naive = Naive(steps, end)
    assert {str(one.producer_id): one.first_offset for one in known.open_transactions()} == naive.open
    for mark in range(end + 1):
        assert known.last_stable_offset(mark) == naive.stable(mark)
    for start in range(0, end + 1, 3):
        for upper in range(start, known.last_stable_offset(end) + 1):
            found = known.aborted_between(start, upper)
            assert [one[:3] for one in found] == naive.aborted(start, upper)


@given(STEPS, st.data())
def test_it_agrees_with_the_log_before_and_after_a_cut(steps: list[str], data: st.DataObject) -> None:
    """T2: truncation opens again what ended behind it."""
    known = told(*steps)
    agrees(known, steps, len(steps))
    cut = data.draw(st.integers(0, len(steps)))
    known.truncate_to(cut)
    agrees(known, steps, cut)
    tell(known, cut, *steps[cut:])
    agrees(known, steps, len(steps))


@given(STEPS, st.data())
def test_a_snapshot_and_a_replay_give_the_same(steps: list[str], data: st.DataObject) -> None:
    """T2: also a snapshot of an earlier, durable part of the log."""
    known = told(*steps)
    durable = data.draw(st.integers(0, len(steps)))
    restored = PartitionTransactions()
    assert restored.restore(known.snapshot(durable)) == durable
    agrees(restored, steps, durable)
    tell(restored, durable, *steps[durable:])
    agrees(restored, steps, len(steps))
    assert restored.snapshot(len(steps)) == known.snapshot(len(steps))


@given(STEPS, st.data())
def test_any_flipped_bit_of_a_snapshot_is_noticed(steps: list[str], data: st.DataObject) -> None:
    """T2: then the log is replayed from its beginning."""
    content = bytearray(told(*steps).snapshot(len(steps)))
    flipped = data.draw(st.integers(0, 8 * len(content) - 1))
    content[flipped // 8] ^= 1 << flipped % 8
    assert PartitionTransactions().restore(bytes(content)) is None
    cut = data.draw(st.integers(0, len(content) - 1))
    assert PartitionTransactions().restore(bytes(content[:cut])) is None


def test_what_is_settled_is_forgotten_and_can_be_neither_cut_nor_kept() -> None:
    """T2: memory is bounded by what is not durable yet."""
    known = told("w1", "c1", "w2", "c2", "w3")
    known.settle(3)
    assert (known.last_stable_offset(5), known.last_stable_offset(3)) == (4, 2)
    with pytest.raises(ValueError, match="settled up to 3"):
        known.truncate_to(2)
    with pytest.raises(ValueError, match="settled up to 3"):
        known.snapshot(2)
    known.truncate_to(3)
    assert known.open_transactions() == [Open(2, 0, 2)]


# Who may write


def test_the_first_batch_needs_a_guard_and_the_next_ones_do_not() -> None:
    """T2: the transaction is verified once."""
    known = PartitionTransactions()
    assert known.needs_verification(1, 0)
    assert refusal(known, header(1), None) is ErrorCode.INVALID_TXN_STATE
    guard = known.begin_verification(header(1))
    assert known.begin_verification(header(1, sequence=1)) is guard
    assert refusal(known, header(1), None) is ErrorCode.INVALID_TXN_STATE
    known.check(header(1), guard)
    known.append(header(1), 0)
    assert not known.needs_verification(1, 0)
    assert known.needs_verification(1, 1), "the transaction before has not ended here"
    known.check(header(1, sequence=1), guard)
    known.check(header(1, sequence=1), None)


def test_a_marker_withdraws_the_guards_taken_before_it() -> None:
    """T2: a batch that was verified, and waited until its transaction had ended, is refused (KIP-890)."""
    known = PartitionTransactions()
    guard = known.begin_verification(header(1))
    known.end(marker(1, ABORT), 0)
    assert refusal(known, header(1), guard) is ErrorCode.INVALID_TXN_STATE
    again = known.begin_verification(header(1))
    assert refusal(known, header(1), guard) is ErrorCode.INVALID_TXN_STATE
    known.check(header(1), again)
    known.withdraw(1, guard)
    known.check(header(1), again)
    known.withdraw(1, again)
    assert refusal(known, header(1), again) is ErrorCode.INVALID_TXN_STATE


def test_batches_sent_together_cannot_overtake_each_other_at_the_beginning() -> None:
    """T2: the first to be verified is not always the first to be appended."""
    known = PartitionTransactions()
    known.begin_verification(header(1, sequence=1))
    guard = known.begin_verification(header(1, sequence=0))
    assert refusal(known, header(1, sequence=1), guard) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    known.check(header(1, sequence=0), guard)


def test_an_older_epoch_may_do_nothing_and_a_newer_one_asks_anew() -> None:
    """T2: after a marker that raised the epoch, what was sent before it is refused."""
    known = told("w1")
    known.end(marker(1, COMMIT, epoch=1), 1)
    assert refusal(known, header(1), None) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert refusal(known, header(1, part=False), None) is ErrorCode.INVALID_PRODUCER_EPOCH
    with pytest.raises(ApiError):
        known.begin_verification(header(1))
    guard = known.begin_verification(header(1, epoch=1))
    newer = known.begin_verification(header(1, epoch=2))
    assert refusal(known, header(1, epoch=1), guard) is ErrorCode.INVALID_TXN_STATE
    known.check(header(1, epoch=2), newer)


def test_a_producer_with_an_open_transaction_writes_nothing_beside_it() -> None:
    """T2: neither without the transaction nor with another epoch; others are free to."""
    known = told("w1")
    assert refusal(known, header(1, part=False), None) is ErrorCode.INVALID_TXN_STATE
    assert refusal(known, header(1, epoch=1), None) is ErrorCode.INVALID_TXN_STATE
    known.check(header(2, part=False), None)


def test_guards_are_bounded() -> None:
    """T2: a flood of producer ids takes the oldest guard, not the memory."""
    known = PartitionTransactions()
    first = known.begin_verification(header(0))
    for producer_id in range(1, GUARDS_MAX):
        known.begin_verification(header(producer_id))
    known.check(header(0), first)
    known.begin_verification(header(GUARDS_MAX))
    assert refusal(known, header(0), first) is ErrorCode.INVALID_TXN_STATE


# Which markers are taken


@pytest.mark.parametrize(
    ("steps", "epoch", "version", "taken"),
    [
        ((), 0, 0, True),
        ((), 5, 2, True),
        (("w1",), 0, 0, True),
        (("w1",), 1, 0, True),
        (("w1",), 1, 2, True),
        (("w1",), 0, 2, ErrorCode.INVALID_PRODUCER_EPOCH),
        (("w1", "c1"), 0, 0, True),
        (("w1", "c1"), 0, 2, False),
        (("w1", "c1"), 1, 2, True),
    ],
)
def test_markers_are_taken_once_and_never_late(
    steps: tuple[str, ...], epoch: int, version: int, taken: bool | ErrorCode
) -> None:
    """T2: with protocol 2 a marker is above the epoch it ends, and recognised when it comes again."""
    known = told(*steps)
    if isinstance(taken, bool):
        assert known.check_marker(marker(1, COMMIT, epoch), version) is taken
        return
    with pytest.raises(ApiError) as refused:
        known.check_marker(marker(1, COMMIT, epoch), version)
    assert refused.value.code is taken


def test_a_marker_lost_with_the_end_of_the_log_is_taken_again() -> None:
    """T2: its epoch was seen, and may be in a snapshot, but the transaction is open."""
    known = told("w1")
    known.end(marker(1, COMMIT, epoch=1), 1)
    restored = PartitionTransactions()
    assert restored.restore(known.snapshot(1)) == 1
    known.truncate_to(1)
    for one in (known, restored):
        assert one.check_marker(marker(1, COMMIT, epoch=1), 2)
        one.end(marker(1, COMMIT, epoch=1), 1)
        assert one.last_stable_offset(2) == 2
        assert not one.check_marker(marker(1, COMMIT, epoch=1), 2)


def test_an_old_coordinator_ends_nothing() -> None:
    """T2: the coordinator's own epoch is kept per producer."""
    known = told("w1")
    known.end(marker(1, COMMIT, epoch=1, coordinator_epoch=3), 1)
    with pytest.raises(ApiError) as refused:
        known.check_marker(marker(1, ABORT, epoch=2, coordinator_epoch=2), 2)
    assert refused.value.code is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    with pytest.raises(ApiError) as late:
        known.check_marker(marker(1, ABORT, epoch=0, coordinator_epoch=3), 2)
    assert late.value.code is ErrorCode.INVALID_PRODUCER_EPOCH


def test_silent_producers_are_forgotten_unless_their_transaction_is_open() -> None:
    """T2: what is left of them is their transactions."""
    known = told("w1", "w2", "a2", "w3")
    for producer_id in (1, 2):
        known.forget(producer_id)
    known.check(header(2, part=False), None)
    known.check(header(2, epoch=0), known.begin_verification(header(2, epoch=0)))
    assert [one.producer_id for one in known.open_transactions()] == [1, 3]
    version = known.version
    known.forget(2)
    assert known.version == version
