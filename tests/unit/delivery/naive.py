"""Delivery done naively, one entry per message, as the model the engine is compared with."""

from __future__ import annotations

from dataclasses import dataclass, replace

from braidmq.delivery.status import DeliveryLimits, DeliveryState, LogRange, NotHeld, Verdict


@dataclass(frozen=True)
class Message:
    """What the group knows of one offset."""

    state: DeliveryState = DeliveryState.AVAILABLE
    deliveries: int = 0
    consumer: str | None = None
    deadline_ms: int = 0
    is_gap: bool = False

    @property
    def settled(self) -> bool:
        return self.state in (DeliveryState.ACKED, DeliveryState.ARCHIVED)


class NaiveWindow:
    """The same rules as DeliveryWindow's, without runs, hints or caches."""

    def __init__(self, start: int, limits: DeliveryLimits) -> None:
        self.limits = limits
        self.start = self.end = start
        self.messages: dict[int, Message] = {}
        self.dead: list[int] = []

    @property
    def in_flight(self) -> int:
        return sum(not message.settled for message in self.messages.values())

    def copy(self) -> NaiveWindow:
        other = NaiveWindow(self.start, self.limits)
        other.end, other.messages = self.end, dict(self.messages)
        return other

    def tick(self, now_ms: int) -> None:
        for offset, message in self.messages.items():
            if message.state is DeliveryState.ACQUIRED and message.deadline_ms <= now_ms:
                self.release(offset)
        self.settle()

    def release(self, offset: int) -> None:
        message = self.messages[offset]
        if message.deliveries >= self.limits.deliveries_max:
            self.archive(offset)
        else:
            self.messages[offset] = Message(DeliveryState.AVAILABLE, message.deliveries)

    def archive(self, offset: int) -> None:
        self.messages[offset] = Message(DeliveryState.ARCHIVED, self.messages[offset].deliveries)
        self.dead.append(offset)

    def acquire(self, consumer: str, now_ms: int, records_max: int, reading: LogRange) -> dict[int, int]:
        """Offsets handed out, with their delivery count."""
        self.tick(now_ms)
        there = {offset for base, last in reading.batches for offset in range(base, last + 1)}
        handed: dict[int, int] = {}
        for offset in range(max(reading.first, self.start), reading.last + 1):
            if offset > self.end:
                break
            if offset == self.end:
                full = len(handed) >= records_max or self.in_flight >= self.limits.in_flight_max
                if full and any(last >= offset for _, last in reading.batches):
                    break
                self.messages[offset] = Message()
                self.end += 1
            message = self.messages[offset]
            if message.state is not DeliveryState.AVAILABLE:
                continue
            if offset not in there:
                self.messages[offset] = Message(DeliveryState.ARCHIVED, is_gap=True)
            elif len(handed) < records_max:
                handed[offset] = message.deliveries + 1
                self.messages[offset] = Message(
                    DeliveryState.ACQUIRED, message.deliveries + 1, consumer, now_ms + self.limits.lock_ms
                )
        self.settle()
        return handed

    def acknowledge(self, consumer: str, now_ms: int, verdicts: dict[int, Verdict]) -> None:
        self.tick(now_ms)
        verdicts = {offset: verdict for offset, verdict in verdicts.items() if offset >= self.start}
        for offset in verdicts:
            message = self.messages.get(offset, Message())
            if message.state is not DeliveryState.ACQUIRED or message.consumer != consumer:
                raise NotHeld(offset, consumer, "says the model")
        for offset, verdict in verdicts.items():
            message = self.messages[offset]
            if verdict is Verdict.ACCEPT:
                self.messages[offset] = Message(DeliveryState.ACKED, message.deliveries)
            elif verdict is Verdict.GAP:
                self.messages[offset] = Message(DeliveryState.ARCHIVED, is_gap=True)
            elif verdict is Verdict.REJECT:
                self.archive(offset)
            elif verdict is Verdict.RELEASE:
                self.release(offset)
            else:
                self.messages[offset] = replace(message, deadline_ms=now_ms + self.limits.lock_ms)
        self.settle()

    def release_consumer(self, consumer: str, now_ms: int) -> None:
        self.tick(now_ms)
        for offset, message in list(self.messages.items()):
            if message.state is DeliveryState.ACQUIRED and message.consumer == consumer:
                self.release(offset)
        self.settle()

    def skip_to(self, offset: int) -> None:
        self.start = max(self.start, offset)
        self.end = max(self.end, offset)
        self.messages = {at: message for at, message in self.messages.items() if at >= self.start}
        self.settle()

    def settle(self) -> None:
        while self.start < self.end and self.messages[self.start].settled:
            del self.messages[self.start]
            self.start += 1

    def crash(self, now_ms: int) -> None:
        """What everybody held comes back; the last allowed delivery does not."""
        for offset, message in self.messages.items():
            if message.state is DeliveryState.ACQUIRED and message.deliveries >= self.limits.deliveries_max:
                self.messages[offset] = replace(message, consumer=None, deadline_ms=now_ms)
            elif message.state is DeliveryState.ACQUIRED:
                self.messages[offset] = Message(DeliveryState.AVAILABLE, message.deliveries)
        self.settle()
