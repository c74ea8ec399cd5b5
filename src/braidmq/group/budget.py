"""A bound on what is kept for many, without counting at every change.

What is added is added to an estimate as well; what goes is not subtracted. So the estimate can only be too
high. When it reaches the limit everything is weighed, and not again for a while, because that takes time
in proportion to what is kept.
"""

from __future__ import annotations

from collections.abc import Callable

from braidmq.wire.errors import ApiError, ErrorCode


class Budget:
    """Bytes that may be kept; `what` names it in the error message."""

    def __init__(self, most_bytes: int, what: str, weigh: Callable[[], int], pause_ms: int) -> None:
        self._most_bytes = most_bytes
        self._what = what
        self._weigh = weigh
        self._pause_ms = pause_ms
        self._estimate_bytes = 0
        self._weighed_ms: int | None = None

    def add(self, size_bytes: int) -> None:
        """So much has come that nobody is asked about, such as what was loaded."""
        self._estimate_bytes += size_bytes

    def admit(self, size_bytes: int, now_ms: int) -> None:
        """Raises ApiError if so much more is too much."""
        if self._estimate_bytes + size_bytes > self._most_bytes and self._may_weigh(now_ms):
            self._estimate_bytes = self._weigh()
            self._weighed_ms = now_ms
        if self._estimate_bytes + size_bytes > self._most_bytes:
            raise ApiError(
                ErrorCode.POLICY_VIOLATION,
                f"{self._what} would take more than group.{self._what}.bytes.max={self._most_bytes} bytes",
            )
        self._estimate_bytes += size_bytes

    def _may_weigh(self, now_ms: int) -> bool:
        return self._weighed_ms is None or now_ms - self._weighed_ms >= self._pause_ms
