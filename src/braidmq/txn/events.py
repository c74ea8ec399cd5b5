"""What goes into the transaction coordinator and what comes out of it.

Who waits for an answer is an opaque token, handed in with a request and handed back in a `Reply`. Nothing
that a crash could take back is ever said: a change goes out as a `WriteRecord`, and the replies and markers
that rest on it come out only after the caller has reported it as written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from braidmq.wire.errors import ErrorCode

NO_PRODUCER_ID = -1
NO_EPOCH = -1
Token = object
"""Whatever the caller uses to find the waiting client again; it is only kept and given back."""

TopicPartition = tuple[str, int]
"""Topic and partition."""
KeyValue = tuple[bytes, bytes | None]
"""A record of the internal topic; without a value it is a tombstone."""


class Moment(NamedTuple):
    """Now, by both clocks."""

    steady_ms: int
    """Never set back: what time-outs of a running broker are measured with."""
    wall_ms: int
    """What is written down, and means the same after a restart."""


@dataclass(frozen=True, slots=True)
class Init:
    """An InitProducerId with a transactional id. A producer that continues (KIP-360) says who it is."""

    transactional_id: str
    timeout_ms: int
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_EPOCH
    version: int = 5


@dataclass(frozen=True, slots=True)
class AddPartitions:
    """One transaction of an AddPartitionsToTxn, or an AddOffsetsToTxn with the partition of the offsets."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: frozenset[TopicPartition]
    version: int = 3


@dataclass(frozen=True, slots=True)
class End:
    """An EndTxn. From version 5 on every end gives the producer a new epoch (KIP-890)."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    committed: bool
    version: int = 5


class Initialized(NamedTuple):
    """The answer to an `Init`."""

    code: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_EPOCH


class Added(NamedTuple):
    """The answer to an `AddPartitions`: one code for all its places."""

    code: ErrorCode


class Ended(NamedTuple):
    """The answer to an `End`: with version 5, who the producer is from now on."""

    code: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_EPOCH


Answer = Initialized | Added | Ended


class Reply(NamedTuple):
    """Answer the client that waits as `token`."""

    token: Token
    answer: Answer


class WriteRecord(NamedTuple):
    """Append this to the internal topic; when it is durable call `record_written`, else `record_failed`."""

    transactional_id: str
    ticket: int
    record: KeyValue


class Marker(NamedTuple):
    """The end of a transaction, as it is written to each of its partitions."""

    producer_id: int
    producer_epoch: int
    committed: bool
    coordinator_epoch: int
    transaction_version: int
    """From 2 on the marker's epoch is above that of the transaction's records."""


class WriteMarkers(NamedTuple):
    """Write the marker to each partition; report with `markers_written` or `markers_failed`."""

    transactional_id: str
    marker: Marker
    partitions: tuple[TopicPartition, ...]


Effect = Reply | WriteRecord | WriteMarkers
