"""Transactions under attack: fenced producers, forged ones, steps out of order, and floods of ids."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest
from tests.hostile import batches, calls, group_calls, txn_calls
from tests.hostile.conftest import FOREIGN_SERVER, MEBIBYTE, Victim
from tests.hostile.raw import Connection
from tests.hostile.txn_calls import Producer

from braidmq.testing import broker

UNKNOWN_TOPIC, OFFSET_METADATA_TOO_LARGE, INVALID_GROUP_ID, TOPIC_AUTHORIZATION_FAILED = 3, 12, 24, 29
CLUSTER_AUTHORIZATION_FAILED, INVALID_REQUEST, POLICY_VIOLATION, OUT_OF_ORDER = 31, 42, 44, 45
INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE, INVALID_PRODUCER_ID_MAPPING = 47, 48, 49
INVALID_TRANSACTION_TIMEOUT, CONCURRENT_TRANSACTIONS, OPERATION_NOT_ATTEMPTED = 50, 51, 55
INVALID_RECORD, PRODUCER_FENCED, INVALID_REGULAR_EXPRESSION = 87, 90, 128
LOADING = (14, 15, CONCURRENT_TRANSACTIONS)

Name = Callable[[], str]


def settled(connection: Connection, transactional_id: str) -> Producer:
    """A producer that has its id; tried again while the transaction before is being ended."""
    for _ in range(100):
        producer = txn_calls.init(connection, transactional_id)
        if producer.code not in LOADING:
            assert producer.code == 0
            return producer
        time.sleep(0.1)
    raise AssertionError("the transactional id does not settle")


@pytest.fixture
def producer(connection: Connection, new_name: Name) -> Producer:
    return settled(connection, new_name())


@pytest.mark.parametrize("timeout_ms", [0, -1, 2**31 - 1])
def test_a_time_out_that_cannot_be_is_refused(
    connection: Connection, new_name: Name, timeout_ms: int
) -> None:
    """T2: INVALID_TRANSACTION_TIMEOUT, also for longer than the operator allows."""
    assert txn_calls.init(connection, new_name(), timeout_ms).code == INVALID_TRANSACTION_TIMEOUT


def test_an_id_that_cannot_be_is_refused(connection: Connection) -> None:
    """T2 W5: neither an empty one nor one of more than a thousand bytes (which Kafka takes)."""
    assert txn_calls.init(connection, "").code == INVALID_REQUEST
    for length in (1_001, 30_000):
        assert txn_calls.init(connection, "n" * length).code in (INVALID_REQUEST, *LOADING, 0)


def test_a_transaction_that_was_not_begun_cannot_be_ended(connection: Connection, producer: Producer) -> None:
    """T2: INVALID_TXN_STATE; nor can one that has ended be ended the other way."""
    assert txn_calls.end(connection, producer, commit=True) == INVALID_TXN_STATE
    assert txn_calls.end(connection, producer, commit=False) == INVALID_TXN_STATE


def test_an_ended_transaction_stays_as_it_was_decided(
    connection: Connection, producer: Producer, topic: str
) -> None:
    """T2: the same end again is fine, the other one is refused."""
    assert txn_calls.add_partitions(connection, producer, topic, 0) == {0: 0}
    codes = []
    while not codes or codes[-1] == CONCURRENT_TRANSACTIONS:
        codes.append(txn_calls.end(connection, producer, commit=True))
    assert codes[-1] == 0
    while (again := txn_calls.end(connection, producer, commit=True)) == CONCURRENT_TRANSACTIONS:
        pass
    assert again == 0
    assert txn_calls.end(connection, producer, commit=False) == INVALID_TXN_STATE


def test_nobody_writes_into_a_transaction_without_taking_part(
    connection: Connection, producer: Producer, topic: str
) -> None:
    """T2: INVALID_TXN_STATE for a record to a partition that was not added, and nothing is written."""
    assert txn_calls.produce(connection, producer, topic) == INVALID_TXN_STATE
    stranger = producer._replace(producer_id=producer.producer_id + 10_000)
    code = txn_calls.produce(connection, stranger, topic)
    assert code in (INVALID_TXN_STATE, INVALID_PRODUCER_ID_MAPPING)
    assert calls.list_offset(connection, topic) == (0, 0)


def test_partitions_are_added_all_or_none(connection: Connection, producer: Producer, topic: str) -> None:
    """T2: the unknown one is named, the others not attempted; internal topics are nobody's to write."""
    while calls.metadata_code(connection, topic) != 0:
        time.sleep(0.1)
    unknown = txn_calls.add_partitions(connection, producer, topic, 0, 9)
    assert unknown == {0: OPERATION_NOT_ATTEMPTED, 9: UNKNOWN_TOPIC}
    group_calls.commit(connection, "anybody", topic, {0: (1, "")})
    refused = txn_calls.add_partitions(connection, producer, "__consumer_offsets", 0)
    assert refused == {0: TOPIC_AUTHORIZATION_FAILED}
    assert txn_calls.end(connection, producer, commit=True) == INVALID_TXN_STATE


@pytest.mark.parametrize("pattern", ["(", "a{2000}{2000}", "(?=a)", "x" * 2_000])
def test_a_pattern_of_ids_that_cannot_be_is_refused(connection: Connection, pattern: str) -> None:
    """T2 W5: INVALID_REGULAR_EXPRESSION for what is none, or none that can be matched in time."""
    code = txn_calls.list_by_pattern(connection, pattern)
    assert code == INVALID_REGULAR_EXPRESSION or (len(pattern) == 2_000 and code == 0)


@pytest.mark.parametrize("by", [1, -1, 32_000])
def test_another_epoch_is_refused_in_every_verb(
    connection: Connection, producer: Producer, topic: str, by: int
) -> None:
    """T2: INVALID_PRODUCER_EPOCH, or PRODUCER_FENCED for versions that know it."""
    other = producer._replace(epoch=producer.epoch + by)
    assert txn_calls.add_partitions(connection, other, topic, 0) == {0: INVALID_PRODUCER_EPOCH}
    assert txn_calls.add_partitions(connection, other, topic, 0, version=2) == {0: PRODUCER_FENCED}
    assert txn_calls.end(connection, other, commit=True) == INVALID_PRODUCER_EPOCH
    assert txn_calls.end(connection, other, commit=True, version=2) == PRODUCER_FENCED
    assert txn_calls.add_offsets(connection, other, "g") == INVALID_PRODUCER_EPOCH


def test_another_id_or_another_producer_is_refused(
    connection: Connection, producer: Producer, topic: str
) -> None:
    """T2: INVALID_PRODUCER_ID_MAPPING."""
    for other in (
        producer._replace(transactional_id=producer.transactional_id + "-not"),
        producer._replace(producer_id=producer.producer_id + 10_000),
    ):
        mapping = INVALID_PRODUCER_ID_MAPPING
        assert txn_calls.add_partitions(connection, other, topic, 0) == {0: mapping}
        assert txn_calls.end(connection, other, commit=True) == mapping
        assert txn_calls.add_offsets(connection, other, "g") == mapping


def test_a_fenced_producer_can_do_nothing_more(
    connection: Connection, producer: Producer, topic: str
) -> None:
    """T2: its transaction is aborted, its offsets are gone, and no verb takes it."""
    group = producer.transactional_id
    assert txn_calls.add_partitions(connection, producer, topic, 0) == {0: 0}
    assert txn_calls.produce(connection, producer, topic) == 0
    assert txn_calls.add_offsets(connection, producer, group) == 0
    assert txn_calls.commit_offset(connection, producer, group, topic) == 0
    after = settled(connection, producer.transactional_id)
    assert after.epoch > producer.epoch
    fenced = INVALID_PRODUCER_EPOCH
    assert txn_calls.add_partitions(connection, producer, topic, 0) == {0: fenced}
    assert txn_calls.produce(connection, producer, topic, sequence=1) == fenced
    assert txn_calls.add_offsets(connection, producer, group) == fenced
    assert txn_calls.commit_offset(connection, producer, group, topic) == fenced
    assert txn_calls.end(connection, producer, commit=True) == fenced
    assert group_calls.committed(connection, group, topic) == -1


def test_sequences_and_control_batches_cannot_be_forged(
    connection: Connection, producer: Producer, topic: str
) -> None:
    """T2 P4: a marker is the broker's to write; a gap in the sequence is refused, a repetition is not."""
    assert txn_calls.add_partitions(connection, producer, topic, 0) == {0: 0}
    marker = txn_calls.produce(
        connection, producer, topic, attributes=batches.TRANSACTIONAL | batches.CONTROL
    )
    assert marker == INVALID_RECORD
    assert txn_calls.produce(connection, producer, topic) == 0
    assert txn_calls.produce(connection, producer, topic) == 0
    assert txn_calls.produce(connection, producer, topic, sequence=7) == OUT_OF_ORDER
    assert txn_calls.end(connection, producer, commit=False) == 0


@pytest.mark.skipif(FOREIGN_SERVER in os.environ, reason="without an authorizer Kafka lets everybody")
def test_nobody_but_the_broker_writes_markers(connection: Connection, producer: Producer, topic: str) -> None:
    """T2 W5: whoever may do so ends anybody's transaction; of a later coordinator, all that follow."""
    assert txn_calls.add_partitions(connection, producer, topic, 0) == {0: 0}
    assert txn_calls.produce(connection, producer, topic) == 0
    for epoch in (0, 1, 32_767, 2**31 - 1):
        assert txn_calls.write_marker(connection, producer, topic, epoch) == CLUSTER_AUTHORIZATION_FAILED
    assert txn_calls.end(connection, producer, commit=True) == 0
    deadline = time.monotonic() + 30
    while calls.list_offset(connection, topic) == (0, 1):
        assert time.monotonic() < deadline, "no marker was written"
        time.sleep(0.05)


def test_offsets_of_a_transaction_are_held_to_the_rules_of_offsets(
    connection: Connection, producer: Producer, topic: str
) -> None:
    """T2 C6: oversized metadata, topics and groups that are not; and not outside of a transaction."""
    group = producer.transactional_id
    assert txn_calls.commit_offset(connection, producer, group, topic) == INVALID_TXN_STATE
    assert txn_calls.add_offsets(connection, producer, group) == 0
    large = txn_calls.commit_offset(connection, producer, group, topic, "x" * 4097)
    assert large == OFFSET_METADATA_TOO_LARGE
    assert txn_calls.commit_offset(connection, producer, "", topic) == INVALID_GROUP_ID
    assert txn_calls.commit_offset(connection, producer, group, "nowhere") == UNKNOWN_TOPIC
    assert txn_calls.commit_offset(connection, producer, group, topic, "x" * 4096) == 0
    assert group_calls.committed(connection, group, topic) == -1
    assert txn_calls.end(connection, producer, commit=True) == 0


@pytest.mark.skipif(FOREIGN_SERVER in os.environ, reason="a limit of ours")
def test_a_flood_of_transactional_ids_is_stopped_and_those_that_are_there_go_on() -> None:
    """T2 W5: POLICY_VIOLATION past transactional.ids.max, also after a restart; known ids may come back."""
    with broker(transactional_ids_max=50) as server:
        with Connection(server.bootstrap) as connection:
            codes = [txn_calls.init(connection, f"id-{number}").code for number in range(60)]
            assert codes == [0] * 50 + [POLICY_VIOLATION] * 10
        server.kill()
        server.restart()
        with Connection(server.bootstrap) as connection:
            assert txn_calls.init(connection, "one more").code == POLICY_VIOLATION
            assert settled(connection, "id-49").epoch == 1


def test_thousands_of_transactional_ids_cost_little(victim: Victim, connection: Connection) -> None:
    """T2 W5: each is a record and an entry in memory."""
    for number in range(2_000):
        assert txn_calls.init(connection, f"many-{number}").code in (0, *LOADING)
    assert victim.growth_bytes < 64 * MEBIBYTE


def test_an_open_transaction_of_a_vanished_producer_ends_by_itself(
    connection: Connection, new_name: Name, topic: str
) -> None:
    """T2: its time-out aborts it; readers at read_committed are not held up for ever."""
    short = txn_calls.init(connection, new_name(), 500)
    if short.code in LOADING:
        time.sleep(2)
        short = txn_calls.init(connection, short.transactional_id, 500)
    assert txn_calls.add_partitions(connection, short, topic, 0) == {0: 0}
    assert txn_calls.produce(connection, short, topic) == 0
    deadline = time.monotonic() + 60
    while calls.list_offset(connection, topic) == (0, 1):  # the record, and no marker behind it
        assert time.monotonic() < deadline, "no marker was written"
        time.sleep(0.2)
    assert txn_calls.end(connection, short, commit=True) in (INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE)
