"""Whatever is closed ends, at whichever moment it is closed.

A task that is cancelled in the very turn of the loop in which what it waits for is done can lose the
cancellation: `asyncio.wait_for` of Python 3.11 does that. So everything here is ended after each number of
turns.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from braidmq.cluster import records
from braidmq.cluster.file_store import FileStore
from braidmq.cluster.kv import Step
from braidmq.cluster.kv_store import KvStore
from braidmq.cluster.membership import Identity, LeaseTimes, Membership
from braidmq.cluster.metadata_store import Put
from braidmq.cluster.served_store import ServedStore
from braidmq.cluster.store_server import StoreServer
from braidmq.platform.clock import SystemClock
from braidmq.platform.disk import RealDisk
from braidmq.platform.randomness import random_bytes

PATIENCE_S = 20.0


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.parametrize("count", range(6))
def test_a_broker_can_leave_while_a_renewal_is_answered(count: int) -> None:
    """N4: its renewals end."""

    class Held(KvStore):
        held: asyncio.Future[None] | None = None

        async def renew(self, lease_id: int) -> int:
            self.held = asyncio.get_running_loop().create_future()
            await self.held
            return await super().renew(lease_id)

    async def story() -> None:
        store = Held(SystemClock())
        await store.start()
        identity = Identity(1, "disk", "run", None, None, "a", "boot")
        times = LeaseTimes(ttl_s=3, renew_s=0.001)
        clock = SystemClock()
        membership = Membership(store, records.prefix("test"), identity, clock.monotonic, random_bytes, times)
        await membership.join()
        await membership.appear(())
        while store.held is None:
            await asyncio.sleep(0.001)
        store.held.set_result(None)
        await turns(count)
        await asyncio.wait_for(membership.leave(), PATIENCE_S)
        await store.close()

    asyncio.run(story())


@pytest.mark.parametrize("whose", ["client", "server"])
def test_both_ends_of_a_served_store_can_be_closed_while_answers_come(whose: str, tmp_path: Path) -> None:
    """N4: a request that is answered or taken in this very moment holds up nothing."""

    async def story() -> None:
        store = FileStore(RealDisk(), tmp_path, SystemClock())
        await store.start()
        for count in range(40):
            server = StoreServer(store)
            await server.listen_unix(tmp_path / "socket")
            client = ServedStore(f"unix:{tmp_path / 'socket'}")
            await client.start()
            await client.get("a")
            asking = asyncio.ensure_future(client.get("a"))
            await turns(count)
            first, second = (client, server) if whose == "client" else (server, client)
            await asyncio.wait_for(first.close(), PATIENCE_S)
            await asyncio.wait_for(second.close(), PATIENCE_S)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        await store.close()

    asyncio.run(story())


def test_a_close_that_is_given_up_does_not_cut_off_a_commit(tmp_path: Path) -> None:
    """N4: the commit is answered when it is on disk, and a second close ends the store."""
    may_write = threading.Event()

    class Slow(FileStore):
        async def _write(self, steps: Sequence[Step]) -> None:
            await asyncio.to_thread(may_write.wait)
            await super()._write(steps)

    async def story() -> None:
        store = Slow(RealDisk(), tmp_path, SystemClock())
        await store.start()
        commit = asyncio.ensure_future(store.commit(puts=[Put("a", b"1")]))
        await turns(5)
        closing = asyncio.ensure_future(store.close())
        await turns(5)
        closing.cancel()
        await asyncio.gather(closing, return_exceptions=True)
        may_write.set()
        assert await asyncio.wait_for(commit, PATIENCE_S) == 2
        await asyncio.wait_for(store.close(), PATIENCE_S)

    asyncio.run(story())
