"""A store that has just failed to answer: those who come next do not wait for it as well.

Changes are made one at a time in places, and a request may hold many of them. If each waited for the store
until its own time was over, the last one would wait for the sum. So for a moment after a failure changes are
refused at once, and then one of them tries again.
"""

from __future__ import annotations

import asyncio

from braidmq.cluster.metadata_store import StoreError, Unavailable, Unknown


class Outage:
    """Whether the store is away, as far as is known from the last change."""

    def __init__(self, pause_s: float = 0.0) -> None:
        self._pause_s = pause_s
        self._until_s = 0.0
        self._why = ""

    def refusal(self) -> Unavailable | None:
        """Why no change is to be tried now; None if it may be."""
        if not self._until_s or asyncio.get_running_loop().time() >= self._until_s:
            return None
        return Unavailable(self._why)

    def note(self, error: StoreError) -> None:
        """A change could not be made."""
        if self._pause_s and isinstance(error, Unavailable | Unknown):
            self._until_s = asyncio.get_running_loop().time() + self._pause_s
            self._why = str(error)
