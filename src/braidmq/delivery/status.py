"""The words of delivery: states, verdicts, limits, and what a window reports.

    available ──acquire──▶ acquired ──accept──▶ acked
        ▲                     │ │ └──reject, gap──▶ archived
        └──release, time-out──┘ └──renew: held for longer

A release or time-out after the last allowed delivery archives instead. The numbers of states and verdicts are
those KIP-932 gives them; nothing else here knows a protocol.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple


class DeliveryState(IntEnum):
    """What a message is to a group."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKED = 2
    ARCHIVED = 4
    """Never handed out again, although nobody acked it."""


SETTLED = frozenset({DeliveryState.ACKED, DeliveryState.ARCHIVED})


class Verdict(IntEnum):
    """What a consumer says about a message it holds."""

    GAP = 0
    """There is no message at this offset."""
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


class Reason(IntEnum):
    """Why a message was archived that had been delivered."""

    REJECTED = 0
    EXHAUSTED = 1
    """It came back from its last allowed delivery."""


class DeliveryStatus(NamedTuple):
    """State of a run of offsets; equal neighbours are one run."""

    state: DeliveryState
    deliveries: int = 0
    """How often it was handed out. Settled runs keep it only as 0, never delivered, or 1: so they merge."""
    consumer: str | None = None
    deadline_ms: int = 0
    """When an acquired message is taken back."""


class Acquired(NamedTuple):
    """Offsets handed to a consumer."""

    first: int
    last: int
    deliveries: int
    """This one included."""


class Archived(NamedTuple):
    """Offsets that will not be delivered again, for the dead-letter stage."""

    first: int
    last: int
    deliveries: int
    reason: Reason


class LogRange(NamedTuple):
    """What the log holds in [first, last]: batches of messages, and nothing between them.

    Offsets outside of `batches` (removed by compaction, transaction markers, aborted records) are gaps.
    """

    first: int
    last: int
    batches: tuple[tuple[int, int], ...]
    """First and last offset of each, ascending; those at the edges may reach out of [first, last]."""


class Acknowledgement(NamedTuple):
    """Verdicts on the offsets [first, last]: one for each, or one for all."""

    first: int
    last: int
    verdicts: tuple[Verdict, ...]


@dataclass(frozen=True, slots=True)
class DeliveryLimits:
    """Bounds of a window; the defaults are those of Kafka's share groups."""

    in_flight_max: int = 2000
    """Messages that were handed out and are not settled: what bounds the memory."""
    deliveries_max: int = 5
    lock_ms: int = 30_000
    """How long a consumer holds a message before it goes to somebody else."""


class NotHeld(Exception):
    """A verdict on a message that its sender does not hold, or holds no longer."""

    def __init__(self, offset: int, consumer: str, why: str) -> None:
        super().__init__(f"offset {offset} is not held by {consumer}: {why}")
        self.offset = offset
