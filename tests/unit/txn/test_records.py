"""Transactions as they are written down: Kafka's own bytes, both versions, and what a damaged record does."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.txn.events import NO_EPOCH
from braidmq.txn.loading import TransactionLoader
from braidmq.txn.records import parse, tombstone, transaction_record
from braidmq.txn.transaction import Transaction, TransactionState
from braidmq.wire.errors import ProtocolError

WRITTEN_STATES = [
    state
    for state in TransactionState
    if state not in (TransactionState.DEAD, TransactionState.PREPARE_EPOCH_FENCE)
]
IDS = st.text(min_size=1, max_size=20)
TRANSACTIONS = st.builds(
    Transaction,
    transactional_id=IDS,
    producer_id=st.integers(0, 2**63 - 1),
    producer_epoch=st.integers(0, 2**15 - 1),
    timeout_ms=st.integers(1, 2**31 - 1),
    state=st.sampled_from([state for state in WRITTEN_STATES if state is not TransactionState.EMPTY]),
    partitions=st.frozensets(st.tuples(st.text(max_size=5), st.integers(0, 2**31 - 1)), max_size=6),
    updated_ms=st.integers(0, 2**62),
    started_ms=st.integers(0, 2**62),
    previous_producer_id=st.integers(-1, 2**63 - 1),
    next_producer_id=st.integers(-1, 2**63 - 1),
    client_version=st.integers(0, 2),
)


def test_a_record_has_kafkas_bytes_in_version_0() -> None:
    """T2: tools made for Kafka's internal topic understand ours."""
    written = Transaction(
        "app", 7, 2, 60_000, TransactionState.ONGOING, frozenset({("b", 1), ("a", 3), ("a", 0)}), 1_000, 900
    )
    key, value = transaction_record(written)
    assert key == bytes.fromhex("0000 0003 617070")
    assert value == bytes.fromhex(
        "0000 0000000000000007 0002 0000ea60 01"
        " 00000002 0001 61 00000002 00000000 00000003 0001 62 00000001 00000001"
        " 00000000000003e8 0000000000000384"
    )


def test_a_record_has_kafkas_bytes_in_version_1() -> None:
    """T2: what protocol 2 needs stands in tagged fields, which version 0 does not have."""
    written = Transaction(
        "app", 7, 2, 60_000, TransactionState.PREPARE_COMMIT, frozenset({("a", 3)}), 1_000, 900,
        client_version=2, previous_producer_id=5,
    )  # fmt: skip
    _, value = transaction_record(written)
    assert value == bytes.fromhex(
        "0001 0000000000000007 0002 0000ea60 02"
        " 02 02 61 02 00000003 00"
        " 00000000000003e8 0000000000000384"
        " 02 00 08 0000000000000005 02 02 0002"
    )


def test_an_empty_transaction_has_no_list_of_partitions() -> None:
    """T2: null, as Kafka writes it, and read as none."""
    key, value = transaction_record(Transaction("app", 7, 0, 60_000, updated_ms=5))
    assert value == bytes.fromhex(
        "0000 0000000000000007 0000 0000ea60 00 ffffffff 0000000000000005 ffffffffffffffff"
    )
    assert parse(key, value) == ("app", Transaction("app", 7, 0, 60_000, updated_ms=5))


@given(TRANSACTIONS)
def test_what_is_written_is_read_again(written: Transaction) -> None:
    """T2: all but the last epoch, which Kafka's format has no room for."""
    stored = parse(*transaction_record(written))
    assert stored is not None
    transactional_id, found = stored
    assert found is not None
    assert (transactional_id, replace(found, last_epoch=NO_EPOCH)) == (written.transactional_id, written)


@given(IDS)
def test_a_tombstone_forgets_an_id(transactional_id: str) -> None:
    """T2: the last word on a key counts."""
    loading = TransactionLoader()
    loading.record(*transaction_record(Transaction(transactional_id, 1, 0, 1)))
    assert list(loading.transactions) == [transactional_id]
    loading.record(*tombstone(transactional_id))
    assert not loading.transactions


@given(TRANSACTIONS, st.data())
def test_damage_is_counted_and_passed_over(written: Transaction, data: st.DataObject) -> None:
    """T2: one bad record does not keep the others away."""
    key, value = transaction_record(written)
    assert value is not None
    cut = data.draw(st.integers(0, len(value) - 1))
    loading = TransactionLoader()
    loading.record(key, value[:cut])
    loading.record(*transaction_record(Transaction("sound", 1, 0, 1)))
    assert (loading.unreadable, list(loading.transactions)) == (1, ["sound"])


@pytest.mark.parametrize("status", [TransactionState.DEAD, TransactionState.PREPARE_EPOCH_FENCE, 9, -1])
def test_a_state_that_is_never_written_is_refused(status: int) -> None:
    """T2: such a record cannot be Kafka's."""
    key, value = transaction_record(
        Transaction("app", 7, 2, 1, TransactionState.ONGOING, frozenset({("a", 0)}), 5, 5)
    )
    assert value is not None
    damaged = bytearray(value)
    damaged[16] = status & 0xFF
    with pytest.raises(ProtocolError):
        parse(key, bytes(damaged))


def test_keys_of_another_kind_are_left_alone() -> None:
    """T2: a later Kafka may add some."""
    loading = TransactionLoader()
    loading.record(b"\x00\x01whatever", b"")
    assert (loading.unreadable, loading.transactions) == (0, {})
