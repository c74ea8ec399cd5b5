"""How transactions are written down in the internal, compacted topic `__transaction_state`.

Keys and values are those of Kafka, a two-byte version before each: the key is the transactional id, the value
all that is known of it, so the newest record of a key is the whole state. Values are written in version 0
unless they need what only version 1 can say, as Kafka does it for old readers; both are read.

Kafka's format has no room for the epoch before the present one. For protocol 2 it follows from the present
one; for the rest it is forgotten over a restart, and a producer that asks again is fenced, as in Kafka.
"""

from __future__ import annotations

from struct import Struct

from braidmq.txn.events import NO_EPOCH, NO_PRODUCER_ID, KeyValue, TopicPartition
from braidmq.txn.transaction import (
    LAST_EPOCH_OF_PRODUCERS,
    NOT_STARTED,
    PREPARED,
    PROTOCOL_2,
    Transaction,
    TransactionState,
)
from braidmq.wire.errors import ProtocolError
from braidmq.wire.schema import Message, array, decode, encode, int8, int16, int32, int64, string

TRANSACTIONS_TOPIC = "__transaction_state"

_VERSION = Struct(">h")
_KEY_VERSION = 0
_PLAIN_VALUE = 0
_VALUE_WITH_TAGS = 1


class TransactionLogKey(Message, versions=(0, 0)):
    transactional_id: str = string()


class TransactionPartitions(Message):
    topic: str = string()
    partition_ids: list[int] = array(int32)


class TransactionLogValue(Message, versions=(0, 1), flexible=1):
    producer_id: int = int64()
    previous_producer_id: int = int64(since=1, tag=0, default=NO_PRODUCER_ID)
    next_producer_id: int = int64(since=1, tag=1, default=NO_PRODUCER_ID)
    producer_epoch: int = int16()
    transaction_timeout_ms: int = int32()
    transaction_status: int = int8()
    transaction_partitions: list[TransactionPartitions] | None = array(TransactionPartitions, nullable=0)
    transaction_last_update_timestamp_ms: int = int64()
    transaction_start_timestamp_ms: int = int64()
    client_transaction_version: int = int16(since=1, tag=2)


def transaction_record(transaction: Transaction) -> KeyValue:
    """The record of a transactional id as it is now."""
    partitions = [
        TransactionPartitions(topic=topic, partition_ids=ids) for topic, ids in transaction.topics().items()
    ]
    value = TransactionLogValue(
        producer_id=transaction.producer_id,
        previous_producer_id=transaction.previous_producer_id,
        next_producer_id=transaction.next_producer_id,
        producer_epoch=transaction.producer_epoch,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_status=int(transaction.state),
        transaction_partitions=None if transaction.state is TransactionState.EMPTY else partitions,
        transaction_last_update_timestamp_ms=transaction.updated_ms,
        transaction_start_timestamp_ms=transaction.started_ms,
        client_transaction_version=transaction.client_version,
    )
    ids = (transaction.previous_producer_id, transaction.next_producer_id)
    plain = ids == (NO_PRODUCER_ID, NO_PRODUCER_ID) and not transaction.client_version
    version = _PLAIN_VALUE if plain else _VALUE_WITH_TAGS
    return _key(transaction.transactional_id), _VERSION.pack(version) + encode(value, version)


def tombstone(transactional_id: str) -> KeyValue:
    """The record by which a transactional id is forgotten."""
    return _key(transactional_id), None


def parse(key: bytes, value: bytes | None) -> tuple[str, Transaction | None] | None:
    """The id and what is known of it, None for its end; None for keys of another kind.

    ProtocolError if the record cannot be read.
    """
    kind, body = _split(key)
    if kind != _KEY_VERSION:
        return None
    transactional_id = decode(TransactionLogKey, kind, body).transactional_id
    return transactional_id, None if value is None else _transaction(transactional_id, value)


def _transaction(transactional_id: str, value: bytes) -> Transaction:
    stored = decode(TransactionLogValue, *_split(value))
    try:
        state = TransactionState(stored.transaction_status)
    except ValueError:
        raise ProtocolError(f"{transactional_id!r} has unknown state {stored.transaction_status}") from None
    if state in (TransactionState.DEAD, TransactionState.PREPARE_EPOCH_FENCE):
        raise ProtocolError(f"{transactional_id!r} is stored in state {state.label}, which is never written")
    transaction = Transaction(
        transactional_id,
        stored.producer_id,
        stored.producer_epoch,
        stored.transaction_timeout_ms,
        state,
        _places(stored.transaction_partitions or []),
        stored.transaction_last_update_timestamp_ms,
        stored.transaction_start_timestamp_ms,
        _last_epoch(stored, state),
        stored.previous_producer_id,
        stored.next_producer_id,
        stored.client_transaction_version,
    )
    if state in PREPARED | {TransactionState.ONGOING} and transaction.started_ms == NOT_STARTED:
        raise ProtocolError(f"{transactional_id!r} is in state {state.label} but never began")
    return transaction


def _last_epoch(stored: TransactionLogValue, state: TransactionState) -> int:
    if stored.client_transaction_version < PROTOCOL_2 or state in (
        TransactionState.EMPTY,
        TransactionState.ONGOING,
    ):
        return NO_EPOCH
    if stored.producer_epoch:
        return stored.producer_epoch - 1
    return NO_EPOCH if stored.previous_producer_id == NO_PRODUCER_ID else LAST_EPOCH_OF_PRODUCERS


def _places(topics: list[TransactionPartitions]) -> frozenset[TopicPartition]:
    return frozenset((one.topic, partition) for one in topics for partition in one.partition_ids)


def _key(transactional_id: str) -> bytes:
    key = TransactionLogKey(transactional_id=transactional_id)
    return _VERSION.pack(_KEY_VERSION) + encode(key, _KEY_VERSION)


def _split(stored: bytes) -> tuple[int, memoryview]:
    if len(stored) < _VERSION.size:
        raise ProtocolError(
            f"a record of {TRANSACTIONS_TOPIC} has {len(stored)} bytes, too few for a version"
        )
    return _VERSION.unpack_from(stored)[0], memoryview(stored)[_VERSION.size :]
