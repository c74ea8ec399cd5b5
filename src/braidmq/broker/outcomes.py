"""What a replica is asked for, and what it answers with: plain values, each of them a whole answer."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from typing import NamedTuple

from braidmq.log.aborted_transactions import Aborted
from braidmq.log.files import FileSlice

NOTHING = -1
"""Stands for an offset, a timestamp or an epoch that there is none of."""


class Acks(Enum):
    """When a producer wants to hear that its batch was taken."""

    NONE = auto()
    """Not at all."""
    LEADER = auto()
    """When the leader has it."""
    ALL = auto()
    """When it is committed."""


class Isolation(Enum):
    """How far a reader gets."""

    UNCOMMITTED = auto()
    """To the high watermark."""
    COMMITTED = auto()
    """To the last stable offset, where the first transaction begins that is not decided."""


class Place(Enum):
    """An offset by name."""

    EARLIEST = auto()
    LATEST = auto()
    NEWEST = auto()
    """The record with the largest timestamp."""


class NotReady(Exception):
    """The log is being opened; who watches the partition hears when it is there."""


class Appended(NamedTuple):
    """A batch that the leader has taken."""

    base_offset: int
    append_time_ms: int
    """The broker's stamp under LogAppendTime, else NOTHING."""
    log_start_offset: int
    wait_offset: int | None
    """What `when_committed` must have reached before the producer is answered; None: answer at once."""


class ReadResult(NamedTuple):
    """What a reader finds, and where the partition stands."""

    records: FileSlice | None
    """Batches as a range of a file, to be sent or released; None if there are none yet."""
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: Sequence[Aborted]
    """Transactions whose records a reader at Isolation.COMMITTED must pass over."""
    leader_epoch: int
    is_cold: bool
    """Whether records are being brought from the disk; who watches the partition hears when it is done."""


class ListedOffset(NamedTuple):
    """Where a time or a place is in the log; NOTHING in all fields if it is nowhere."""

    timestamp_ms: int
    offset: int
    leader_epoch: int


class ProducerSummary(NamedTuple):
    """What a partition remembers of a producer."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    open_since: int
    """First offset of its open transaction, or NOTHING."""


class OpenTransaction(NamedTuple):
    """A transaction that has records in a partition and no end."""

    producer_id: int
    producer_epoch: int
    first_offset: int
