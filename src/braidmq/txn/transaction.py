"""One transactional id: its producer, the state of its transaction, and how one state follows another.

                     init                     add partitions               end
        (new) ─────────────▶ Empty ─────────────────────▶ Ongoing ─────────────────▶ PrepareCommit
                               ▲                          ▲     │ end, time-out,           │ markers
                               │ init                     │     ▼ init of another          ▼
                               ├── CompleteAbort ─────────┤   PrepareAbort        CompleteCommit
                               └── CompleteCommit ────────┘     └─ markers ─▶ CompleteAbort

The decision falls when PrepareCommit or PrepareAbort is durable; from then on the outcome is certain and
only the markers are missing. Dead is an id that is being forgotten. PrepareEpochFence is Kafka's name for
the moment in which a producer's place is taken while its transaction is open; as in Kafka it is never
written down, for the fence and the abort that follows it are one record.

Producers are told apart by their epoch. It goes up when a producer is initialised, when a transaction is
aborted over its producer's head, and with transaction protocol 2 (KIP-890) at every end, so that nothing sent
for one transaction can ever count for the next. The largest epoch is never given to a producer; it is
left for the marker that fences it, and with it comes a new producer id.

Everything here takes a `Transaction` and gives the next one; nothing is changed in place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum, IntEnum

from braidmq.txn.events import NO_EPOCH, NO_PRODUCER_ID, TopicPartition
from braidmq.wire.errors import ApiError, ErrorCode

EPOCH_MAX = 2**15 - 1
LAST_EPOCH_OF_PRODUCERS = EPOCH_MAX - 1
NOT_STARTED = -1
PROTOCOL_2 = 2
"""The transaction version of clients whose epoch goes up at every end."""

NewProducerId = Callable[[], int]


class TransactionState(IntEnum):
    """The numbers are those of Kafka's records."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def label(self) -> str:
        """As Kafka's tools show it."""
        return "".join(word.capitalize() for word in self.name.split("_"))


IDLE = frozenset({TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT})
PREPARED = frozenset({TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT})
COMPLETE = frozenset({TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT})
COMMITTING = frozenset({TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT})


class EndedBy(Enum):
    """Who ends a transaction, which decides what becomes of the producer's epoch."""

    OLD_CLIENT = "it keeps its epoch"
    CLIENT = "it gets its next epoch, and may ask again if the answer was lost"
    TIME_OUT = "it may continue with the next epoch, once it notices"
    FENCE = "another producer took its place, and it may not continue"


@dataclass(frozen=True, slots=True)
class Transaction:
    """What is known, and written down, of a transactional id."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState = TransactionState.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    updated_ms: int = NOT_STARTED
    started_ms: int = NOT_STARTED
    last_epoch: int = NO_EPOCH
    """The epoch before, if its owner may have missed the answer with the present one."""
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    """Takes over when the transaction is complete, as the epochs of the present one are used up."""
    client_version: int = 0

    def topics(self) -> dict[str, list[int]]:
        """The partitions by topic, both in order."""
        found: dict[str, list[int]] = {}
        for topic, partition in sorted(self.partitions):
            found.setdefault(topic, []).append(partition)
        return found

    @property
    def exhausted(self) -> bool:
        """Whether the producer id has no epoch left for another producer."""
        return self.producer_epoch >= LAST_EPOCH_OF_PRODUCERS


def initialized(
    current: Transaction,
    timeout_ms: int,
    expected: tuple[int, int] | None,
    new_id: NewProducerId,
    wall_ms: int,
) -> Transaction:
    """`current`, which is idle, with the next producer; `expected` is one that continues. Raises ApiError."""
    fresh = replace(
        current,
        state=TransactionState.EMPTY,
        partitions=frozenset(),
        timeout_ms=timeout_ms,
        updated_ms=wall_ms,
        started_ms=NOT_STARTED,
        next_producer_id=NO_PRODUCER_ID,
    )
    if expected is not None:
        check_resumable(current, *expected)
        if expected != (current.producer_id, current.producer_epoch):
            return fresh  # it asks again, for it did not hear of the epoch it was given
    last_epoch = NO_EPOCH if expected is None else current.producer_epoch
    if current.exhausted:
        return replace(
            fresh,
            producer_id=new_id(),
            producer_epoch=0,
            last_epoch=last_epoch,
            previous_producer_id=current.producer_id,
        )
    return replace(fresh, producer_epoch=current.producer_epoch + 1, last_epoch=last_epoch)


def check_resumable(current: Transaction, producer_id: int, producer_epoch: int) -> None:
    """Raises ApiError unless this producer is the present one, or the one that became it."""
    if (producer_id, producer_epoch) == (current.producer_id, current.producer_epoch):
        return
    rotated = producer_id == current.previous_producer_id and producer_epoch >= LAST_EPOCH_OF_PRODUCERS
    bumped = producer_id == current.producer_id and producer_epoch < current.producer_epoch
    if (rotated or bumped) and producer_epoch == current.last_epoch:
        return
    raise _fenced(current, producer_id, producer_epoch)


def with_partitions(
    current: Transaction, partitions: frozenset[TopicPartition], version: int, wall_ms: int
) -> Transaction:
    """The transaction with more partitions; the first ones begin it."""
    begun = current.state is TransactionState.ONGOING
    return replace(
        current,
        state=TransactionState.ONGOING,
        partitions=current.partitions | partitions if begun else partitions,
        started_ms=current.started_ms if begun else wall_ms,
        updated_ms=wall_ms,
        # Who writes with an epoch has heard of it, and will not ask for it again.
        last_epoch=NO_EPOCH,
        client_version=version,
    )


def prepared(
    current: Transaction, committed: bool, by: EndedBy, new_id: NewProducerId, wall_ms: int
) -> Transaction:
    """The decision. Its epoch is that of the markers."""
    decided = replace(
        current,
        state=TransactionState.PREPARE_COMMIT if committed else TransactionState.PREPARE_ABORT,
        partitions=current.partitions if current.state is TransactionState.ONGOING else frozenset(),
        started_ms=current.started_ms if current.state is TransactionState.ONGOING else wall_ms,
        updated_ms=wall_ms,
    )
    if by is EndedBy.OLD_CLIENT:
        return replace(decided, client_version=min(current.client_version, PROTOCOL_2 - 1))
    fencing = by is EndedBy.FENCE
    return replace(
        decided,
        producer_epoch=min(current.producer_epoch + 1, EPOCH_MAX),
        last_epoch=NO_EPOCH if fencing else current.producer_epoch,
        next_producer_id=new_id() if current.exhausted else NO_PRODUCER_ID,
        # Of protocol 1 nobody's retry is recognised, which also holds after a restart.
        client_version=PROTOCOL_2 - 1 if fencing else PROTOCOL_2,
    )


def completed(current: Transaction, wall_ms: int) -> Transaction:
    """What follows when every marker is written."""
    commits = current.state is TransactionState.PREPARE_COMMIT
    done = replace(
        current,
        state=TransactionState.COMPLETE_COMMIT if commits else TransactionState.COMPLETE_ABORT,
        partitions=frozenset(),
        updated_ms=wall_ms,
        next_producer_id=NO_PRODUCER_ID,
    )
    if current.next_producer_id == NO_PRODUCER_ID:
        return done
    return replace(
        done,
        producer_id=current.next_producer_id,
        producer_epoch=0,
        previous_producer_id=current.producer_id,
    )


def check_producer(current: Transaction, producer_id: int, producer_epoch: int) -> None:
    """Raises ApiError unless this is the producer that owns the transactional id."""
    if current.state in PREPARED and (producer_id, producer_epoch) == (current.next_producer_id, 0):
        raise ApiError(ErrorCode.CONCURRENT_TRANSACTIONS, "the producer id is about to change")
    if producer_id != current.producer_id:
        raise ApiError(
            ErrorCode.INVALID_PRODUCER_ID_MAPPING,
            f"{current.transactional_id!r} belongs to producer {current.producer_id}, not {producer_id}",
        )
    if producer_epoch != current.producer_epoch:
        raise _fenced(current, producer_id, producer_epoch)


def is_repeated_end(current: Transaction, producer_id: int, producer_epoch: int) -> bool:
    """Whether an EndTxn of protocol 2 ends what has ended already: it comes with the epoch before."""
    if current.client_version < PROTOCOL_2 or current.state not in PREPARED | COMPLETE:
        return False
    if producer_id == current.producer_id:
        return producer_epoch == current.producer_epoch - 1
    rotated = producer_id == current.previous_producer_id and current.producer_epoch == 0
    return rotated and producer_epoch == LAST_EPOCH_OF_PRODUCERS


def _fenced(current: Transaction, producer_id: int, producer_epoch: int) -> ApiError:
    return ApiError(
        ErrorCode.PRODUCER_FENCED,
        f"{current.transactional_id!r} belongs to producer {current.producer_id} with epoch"
        f" {current.producer_epoch}, not to producer {producer_id} with epoch {producer_epoch}",
    )
