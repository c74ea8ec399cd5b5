"""Several brokers on one machine: `braid serve --brokers N`. A supervisor without a data path.

It keeps the metadata store of the brokers and serves it to them on a Unix socket, starts each as a process of
its own, and starts one again that has ended. Clients go straight to the brokers; the supervisor sees none of
their bytes. With a store elsewhere (`--store`) it only keeps the brokers running.

A broker that has ended is taken out of the cluster at once: its lease is revoked, so that nobody waits for it
to run out. It is started again after a pause that doubles with every failure.

If the supervisor itself is killed, the brokers go on: they serve from what they know, and only changes of
metadata wait. A supervisor that is started again finds the brokers that still run, by the locks on their data
directories. Those it would start with the same command are kept, and watched like its own; any other is
stopped and started anew. So there are never two processes on one directory.

Stopping takes one broker after the other, and the store last. A second signal stops all that are left at
once, a third kills them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from braidmq.address import Address
from braidmq.cluster import records
from braidmq.cluster.file_store import FileStore
from braidmq.cluster.membership import JoinRefused
from braidmq.cluster.metadata_store import MetadataStore, StoreError
from braidmq.cluster.node_file import read_node_file
from braidmq.cluster.records import Alive, BadRecord, decode
from braidmq.cluster.shared_directory import SharedDirectory, count_holders, socket_path
from braidmq.cluster.store_server import StoreServer
from braidmq.platform.clock import Clock, SystemClock
from braidmq.platform.disk import Disk, RealDisk
from braidmq.platform.lock import holder_of
from braidmq.platform.processes import Process, command_of, start

PAUSE_S_MIN = 0.1
PAUSE_S_MAX = 10.0
SETTLED_S = 60.0
"""A broker that was up for this long counts as sound again."""
LOUD_AFTER = 5
STOP_S_MAX = 60.0
HURRIED_STOP_S_MAX = 5.0
TELL_EVERY_S = 10.0
LOOK_EVERY_S = 0.05
EXIT_MISTAKE = 2

log = logging.getLogger("braid.supervisor")

OpenStore = Callable[[], Awaitable[MetadataStore]]


class CannotStart(Exception):
    """A broker refuses to start; it has said why on stderr."""

    def __init__(self, node_id: int, code: int) -> None:
        super().__init__(f"broker {node_id} does not start (exit code {code}); its reason is above")
        self.code = code


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run."""

    brokers: int
    first_id: int
    data: Path
    listen: Address
    advertise: Address | None
    cluster_name: str
    arguments: tuple[str, ...] = ()
    """For every broker: options, log level, configuration file."""
    addresses: tuple[tuple[str, Address], ...] = ()
    """Options of the first broker that are addresses; each of the others has the next port."""
    program: tuple[str, ...] = (sys.executable, "-m", "braidmq", "serve")
    stop_on_eof: bool = False
    open_store: OpenStore | None = None
    """The store of brokers that have one elsewhere; they know its address from their arguments."""


class Restarts:
    """How long to wait before a broker is started again."""

    def __init__(self) -> None:
        self._pause_s = PAUSE_S_MIN
        self._ends: deque[float] = deque(maxlen=LOUD_AFTER)

    def ended(self, now: float, up_s: float) -> float:
        """A broker has ended that was up for so long; the pause before the next start."""
        if up_s >= SETTLED_S:
            self._pause_s = PAUSE_S_MIN
        self._ends.append(now)
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, PAUSE_S_MAX)
        return pause_s

    @property
    def is_loud(self) -> bool:
        """Whether it has ended so often within a minute that somebody should look."""
        return len(self._ends) == LOUD_AFTER and self._ends[-1] - self._ends[0] < SETTLED_S


@dataclass(slots=True)
class Child:
    """One broker, whether or not it runs at the moment."""

    node_id: int
    data: Path
    listen: Address
    advertise: Address | None
    process: Process | None = None
    restarts: Restarts = field(default_factory=Restarts)
    was_ready: bool = False
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    started_at: float = 0.0

    @property
    def name(self) -> str:
        return f"broker {self.node_id}"


def run(plan: Plan, ready: Callable[[str], None]) -> None:
    """Runs brokers until stopped. `ready` gets the line that says that all of them accept clients."""
    asyncio.run(Supervisor(plan).run(ready))


class Supervisor:
    """Keeps the brokers of a plan running, and their store."""

    def __init__(self, plan: Plan, disk: Disk | None = None, clock: Clock | None = None) -> None:
        self._plan = plan
        self._disk = disk or RealDisk()
        self._clock = clock or SystemClock()
        self._directory = SharedDirectory(plan.data, self._disk, self._clock)
        self._store: MetadataStore | None = None
        self._store_argument: tuple[str, ...] = ()
        self.children: list[Child] = []
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()
        self._signals = 0
        self._failed: Exception | None = None

    async def run(self, ready: Callable[[str], None]) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, self._on_signal)
        async with contextlib.AsyncExitStack() as stack:
            self._disk.makedirs(self._plan.data)
            lock = self._directory.lock()
            stack.callback(lock.release)
            await self._open_store(stack)
            self._plan_children()
            await self._check_others()
            keeping = [loop.create_task(self._keep(child), name=child.name) for child in self.children]
            stack.push_async_callback(self._stop, keeping)
            if await self._all_ready():
                first = self.children[0].listen
                ready(f"ready {first} brokers={len(self.children)} data={self._plan.data}")
                await self._stopping.wait()
            log.info("stopping")
        if self._failed is not None:
            raise self._failed

    # -- start ----------------------------------------------------------------------------------

    async def _open_store(self, stack: contextlib.AsyncExitStack) -> None:
        plan, directory = self._plan, self._directory
        if plan.open_store is not None:
            self._store = await plan.open_store()
            stack.push_async_callback(self._store.close)
            return
        home = directory.home(plan.first_id, plan.first_id)
        await directory.take_over(home, plan.first_id, plan.cluster_name)
        store = FileStore(self._disk, directory.store, self._clock)
        await store.start()
        stack.push_async_callback(store.close)
        server = StoreServer(store)
        path = socket_path(directory.store)
        await server.listen_unix(path)
        stack.callback(path.unlink, missing_ok=True)
        stack.push_async_callback(server.close)
        self._store = store
        self._store_argument = ("-o", f"store=unix:{path}")

    def _plan_children(self) -> None:
        plan = self._plan
        for number in range(plan.brokers):
            node_id = plan.first_id + number
            self.children.append(
                Child(
                    node_id,
                    self._directory.home(node_id, plan.first_id),
                    _shifted(plan.listen, number),
                    None if plan.advertise is None else _shifted(plan.advertise, number),
                )
            )

    async def _check_others(self) -> None:
        """Refuses to leave out a broker of this directory that is needed, or that runs."""
        known = {child.node_id: child.data for child in self.children}
        if runs := self._directory.strangers(known):
            pid = holder_of(self._plan.data / str(runs[0]))
            raise JoinRefused(
                f"broker {runs[0]} still runs here, as process {pid}; stop it, or start with --brokers"
                f" {runs[-1] - self._plan.first_id + 1}"
            )
        if self._plan.open_store is None:
            assert self._store is not None
            others = await count_holders(self._store)
            left_out = sorted(
                one for one in others if one not in known and (self._plan.data / str(one)).exists()
            )
            if left_out:
                held = ", ".join(f"broker {one}: {others[one]}" for one in left_out)
                raise JoinRefused(
                    f"brokers that would not run hold partitions ({held}); start with --brokers"
                    f" {left_out[-1] - self._plan.first_id + 1} or more"
                )

    async def _all_ready(self) -> bool:
        """Waits until every broker accepts clients; False if it was stopped before."""
        stopping = asyncio.ensure_future(self._stopping.wait())
        ready = asyncio.ensure_future(self._each_ready())
        try:
            while not ready.done() and not stopping.done():
                await asyncio.wait(
                    [ready, stopping], timeout=TELL_EVERY_S, return_when=asyncio.FIRST_COMPLETED
                )
                late = [child.name for child in self.children if not child.ready.is_set()]
                if late and not self._stopping.is_set():
                    log.info("still waiting for %s; after a crash it reads its logs first", ", ".join(late))
        finally:
            ready.cancel()
            stopping.cancel()
        return not self._stopping.is_set()

    async def _each_ready(self) -> None:
        for child in self.children:
            await child.ready.wait()

    # -- one broker -----------------------------------------------------------------------------

    async def _keep(self, child: Child) -> None:
        """Runs a broker until the supervisor stops."""
        while not self._stopping.is_set():
            try:
                process = await self._found(child)
                if self._stopping.is_set() and process is None:
                    return
                process = process or self._started(child)
                child.process = process
                child.started_at = self._clock.monotonic()
                code = await process.wait()
                child.process = None
                child.ready.clear()
                await self._after_end(child, process, code)
            except OSError as error:
                log.error("%s cannot be started: %s", child.name, error)
                await self._pause(child.restarts.ended(self._clock.monotonic(), 0.0))
            except Exception:
                # A defect of ours: a broker that nobody starts again would be worse.
                log.exception("%s is not watched for a moment", child.name)
                await self._pause(child.restarts.ended(self._clock.monotonic(), 0.0))

    async def _after_end(self, child: Child, process: Process, code: int | None) -> None:
        await self._revoke(child)
        if self._stopping.is_set():
            return
        if code == EXIT_MISTAKE and holder_of(child.data) is not None:
            # It came too late: one that an earlier supervisor has started just before it was killed.
            log.info("%s runs already", child.name)
            return
        if code == EXIT_MISTAKE and not child.was_ready:
            self._fail(CannotStart(child.node_id, code))
            return
        now = self._clock.monotonic()
        pause_s = child.restarts.ended(now, now - child.started_at)
        say = log.critical if child.restarts.is_loud else log.warning
        often = f"; it has ended {LOUD_AFTER} times within a minute" if child.restarts.is_loud else ""
        say(
            "%s (process %d) has ended %s; it is started again in %.1f s%s",
            child.name, process.pid, _how(code), pause_s, often,
        )  # fmt: skip
        await self._pause(pause_s)

    def _started(self, child: Child) -> Process:
        log.debug("%s is started", child.name)
        return start(
            self.command(child),
            lambda line: self._on_line(child, line),
            holds_stdin=self._plan.stop_on_eof,
            environment=dict(os.environ),
        )

    def command(self, child: Child) -> list[str]:
        """What a broker is started with."""
        plan = self._plan
        words = [*plan.program, "--data", str(child.data.absolute()), "--listen", str(child.listen)]
        if child.advertise is not None:
            words += ["--advertise", str(child.advertise)]
        words += [*plan.arguments, *self._store_argument, "-o", f"node.id={child.node_id}"]
        for name, address in plan.addresses:
            words += ["-o", f"{name}={_shifted(address, child.node_id - plan.first_id)}"]
        words += ["--log-prefix", f"[{child.name}]"]
        return [*words, "--stop-on-eof"] if plan.stop_on_eof else words

    def _on_line(self, child: Child, line: str) -> None:
        words = line.split()
        if words[:1] == ["ready"] and len(words) > 1:
            host, _, port = words[1].rpartition(":")
            # A free port that it was given is its own from here on: clients know it.
            child.listen = Address(host.strip("[]"), int(port))
            self._became_ready(child)

    def _became_ready(self, child: Child) -> None:
        if child.was_ready:
            log.info("%s is back at %s", child.name, child.listen)
        child.was_ready = True
        child.ready.set()

    # -- brokers that another supervisor has started --------------------------------------------

    async def _found(self, child: Child) -> Process | None:
        """The process that already runs in the broker's directory, if it is as it should be."""
        said = False
        while not self._stopping.is_set():
            pid = holder_of(child.data) if child.data.exists() else None
            if pid is None:
                return None
            if pid == 0 and not said:
                log.warning("%s: a process that cannot be seen from here holds %s", child.name, child.data)
                said = True
            process = Process(pid) if pid else None
            # Looked at again: the holder may have ended before it was watched.
            if process is None or holder_of(child.data) != pid:
                if process is not None:
                    process.let_go()
                await asyncio.sleep(LOOK_EVERY_S)
                continue
            child.process = process
            if self._is_as_planned(child, command_of(pid)):
                log.info("%s still runs as process %d and is kept", child.name, pid)
                await self._until_seen(child, process)
                return process
            log.info("%s runs as process %d with other options; it is restarted", child.name, pid)
            await self._end(process, child)
            child.process = None
        return None

    def _is_as_planned(self, child: Child, command: list[str] | None) -> bool:
        if command is None:
            return True
        planned = self.command(child)
        if child.listen.port == 0 and "--listen" in command:
            at = planned.index("--listen") + 1
            command = [*command]
            command[command.index("--listen") + 1] = planned[at]
        return command == planned

    async def _until_seen(self, child: Child, process: Process) -> None:
        """Waits until a broker that was found has registered: then it accepts clients."""
        while not process.ended and not self._stopping.is_set():
            if (alive := await self._alive(child)) is not None and alive.listeners:
                _, host, port = alive.listeners[0]
                if child.listen.port == 0:
                    child.listen = Address(child.listen.host, port)
                log.debug("%s is registered at %s:%d", child.name, host, port)
                self._became_ready(child)
                return
            await asyncio.sleep(LOOK_EVERY_S)

    # -- the store ------------------------------------------------------------------------------

    def _alive_key(self, child: Child) -> str:
        return records.prefix(self._plan.cluster_name) + records.alive_key(child.node_id)

    async def _alive(self, child: Child) -> Alive | None:
        assert self._store is not None
        try:
            item = await self._store.get(self._alive_key(child))
            return None if item is None else decode(Alive, item.key, item.value)
        except (StoreError, BadRecord) as error:
            log.warning("the registration of %s cannot be read: %s", child.name, error)
            return None

    async def _revoke(self, child: Child) -> None:
        """Takes a broker that has ended out of the cluster, if what is registered is what ran here."""
        assert self._store is not None
        try:
            kept = read_node_file(self._disk, child.data)
            item = await self._store.get(self._alive_key(child))
            if item is None or kept is None or decode(Alive, item.key, item.value).run != kept.run:
                return
            await self._store.revoke(item.lease)
            log.debug("the lease of %s is revoked", child.name)
        except (StoreError, BadRecord, OSError) as error:
            log.warning("%s is dead and still registered until its lease ends: %s", child.name, error)

    # -- stop -----------------------------------------------------------------------------------

    def _on_signal(self) -> None:
        self._signals += 1
        self._stopping.set()
        if self._signals == 2:
            log.warning("stopping all brokers at once")
            self._hurry.set()
        elif self._signals > 2:
            for child in self.children:
                if child.process is not None:
                    child.process.signal(signal.SIGKILL)

    def _fail(self, error: Exception) -> None:
        self._failed = self._failed or error
        self._stopping.set()

    async def _pause(self, pause_s: float) -> None:
        """Waits, unless the supervisor stops meanwhile."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._stopping.wait()

    async def _stop(self, keeping: list[asyncio.Task[None]]) -> None:
        self._stopping.set()
        for child in self.children:
            if child.process is None:
                continue
            if self._hurry.is_set():
                await asyncio.gather(*(self._end_child(each) for each in self.children))
                break
            await self._end_child(child)
        await asyncio.gather(*keeping, return_exceptions=True)

    async def _end_child(self, child: Child) -> None:
        if child.process is not None:
            await self._end(child.process, child)

    async def _end(self, process: Process, child: Child) -> None:
        """Ends a process, cleanly if it does so in time."""
        process.signal(signal.SIGTERM)
        waiting = asyncio.ensure_future(process.wait())
        hurried = asyncio.ensure_future(self._hurry.wait())
        done, _ = await asyncio.wait(
            [waiting, hurried], timeout=STOP_S_MAX, return_when=asyncio.FIRST_COMPLETED
        )
        hurried.cancel()
        if waiting not in done and self._hurry.is_set():
            for each in self.children:
                if each.process is not None:
                    each.process.signal(signal.SIGTERM)
            done, _ = await asyncio.wait([waiting], timeout=HURRIED_STOP_S_MAX)
        if waiting not in done:
            log.error("%s (process %d) does not stop; it is killed", child.name, process.pid)
            process.signal(signal.SIGKILL)
        await waiting


def _shifted(address: Address, number: int) -> Address:
    """The address of the broker with this number; port 0 stays: each takes a free one."""
    return Address(address.host, address.port and address.port + number)


def _how(code: int | None) -> str:
    if code is None:
        return "by itself"
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"by {signal.Signals(-code).name}"
    return f"with exit code {code}"
