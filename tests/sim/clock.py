"""Time that moves only when told."""

from __future__ import annotations


class SimClock:
    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self.now_ms = now_ms

    def wall_ms(self) -> int:
        return self.now_ms

    def monotonic(self) -> float:
        return self.now_ms / 1000

    def boottime(self) -> float:
        return self.now_ms / 1000

    def advance_ms(self, by_ms: int) -> None:
        self.now_ms += by_ms
