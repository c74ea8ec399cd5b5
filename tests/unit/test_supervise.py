"""The supervisor of several brokers, with processes that register like brokers and serve nobody."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

import braidmq
from braidmq.cluster import records
from braidmq.cluster.membership import JoinRefused
from braidmq.cluster.metadata_store import Put
from braidmq.cluster.records import PartitionMeta, TopicMeta, encode
from braidmq.cluster.served_store import ServedStore
from braidmq.cluster.shared_directory import SharedDirectory, socket_path
from braidmq.platform.clock import SystemClock
from braidmq.platform.disk import RealDisk
from braidmq.platform.lock import DirectoryInUse, holder_of
from braidmq.supervise import LOUD_AFTER, CannotStart, Plan, Restarts, Supervisor
from unit import supervised
from unit.supervised import plan

PREFIX = records.prefix("braid")


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(braidmq.__file__).parents[1]))


class Running:
    """A supervisor in this process."""

    def __init__(self, wanted: Plan) -> None:
        self.supervisor = Supervisor(wanted)
        self.lines: list[str] = []
        self._ready = asyncio.Event()
        self._task = asyncio.ensure_future(self.supervisor.run(self._on_ready))

    def _on_ready(self, line: str) -> None:
        self.lines.append(line)
        self._ready.set()

    async def ready(self) -> Running:
        ready = asyncio.ensure_future(self._ready.wait())
        async with asyncio.timeout(30):
            await asyncio.wait([ready, self._task], return_when=asyncio.FIRST_COMPLETED)
        if self._task.done():
            await self._task
        return self

    @property
    def pids(self) -> list[int]:
        return [child.process.pid if child.process else 0 for child in self.supervisor.children]

    async def stop(self) -> None:
        self.supervisor._on_signal()
        async with asyncio.timeout(30):
            await self._task


async def until(true: Callable[[], bool | Awaitable[bool]]) -> None:
    async with asyncio.timeout(20):
        while True:
            found = true()
            if found if isinstance(found, bool) else await found:
                return
            await asyncio.sleep(0.02)


async def stored(data: Path, *puts: Put) -> list[str]:
    """Puts keys into the store that is served there; all keys."""
    store = ServedStore(f"unix:{socket_path(data / 'cluster')}")
    await store.start()
    try:
        if puts:
            await store.commit(puts=puts)
        return [item.key for item in (await store.snapshot("")).items]
    finally:
        await store.close()


def test_it_is_ready_when_all_brokers_are_and_stops_them_one_after_the_other(tmp_path: Path) -> None:
    """W2: one line once all accept clients; SIGTERM ends them in order, and cleanly."""

    async def story() -> None:
        running = await Running(plan(tmp_path)).ready()
        first = running.supervisor.children[0].listen
        assert running.lines == [f"ready {first} brokers=3 data={tmp_path}"]
        assert len({child.listen.port for child in running.supervisor.children}) == 3
        assert [child.data for child in running.supervisor.children] == [tmp_path / n for n in "123"]
        await running.stop()
        assert (tmp_path / "stops").read_text().split() == ["1", "2", "3"]
        assert holder_of(tmp_path / "cluster") is None

    asyncio.run(story())


def test_a_killed_broker_loses_its_lease_at_once_and_is_started_again(tmp_path: Path) -> None:
    """W2: leases of 30 s do not matter; the broker is back on its port."""

    async def story() -> None:
        running = await Running(plan(tmp_path, brokers=2)).ready()
        child = running.supervisor.children[1]
        port, pid = child.listen.port, running.pids[1]
        alive = PREFIX + records.alive_key(2)
        os.kill(pid, signal.SIGKILL)

        async def gone() -> bool:
            return alive not in await stored(tmp_path)

        await until(gone)
        await until(lambda: child.ready.is_set() and running.pids[1] not in (0, pid))
        assert child.listen.port == port
        assert alive in await stored(tmp_path)
        await running.stop()

    asyncio.run(story())


def left_behind(data: Path, brokers: int) -> list[int]:
    """Brokers whose supervisor was killed."""
    supervisor = subprocess.Popen(
        [sys.executable, str(supervised.__file__), "supervise", str(data), str(brokers)],
        stdout=subprocess.PIPE,
    )
    assert supervisor.stdout is not None
    with supervisor.stdout:
        assert supervisor.stdout.readline().startswith(b"ready ")
        supervisor.kill()
        supervisor.wait()
    pids = [holder_of(data / str(number)) for number in range(1, brokers + 1)]
    return [pid for pid in pids if pid]


def test_a_supervisor_that_comes_back_keeps_the_brokers_that_still_run(tmp_path: Path) -> None:
    """W2: a killed supervisor takes no broker with it, and the next one starts no double."""
    pids = left_behind(tmp_path, 2)
    assert len(pids) == 2

    async def story() -> None:
        running = await Running(plan(tmp_path, brokers=2)).ready()
        assert running.pids == pids
        os.kill(pids[0], signal.SIGKILL)
        await until(
            lambda: running.pids[0] not in (0, pids[0]) and running.supervisor.children[0].ready.is_set()
        )
        await running.stop()
        assert holder_of(tmp_path / "1") is holder_of(tmp_path / "2") is None

    asyncio.run(story())


def test_a_broker_that_runs_with_other_options_is_started_anew(tmp_path: Path) -> None:
    """W2: what a new supervisor is asked for counts."""
    pids = left_behind(tmp_path, 1)

    async def story() -> None:
        running = await Running(plan(tmp_path, brokers=1, arguments=("-o", "flush=async"))).ready()
        assert running.pids != pids
        await running.stop()

    asyncio.run(story())


def test_a_broker_that_still_runs_cannot_be_left_out(tmp_path: Path) -> None:
    """W2: nobody would watch it, and nobody would stop it."""
    pids = left_behind(tmp_path, 2)

    async def story() -> None:
        with pytest.raises(JoinRefused, match=f"broker 2 still runs here, as process {pids[1]}"):
            await Running(plan(tmp_path, brokers=1)).ready()
        await (await Running(plan(tmp_path, brokers=2)).ready()).stop()

    asyncio.run(story())


def test_two_supervisors_do_not_share_a_directory(tmp_path: Path) -> None:
    """W2: the second one is refused with what to do."""

    async def story() -> None:
        running = await Running(plan(tmp_path, brokers=1)).ready()
        with pytest.raises(DirectoryInUse, match="another braid serve --brokers"):
            await Running(plan(tmp_path, brokers=1)).ready()
        await running.stop()

    asyncio.run(story())


def test_a_broker_that_refuses_to_start_ends_the_start(tmp_path: Path) -> None:
    """W2: a mistake of the user is not tried again and again; the others are stopped."""

    async def story() -> None:
        (tmp_path / "2").mkdir()
        (tmp_path / "2" / "mood").write_text("refuses")
        with pytest.raises(CannotStart, match="broker 2"):
            await Running(plan(tmp_path, brokers=2)).ready()
        assert holder_of(tmp_path / "1") is None

    asyncio.run(story())


def test_a_broker_that_crashes_at_its_start_is_tried_again(tmp_path: Path) -> None:
    """W2: the others are not held up by it, and once it can, it comes."""

    async def story() -> None:
        (tmp_path / "2").mkdir()
        mood = tmp_path / "2" / "mood"
        mood.write_text("crashes")
        running = Running(plan(tmp_path, brokers=2))
        await until(
            lambda: bool(running.supervisor.children) and running.supervisor.children[0].ready.is_set()
        )
        mood.unlink()
        await running.ready()
        await running.stop()

    asyncio.run(story())


def test_a_second_signal_hurries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """W2: a broker that does not stop is killed in the end."""
    monkeypatch.setattr("braidmq.supervise.HURRIED_STOP_S_MAX", 0.2)

    async def story() -> None:
        (tmp_path / "1").mkdir()
        (tmp_path / "1" / "mood").write_text("stubborn")
        running = await Running(plan(tmp_path, brokers=2)).ready()
        running.supervisor._on_signal()
        await asyncio.sleep(0.1)
        await running.stop()
        assert (tmp_path / "stops").read_text().split() == ["2"]

    asyncio.run(story())


def test_a_broker_that_holds_partitions_cannot_be_left_out(tmp_path: Path) -> None:
    """W2: fewer brokers than before are refused while the others hold something, and one alone likewise."""
    topic_id = bytes(16)

    def puts(*replicas: int) -> list[Put]:
        meta = PartitionMeta(leader=replicas[0], epoch=0, replicas=replicas, isr=replicas)
        return [
            Put(PREFIX + records.partition_key(topic_id, 0), encode(meta, "test")),
            Put(PREFIX + records.topic_key(topic_id), encode(TopicMeta(name="t", partitions=1), "test")),
        ]

    async def story() -> None:
        shared = SharedDirectory(tmp_path, RealDisk(), SystemClock())
        running = await Running(plan(tmp_path, brokers=2)).ready()
        await stored(tmp_path, *puts(2))
        await running.stop()
        with pytest.raises(JoinRefused, match=r"broker 2: 1\); start with --brokers 2"):
            await Running(plan(tmp_path, brokers=1)).ready()
        with pytest.raises(JoinRefused, match=r"broker 2: 1\); start with --brokers 2"):
            await shared.give_back()
        running = await Running(plan(tmp_path, brokers=2)).ready()
        await stored(tmp_path, *puts(1))
        await running.stop()
        assert await shared.give_back() == tmp_path / "1"
        assert (tmp_path / "1" / "metadata.store").exists()
        running = await Running(plan(tmp_path, brokers=2)).ready()
        assert PREFIX + records.topic_key(topic_id) in await stored(tmp_path)
        await running.stop()

    asyncio.run(story())


def test_a_long_path_has_its_socket_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """W2: Unix sockets have short paths; the place is the same after every start and nobody else's."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/tmp")
    long = tmp_path / ("x" * 120) / "cluster"
    path = socket_path(long)
    try:
        assert len(str(path)) < 100
        assert socket_path(long) == path
        path.parent.chmod(0o755)
        with pytest.raises(JoinRefused, match="of this user alone"):
            socket_path(long)
    finally:
        path.parent.rmdir()


def test_pauses_double_up_to_ten_seconds_and_begin_anew_after_a_minute() -> None:
    """W2: a broker that keeps ending is started less and less often, and says so loudly."""
    restarts = Restarts()
    pauses = [restarts.ended(float(number), 1.0) for number in range(9)]
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]
    assert restarts.is_loud
    assert restarts.ended(100.0, 61.0) == 0.1
    assert not restarts.is_loud
    assert LOUD_AFTER == 5
