"""The checker of exactly-once pipelines is checked: each planted bug is caught under its own name."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.history.checker import Violation
from tests.history.exactly_once import Fate, Place, Stage, Stamp, Work

SOURCES = 2
"""Partitions of the source, each of which has its own partition of the output."""
RECORDS = 12
"""Records in each of them."""
PER_TRANSACTION = 3

Output = dict[int, list[tuple[int, Stamp]]]
"""What is in each partition, with offsets."""


def stamp(partition: int, offset: int, **changed: object) -> Stamp:
    """The record of a transaction that takes `PER_TRANSACTION` records of each source partition."""
    work, size = Work(1, offset // PER_TRANSACTION), SOURCES * PER_TRANSACTION
    made = Stamp(content(partition, offset), Place(partition, offset), work, size, Fate.COMMIT)
    return made._replace(**changed)


def content(partition: int, offset: int) -> int:
    return 1_000 * partition + offset


def clean_output() -> Output:
    """Offsets leave room for the markers that end each transaction."""
    return {
        partition: [
            (offset + offset // PER_TRANSACTION, stamp(partition, offset)) for offset in range(RECORDS)
        ]
        for partition in range(SOURCES)
    }


def judged(output: Output, polled: Output | None = None, **positions: int) -> set[Violation]:
    """What the checker says of this output, by default read along the way as it is at the end."""
    stage = Stage("test")
    stage.source((Place(p, n), content(p, n)) for p in range(SOURCES) for n in range(RECORDS))
    for number in range(RECORDS // PER_TRANSACTION):
        stage.told(Work(1, number), Fate.COMMIT)
    for partition, held in (output if polled is None else polled).items():
        for offset, each in held:
            stage.polled(partition, offset, each)
    for partition, held in output.items():
        for offset, each in held:
            stage.read(partition, offset, each)
        stage.position(partition, positions.get(f"at_{partition}", RECORDS))
    stage.conclude()
    return set(stage.counts)


def test_a_pipeline_in_which_every_promise_holds_has_no_findings() -> None:
    """T2: one record for each, in order, in whole transactions, the group at the end."""
    assert judged(clean_output()) == set()


def test_a_record_of_which_nothing_was_made_is_lost() -> None:
    """T2: the planted bug is a position committed although the transaction was aborted."""
    output = clean_output()
    for partition in range(SOURCES):
        del output[partition][PER_TRANSACTION : 2 * PER_TRANSACTION]
    found = judged(output)
    assert found == {Violation.LOST, Violation.POSITION_AHEAD, Violation.UNDONE}


def test_a_lost_record_the_group_has_not_passed_is_not_ahead() -> None:
    """T2: work that is not finished is told from work that was skipped."""
    output = clean_output()
    for partition in range(SOURCES):
        del output[partition][-PER_TRANSACTION:]
    left = RECORDS - PER_TRANSACTION
    assert judged(output, at_0=left, at_1=left) == {Violation.LOST, Violation.UNDONE}


def test_two_records_made_of_one_are_a_duplicate() -> None:
    """T2: the planted bug is a zombie that is not fenced: another life does the same work once more."""
    output = clean_output()
    for partition in range(SOURCES):
        again = [stamp(partition, n, work=Work(2, 0)) for n in range(PER_TRANSACTION)]
        output[partition] += [(100 + at, each) for at, each in enumerate(again)]
    assert judged(output) == {Violation.DUPLICATE}


def test_records_of_one_source_partition_in_another_order_are_reordered() -> None:
    """T2: the planted bug is a transaction that begins before the one before it was decided."""
    output = clean_output()
    stamps = [each for _, each in output[0]]
    stamps = stamps[PER_TRANSACTION:] + stamps[:PER_TRANSACTION]
    output[0] = [(offset, each) for (offset, _), each in zip(output[0], stamps, strict=True)]
    assert judged(output) == {Violation.REORDERED}


def test_records_of_two_source_partitions_have_no_order_among_them() -> None:
    """T2: two members write into one partition."""
    one = clean_output()
    mixed = sorted((offset * 2 + at, each) for at in range(SOURCES) for offset, each in one[at])
    assert judged({0: mixed, 1: []}, at_1=RECORDS) == set()


def test_a_record_made_of_what_is_not_in_the_source_is_a_phantom() -> None:
    """T2: the planted bug is a member that reads uncommitted and works on aborted data."""
    output = clean_output()
    output[0].append((100, stamp(0, RECORDS + 5, work=Work(3, 0), size=1)))
    assert judged(output) == {Violation.PHANTOM}


def test_a_record_made_of_other_content_than_the_source_has_there_is_a_phantom() -> None:
    """T2 L1: the planted bug is an offset that held something else when the stage read it."""
    output = clean_output()
    offset, right = output[1][4]
    output[1][4] = (offset, right._replace(content=right.content + 1))
    assert judged(output) == {Violation.PHANTOM}


@pytest.mark.parametrize("known", ["meant", "confirmed"])
def test_aborted_data_that_can_be_read_is_found(known: str) -> None:
    """T2: the planted bug is a fetch that leaves out the list of aborted transactions."""
    stage = Stage("test")
    stage.source([(Place(0, 0), 0)])
    if known == "confirmed":
        stage.told(Work(1, 0), Fate.ABORT)
    fate = Fate.ABORT if known == "meant" else Fate.COMMIT
    stage.read(0, 0, stamp(0, 0, size=1, fate=fate))
    stage.position(0, 1)
    stage.conclude()
    assert set(stage.counts) == {Violation.ABORTED_READ}


def test_aborted_data_that_only_the_reader_along_the_way_saw_is_found() -> None:
    """T2: the planted bug is a last stable offset that runs ahead of an open transaction."""
    output = clean_output()
    aborted = stamp(0, RECORDS - 1, work=Work(5, 0), fate=Fate.ABORT)
    polled = {**output, 0: [*output[0], (100, aborted)]}
    assert judged(output, polled) == {Violation.ABORTED_READ, Violation.INCONSISTENT_OFFSET}


def test_a_transaction_of_which_a_part_is_missing_is_torn() -> None:
    """T2: the planted bug is a marker that one partition never gets."""
    output = clean_output()
    del output[1][-PER_TRANSACTION:]
    assert judged(output, at_1=RECORDS - PER_TRANSACTION) == {Violation.TORN, Violation.LOST}


def test_a_confirmed_commit_of_which_nothing_is_there_is_undone() -> None:
    """T2: the planted bug is an answer before the decision is durable; the work is then done again."""
    output = clean_output()
    for partition in range(SOURCES):
        output[partition] = [
            (offset, each._replace(work=Work(2, 0)) if each.work.number == 0 else each)
            for offset, each in output[partition]
        ]
    assert judged(output) == {Violation.UNDONE}


def test_offsets_committed_without_output_are_found() -> None:
    """T2: the planted bug is a group coordinator that applies offsets before the transaction is decided."""
    output = clean_output()
    for partition in range(SOURCES):
        output[partition] = output[partition][:-PER_TRANSACTION]
    assert Violation.POSITION_AHEAD in judged(output)


def test_output_committed_without_offsets_is_found() -> None:
    """T2: the planted bug is a marker the offsets topic never gets: the work would be done again."""
    assert judged(clean_output(), at_0=RECORDS - PER_TRANSACTION) == {Violation.POSITION_BEHIND}


def test_a_reader_that_is_carried_past_a_committed_record_is_found() -> None:
    """T2: the planted bug is a last stable offset past a transaction that commits later."""
    output = clean_output()
    polled = {**output, 0: output[0][:2] + output[0][3:]}
    assert judged(output, polled) == {Violation.UNSEEN}


def test_a_reader_that_has_not_come_to_the_end_has_missed_nothing() -> None:
    """T2: it stops when the run does."""
    output = clean_output()
    assert judged(output, {0: output[0][:4], 1: []}) == set()


def test_a_reader_that_is_given_what_vanishes_is_found() -> None:
    """T2: one value per offset, for ever."""
    output = clean_output()
    polled = {**output, 0: [*output[0], (200, stamp(0, 3, work=Work(9, 9)))]}
    assert judged(output, polled) == {Violation.INCONSISTENT_OFFSET}


def test_a_reader_that_is_taken_back_is_found() -> None:
    """C7: the planted bug is a fetch that answers from an older offset than asked."""
    output = clean_output()
    assert judged(output, {**output, 0: [*output[0], output[0][2]]}) == {Violation.NON_MONOTONIC}


def test_what_one_stage_made_is_the_source_of_the_next() -> None:
    """T2: a pipeline of two stages is checked end to end."""
    first, second = Stage("first"), Stage("second")
    first.source((Place(0, number), number) for number in range(2))
    for number in range(2):
        first.read(number, 7, stamp(0, number, size=1, work=Work(0, number)))
    first.position(0, 2)
    first.conclude()
    second.source(first.made())
    second.read(0, 0, stamp(0, 7, size=1, content=0))
    second.position(0, 8)
    second.conclude()
    assert first.counts == {}
    assert second.counts == {Violation.LOST: 1}


def drop(held: list[tuple[int, Stamp]], at: int) -> list[tuple[int, Stamp]]:
    return held[:at] + held[at + 1 :]


def repeat(held: list[tuple[int, Stamp]], at: int) -> list[tuple[int, Stamp]]:
    return [*held, (1_000, held[at][1])]


def swap(held: list[tuple[int, Stamp]], at: int) -> list[tuple[int, Stamp]]:
    offsets, stamps = [offset for offset, _ in held], [each for _, each in held]
    stamps[at], stamps[at + 1] = stamps[at + 1], stamps[at]
    return list(zip(offsets, stamps, strict=True))


@pytest.mark.parametrize("damage", [drop, repeat, swap])
@given(at=st.integers(0, RECORDS - 2), partition=st.integers(0, SOURCES - 1))
def test_any_single_damage_to_the_output_is_found(
    damage: Callable[[list[tuple[int, Stamp]], int], list[tuple[int, Stamp]]], at: int, partition: int
) -> None:
    """T2: wherever it is, a record dropped, repeated or swapped does not pass."""
    output = clean_output()
    output[partition] = damage(output[partition], at)
    assert judged(output)
