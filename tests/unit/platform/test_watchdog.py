"""The watchdog: stalls of the loop are counted and logged once, with the stack that was caught."""

from __future__ import annotations

import asyncio
import logging
import time
import weakref

import pytest

from braidmq.platform.watchdog import Watchdog

LIMIT_MS = 20


def stand_still(watchdog: Watchdog) -> None:
    """Holds up the loop without holding the interpreter, past the limit and until the watchdog has looked."""
    since_s = time.monotonic()
    for _ in range(5000):
        if watchdog.caught is not None and time.monotonic() - since_s > 3 * LIMIT_MS / 1000:
            return
        time.sleep(0.002)
    raise TimeoutError("the watchdog did not look")


async def beaten(watchdog: Watchdog) -> None:
    """Returns when the loop has had its heartbeat again."""
    seen = watchdog.stalls
    for _ in range(1000):
        if watchdog.stalls != seen:
            return
        await asyncio.sleep(0.005)


def test_a_turn_over_the_limit_is_logged_once_with_its_stack(caplog: pytest.LogCaptureFixture) -> None:
    """L14: what made everybody wait can be read in the log, and counted."""

    async def run() -> Watchdog:
        watchdog = Watchdog(LIMIT_MS)
        watchdog.start()
        stand_still(watchdog)
        await beaten(watchdog)
        watchdog.stop()
        return watchdog

    with caplog.at_level(logging.WARNING):
        watchdog = asyncio.run(run())
    assert watchdog.stalls == 1
    assert watchdog.longest_s > LIMIT_MS / 1000
    (told,) = [record.getMessage() for record in caplog.records if record.name == "braid.watchdog"]
    assert "stand_still" in told


class Large:
    """Something that should be gone with the function that made it."""


def hold_and_stand_still(watchdog: Watchdog) -> weakref.ref[Large]:
    large = Large()
    stand_still(watchdog)
    return weakref.ref(large)


def test_nothing_of_a_turn_that_has_ended_is_kept() -> None:
    """L14: the stack is kept as text; the frames would keep the memory and the files they use."""

    async def run() -> None:
        watchdog = Watchdog(LIMIT_MS)
        watchdog.start()
        large = hold_and_stand_still(watchdog)
        await beaten(watchdog)
        assert large() is None
        watchdog.stop()

    asyncio.run(run())


def test_a_loop_that_turns_is_not_complained_about(caplog: pytest.LogCaptureFixture) -> None:
    """L14: an idle loop and a busy one with short turns are fine."""

    async def run() -> Watchdog:
        watchdog = Watchdog(10_000)
        watchdog.start()
        for _ in range(100):
            await asyncio.sleep(0)
        watchdog.stop()
        return watchdog

    assert asyncio.run(run()).stalls == 0
    assert not caplog.records


def test_what_a_stalled_turn_held_is_let_go(caplog: pytest.LogCaptureFixture) -> None:
    """L14: the stack is kept as text; a frame would keep an inflated batch alive until the next stall."""

    class Batch:
        """Something large."""

    def stall(watchdog: Watchdog) -> weakref.ref[Batch]:
        held = Batch()
        stand_still(watchdog)
        return weakref.ref(held)

    async def run() -> None:
        watchdog = Watchdog(LIMIT_MS)
        watchdog.start()
        kept = stall(watchdog)
        await beaten(watchdog)
        for _ in range(1000):
            if kept() is None:
                break
            await asyncio.sleep(0.005)
        assert kept() is None
        watchdog.stop()

    with caplog.at_level(logging.CRITICAL):
        asyncio.run(run())
