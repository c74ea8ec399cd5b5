"""A broker's place in the cluster: it shows who it is, says that it is alive, and notices when it is cut off.

Joining, in this order:

1. The cluster's id, format and secret are made if this is the first broker ever. A data directory of another
   cluster, or a store that a newer version has written, is refused before anything is changed.
2. `brokers/<n>/node` says which data directory node n is. Another one is refused: a broker that comes back
   under its id with empty disks would let everybody believe that it has what it acked. `replace` says it is
   meant.
3. `brokers/<n>/alive` is created, bound to a lease. Its create revision is the *broker epoch*. One that an
   earlier run of this directory has left is removed at once; one of somebody else is waited for as long as a
   dead broker's lease lasts, and then refused: two brokers run under one id.

While it runs, the lease is renewed. It counts from when the last good renewal was *sent*; after that the
broker is `isolated`: somebody else may have taken its place without its knowledge. A lease that has ended is
replaced by a new one, with a new epoch.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from braidmq.cluster import records
from braidmq.cluster.metadata_store import (
    Compare,
    Conflict,
    CreateRevision,
    Expired,
    Item,
    MetadataStore,
    ModRevision,
    Put,
    StoreClosed,
    StoreError,
    Unknown,
    absent,
)
from braidmq.cluster.records import (
    Alive,
    BadRecord,
    ClusterId,
    Format,
    Listener,
    Node,
    Secret,
    State,
    decode,
    encode,
)
from braidmq.cluster.transfer import MARKER

FORMAT_LEVEL = 1
"""What this version writes, and the most it can read."""
SECRET_BYTES = 32
TRIES_MAX = 20
RETRY_S = 0.2

log = logging.getLogger("braid.cluster")


def founding_records(cluster_id: str, secret: bytes) -> dict[str, records.Record]:
    """The keys that make a store a cluster's."""
    return {
        records.CLUSTER_ID: ClusterId(id=cluster_id),
        records.FORMAT: Format(level=FORMAT_LEVEL),
        records.SECRET: Secret(hex=secret.hex()),
    }


class JoinRefused(Exception):
    """This broker cannot be part of this cluster; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a broker is."""

    node_id: int
    uuid: str
    """Of its first data directory, made with it."""
    run: str
    """Of this start; the one before is `former_run`. Both are kept in the data directory."""
    former_run: str | None
    cluster_id: str | None
    """Which cluster the data directory was part of; None if it is new."""
    host: str
    boot_id: str
    rack: str | None = None
    directories: tuple[str, ...] = ()
    lost_unsynced: bool = False
    version: str = ""
    replace: bool = False
    """Whether to take over the node id from another data directory."""


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """In seconds."""

    ttl_s: int = 3
    renew_s: float = 0.75
    isolates: bool = True
    """Whether a broker whose lease may have ended has to reckon with another one in its place."""


EMBEDDED = LeaseTimes(ttl_s=86_400, renew_s=3600.0, isolates=False)
"""For a store in the broker's own process, which no other broker can reach.

Nobody waits for such a lease to end: it goes with the store, and the next start ends what a kill has left. To
renew it is a local call, so it ends only if the process stood still for a day, and the broker registers again
then. Whatever happens, nobody can have taken its place: a single broker never isolates itself.
"""


@dataclass(slots=True)
class _Registration:
    lease_id: int
    ttl_s: int
    epoch: int
    deadline: float


class Membership:
    """Registers a broker and keeps it registered."""

    def __init__(
        self,
        store: MetadataStore,
        prefix: str,
        identity: Identity,
        now: Callable[[], float],
        random_bytes: Callable[[int], bytes],
        times: LeaseTimes | None = None,
    ) -> None:
        self._store = store
        self._prefix = prefix
        self._identity = identity
        self._now = now
        self._random_bytes = random_bytes
        self._times = times or LeaseTimes()
        self._state = State.UP
        self._addresses: tuple[Listener, ...] = ()
        self._registered: _Registration | None = None
        self._lease_under_way = 0
        """Of a registration whose end is not known here."""
        self._left = False
        self._listeners: list[Callable[[int], None]] = []
        self._task: asyncio.Task[None] | None = None
        self._writes = 0
        self.cluster_id = ""
        self.secret = b""

    # -- what is known --------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """The broker epoch; -1 before it is registered."""
        return records.NO_EPOCH if self._registered is None else self._registered.epoch

    @property
    def lease_id(self) -> int:
        return 0 if self._registered is None else self._registered.lease_id

    @property
    def isolated(self) -> bool:
        """Whether somebody else may have taken its place. Read from the clock, each time."""
        if not self._times.isolates:
            return False
        return self._registered is None or self._now() >= self._registered.deadline

    def on_epoch(self, listener: Callable[[int], None]) -> None:
        """Calls `listener` with every new broker epoch."""
        self._listeners.append(listener)

    # -- life -----------------------------------------------------------------------------------

    async def join(self) -> None:
        """Registers; `JoinRefused` if this broker must not, `StoreError` if the store does not answer."""
        await self._found_cluster()
        await self._show_node()

    async def appear(self, listeners: tuple[Listener, ...]) -> None:
        """Says where clients are accepted, and keeps saying so. `join` comes first."""
        self._addresses = listeners
        await self._register()
        self._task = asyncio.get_running_loop().create_task(self._renew_forever(), name="lease")
        self._task.add_done_callback(_say_why)

    async def drain(self) -> None:
        """Says that this broker stops soon."""
        self._state = State.DRAINING
        registered = self._registered
        if registered is None:
            return
        key = self._key(records.alive_key(self._identity.node_id))
        put = Put(key, encode(self._alive(), self._by()), registered.lease_id)
        with contextlib.suppress(Conflict, Expired):
            await self._store.commit([CreateRevision(key, registered.epoch)], [put])

    async def leave(self) -> None:
        """Takes this broker out for good, at once rather than when its lease ends."""
        self._left = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None
        leases = dict.fromkeys((self.lease_id, self._lease_under_way))
        self._registered, self._lease_under_way = None, 0
        for lease_id in leases:
            await self._give_back(lease_id)

    async def _give_back(self, lease_id: int) -> None:
        """Ends a lease if the store can be reached; else it ends by itself."""
        if lease_id:
            with contextlib.suppress(StoreError, TimeoutError):
                async with asyncio.timeout(self._times.ttl_s):
                    await self._store.revoke(lease_id)

    # -- joining --------------------------------------------------------------------------------

    async def _found_cluster(self) -> None:
        identity = self._identity
        unknown: Unknown | None = None
        for _ in range(TRIES_MAX):
            if await self._store.get(MARKER) is not None:
                raise JoinRefused(
                    "an import into this store is under way or did not finish: its content is not whole; wait"
                    " for it, or import again into an empty store"
                )
            found = await self._store.get(self._key(records.CLUSTER_ID))
            if found is None:
                unknown = await self._make_cluster()
                continue
            level = await self._read(records.FORMAT, Format)
            if level is not None and level.level > FORMAT_LEVEL:
                raise JoinRefused(
                    f"the cluster's metadata has format {level.level}, this version of Braid reads up to"
                    f" {FORMAT_LEVEL}; install the version that the other brokers run"
                )
            self.cluster_id = self._decoded(ClusterId, found).id
            if identity.cluster_id is not None and identity.cluster_id != self.cluster_id:
                raise JoinRefused(
                    f"the data directory belongs to cluster {identity.cluster_id}, the store to cluster"
                    f" {self.cluster_id}; check --store, or give this broker a new data directory"
                )
            self.secret = await self._read_secret()
            return
        raise unknown or JoinRefused("the cluster's id could not be agreed on; try again")

    async def _read_secret(self) -> bytes:
        # With an empty or a short one, anybody could prove to be a broker.
        found = await self._read(records.SECRET, Secret)
        try:
            secret = bytes.fromhex(found.hex if found is not None else "")
        except ValueError:
            secret = b""
        if len(secret) < SECRET_BYTES:
            raise JoinRefused(
                f"the cluster's secret is missing or damaged ({self._key(records.SECRET)}); restore the"
                " metadata from a backup"
            )
        return secret

    async def _make_cluster(self) -> Unknown | None:
        made = founding_records(
            self._identity.cluster_id or self._random_bytes(16).hex(), self._random_bytes(SECRET_BYTES)
        )
        puts = [Put(self._key(name), encode(one, self._by())) for name, one in made.items()]
        return await self._attempt([absent(self._key(name)) for name in made], puts)

    async def _attempt(self, compares: list[Compare], puts: list[Put]) -> Unknown | None:
        """Commits if it can be done; whatever becomes of it, what stands there afterwards counts."""
        try:
            await self._store.commit(compares, puts)
        except Conflict:
            pass
        except Unknown as error:
            return error
        return None

    async def _show_node(self) -> None:
        identity = self._identity
        key = self._key(records.node_key(identity.node_id))
        mine = Node(
            uuid=identity.uuid, directories=identity.directories, rack=identity.rack, host=identity.host
        )
        unknown: Unknown | None = None
        for _ in range(TRIES_MAX):
            item = await self._store.get(key)
            found = None if item is None else self._decoded(Node, item)
            compares: list[Compare] = [ModRevision(key, 0 if item is None else item.mod_revision)]
            if found is not None:
                if found.uuid != identity.uuid and not identity.replace:
                    raise JoinRefused(
                        f"node id {identity.node_id} belongs to another data directory (on {found.host});"
                        " choose another --node-id, or add -o replace=true if that directory is lost for good"
                    )
                if found == mine:
                    return
                mine = replace(mine, rest=found.rest)
                if found.uuid != identity.uuid:
                    # A broker that runs keeps its id: after a change it could not come back.
                    compares.append(absent(await self._until_gone(self._patience())))
            unknown = await self._attempt(compares, [Put(key, encode(mine, self._by()))])
        raise unknown or JoinRefused(f"node id {identity.node_id} is being taken by another broker")

    async def _register(self) -> None:
        """Creates `alive` under a new lease."""
        waited_until = self._patience()
        while True:
            key = await self._until_gone(waited_until)
            sent_at = self._now()
            lease = await self._store.lease(self._times.ttl_s)
            self._lease_under_way = lease.lease_id
            epoch = await self._create_alive(key, lease.lease_id, waited_until)
            self._lease_under_way = 0
            if epoch is None or self._left:
                await self._give_back(lease.lease_id)
            if self._left:
                raise JoinRefused(f"broker {self._identity.node_id} has left")
            if epoch is not None:
                self._registered = _Registration(lease.lease_id, lease.ttl_s, epoch, sent_at + lease.ttl_s)
                self._tell(epoch)
                return

    async def _create_alive(self, key: str, lease_id: int, waited_until: float) -> int | None:
        """The broker epoch; None if it was not created under this lease."""
        value = encode(self._alive(), self._by())
        try:
            return await self._store.commit([absent(key)], [Put(key, value, lease_id)])
        except (Conflict, Expired):
            return None
        except Unknown:
            found = await self._store.get(key)
            if found is not None and found.value == value:
                return found.create_revision
            if self._now() >= waited_until:
                raise
            await asyncio.sleep(RETRY_S)
            return None

    def _tell(self, epoch: int) -> None:
        for listener in self._listeners:
            try:
                listener(epoch)
            except Exception:
                log.exception("a new broker epoch could not be followed")

    def _patience(self) -> float:
        """Until when to wait for a broker that may be dead."""
        return self._now() + 2 * self._times.ttl_s + 1

    async def _until_gone(self, waited_until: float) -> str:
        """Returns when no broker runs under this node id; the key of `alive`."""
        key = self._key(records.alive_key(self._identity.node_id))
        while (item := await self._store.get(key)) is not None:
            await self._clear(item, waited_until)
        return key

    async def _clear(self, item: Item, waited_until: float) -> None:
        """Removes what an earlier run has left; waits for the end of anybody else's."""
        found = self._decoded(Alive, item)
        if found.run in (self._identity.run, self._identity.former_run) and item.lease:
            await self._store.revoke(item.lease)
            return
        if self._now() >= waited_until:
            where = ", ".join(f"{one.host}:{one.port}" for one in found.listeners) or "somewhere"
            raise JoinRefused(
                f"a broker with node id {self._identity.node_id} is running at {where}; stop it, or choose"
                " another --node-id. If this data directory is a copy of that broker's, delete the copy"
            )
        await asyncio.sleep(RETRY_S)

    # -- staying --------------------------------------------------------------------------------

    async def _renew_forever(self) -> None:
        while True:
            await asyncio.sleep(self._times.renew_s)
            registered = self._registered
            if registered is None:
                return
            sent_at = self._now()
            try:
                # Not `wait_for`: in Python 3.11 it loses a cancellation that comes together with the answer.
                async with asyncio.timeout(max(registered.ttl_s / 2, self._times.renew_s)):
                    ttl_s = await self._store.renew(registered.lease_id)
                registered.deadline = max(registered.deadline, sent_at + ttl_s)
            except Expired:
                # Its place may be taken: what it acks from now on nobody may ever see.
                registered.deadline = sent_at
                log.warning("the broker's lease has ended; it registers again under a new epoch")
                await self._register_again()
            except StoreClosed:
                return
            except (StoreError, TimeoutError) as error:
                if self.isolated:
                    log.warning(
                        "the broker is isolated, its lease may have ended: %s", str(error) or "no answer"
                    )
            except Exception:
                log.exception("the broker's lease could not be renewed")

    async def _register_again(self) -> None:
        while True:
            try:
                await self._register()
                return
            except JoinRefused as error:
                log.error("%s", error)
            except StoreClosed:
                return
            except StoreError as error:
                log.warning("the broker cannot register again yet: %s", error)
            except Exception:
                log.exception("the broker cannot register again yet")
            await asyncio.sleep(self._times.renew_s)

    # -- details --------------------------------------------------------------------------------

    def _alive(self) -> Alive:
        identity = self._identity
        return Alive(
            listeners=self._addresses,
            boot_id=identity.boot_id,
            run=identity.run,
            lost_unsynced=identity.lost_unsynced,
            state=self._state,
            version=identity.version,
        )

    def _by(self) -> str:
        self._writes += 1
        return f"{self._identity.node_id}/{self._identity.run}/{self._writes}"

    def _key(self, name: str) -> str:
        return self._prefix + name

    async def _read(self, name: str, kind: type[records.R]) -> records.R | None:
        item = await self._store.get(self._key(name))
        return None if item is None else self._decoded(kind, item)

    def _decoded(self, kind: type[records.R], item: Item) -> records.R:
        try:
            return decode(kind, item.key, item.value)
        except BadRecord as error:
            raise JoinRefused(
                f"the metadata is damaged or newer than this version of Braid: {error}"
            ) from None


def _say_why(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.critical("the broker's lease is renewed no longer", exc_info=error)
