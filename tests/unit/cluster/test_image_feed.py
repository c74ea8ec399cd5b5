"""The image follows the store, whatever becomes of the watch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from braidmq.cluster import image_feed as feed_module
from braidmq.cluster import records
from braidmq.cluster.image import Delta, Image
from braidmq.cluster.image_feed import ImageFeed
from braidmq.cluster.kv_store import KvStore
from braidmq.cluster.metadata_store import (
    Change,
    Lost,
    Put,
    Snapshot,
    StoreClosed,
    StoreError,
    Unavailable,
    Watch,
)
from braidmq.cluster.records import Controller, encode
from braidmq.platform.clock import SystemClock

PREFIX = records.prefix("test")


class BreakingWatch:
    """A watch that ends with an error after one change."""

    def __init__(self, watch: Watch, error: Exception) -> None:
        self._watch = watch
        self._error = error
        self._left = 1

    def __aiter__(self) -> AsyncIterator[Change]:
        return self

    async def __anext__(self) -> Change:
        if self._left == 0:
            raise self._error
        self._left -= 1
        return await anext(self._watch)

    async def close(self) -> None:
        await self._watch.close()


class BreakingStore(KvStore):
    """Breaks each watch in turn, and counts snapshots."""

    def __init__(self, errors: list[Exception]) -> None:
        super().__init__(SystemClock())
        self.errors = errors
        self.snapshots = 0

    def watch(self, prefix: str, after_revision: int) -> Watch:
        watch = super().watch(prefix, after_revision)
        return BreakingWatch(watch, self.errors.pop(0)) if self.errors else watch

    async def snapshot(self, prefix: str) -> Snapshot:
        self.snapshots += 1
        return await super().snapshot(prefix)


@asynccontextmanager
async def fed(store: KvStore) -> AsyncIterator[ImageFeed]:
    await store.start()
    feed = ImageFeed(store, Image(PREFIX), SystemClock())
    await feed.start()
    try:
        yield feed
    finally:
        await feed.stop()
        await store.close()


def run(story: Callable[[], Awaitable[None]]) -> None:
    async def patiently() -> None:
        await asyncio.wait_for(story(), 60)

    asyncio.run(patiently())


async def elect(store: KvStore, node_id: int) -> int:
    key = PREFIX + records.CONTROLLER
    return await store.commit((), [Put(key, encode(Controller(node_id=node_id), "1/1"))])


@pytest.mark.parametrize(
    ("error", "snapshots"), [(Lost(3), 2), (Unavailable("away"), 1)], ids=["compacted", "unreachable"]
)
def test_nothing_is_missed_when_the_watch_breaks(
    error: StoreError, snapshots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N4: a compacted watch costs a snapshot, one that was cut goes on from its last revision."""
    monkeypatch.setattr(feed_module, "RETRY_FIRST_S", 0.001)

    async def story() -> None:
        store = BreakingStore([error])
        async with fed(store) as feed:
            for node_id in range(5):
                await feed.reached(await elect(store, node_id))
                assert feed.image.controller is not None
                assert feed.image.controller.record.node_id == node_id
        assert store.snapshots == snapshots

    run(story)


def test_a_listener_that_fails_stops_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """N4: it is logged, and the others hear of every change in order."""
    heard: list[int] = []

    def fails(_: Delta) -> None:
        raise RuntimeError("broken")

    async def story() -> None:
        store = KvStore(SystemClock())
        async with fed(store) as feed:
            feed.listen(fails)
            feed.listen(lambda delta: heard.append(delta.revision))
            revisions = [await elect(store, node_id) for node_id in range(3)]
            await feed.reached(revisions[-1])
            assert heard == revisions

    run(story)
    assert "broken" in caplog.text


def test_metadata_that_is_not_understood_is_named(caplog: pytest.LogCaptureFixture) -> None:
    """N4: an operator finds the key in the log."""

    async def story() -> None:
        store = KvStore(SystemClock())
        async with fed(store) as feed:
            await store.commit((), [Put(PREFIX + records.CONTROLLER, b"?")])
            await feed.reached(await elect(store, 1))

    run(story)
    assert "metadata is not understood, controller stays as it was" in caplog.text


def test_a_mistake_in_a_store_does_not_end_the_feed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """N4: an image that stands still for ever would be worse than one more snapshot."""
    monkeypatch.setattr(feed_module, "RETRY_FIRST_S", 0.001)

    async def story() -> None:
        store = BreakingStore([ZeroDivisionError("a mistake")])
        async with fed(store) as feed:
            for node_id in range(3):
                await feed.reached(await elect(store, node_id))

    run(story)
    assert "a mistake" in caplog.text


@pytest.mark.parametrize("whose", ["store", "feed"])
def test_nobody_waits_for_a_feed_that_has_ended(whose: str) -> None:
    """N4: those who wait for a revision, and those who come later, hear that it will not be shown."""

    async def story() -> None:
        store = KvStore(SystemClock())
        async with fed(store) as feed:
            waiting = asyncio.ensure_future(feed.reached(1000))
            await asyncio.sleep(0)
            await (store.close() if whose == "store" else feed.stop())
            with pytest.raises(StoreClosed):
                await waiting
            with pytest.raises(StoreClosed):
                await feed.reached(1000)

    run(story)
