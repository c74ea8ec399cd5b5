"""The data directory of several brokers on one machine, and how a single broker's becomes one, and back.

    DIR/cluster/            the metadata store that they share, kept by their supervisor
    DIR/1, DIR/2, …         a data directory for each broker, under its node id

Where DIR already was a single broker's, that broker stays in DIR itself and is the first of them; only its
metadata moves. It moves by one rename: a crash leaves it in the one place or the other, and the next start
goes on from there. So a single broker that finds no metadata, but DIR/cluster, knows where it is.

Back to a single broker: possible as long as no other broker holds a partition.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import stat
import tempfile
from collections import Counter
from pathlib import Path

from braidmq.cluster import records
from braidmq.cluster.carry_over import OLD_NAME
from braidmq.cluster.file_store import FILE_NAME, FileStore
from braidmq.cluster.image import Image
from braidmq.cluster.membership import JoinRefused
from braidmq.cluster.metadata_store import MetadataStore, Snapshot
from braidmq.cluster.node_file import FILE_NAME as NODE_FILE
from braidmq.cluster.node_file import read_node_file
from braidmq.cluster.settlement import Writer
from braidmq.cluster.upgrade import upgrade
from braidmq.platform.clock import Clock
from braidmq.platform.disk import Disk
from braidmq.platform.lock import DirectoryInUse, Lock, is_held

DIRECTORY = "cluster"
SOCKET = "store.sock"
SOCKET_PATH_BYTES_MAX = 100
"""Linux has room for 107 bytes, others for 103."""

log = logging.getLogger("braid.supervisor")


class SharedDirectory:
    """What lies where under DIR."""

    def __init__(self, root: Path, disk: Disk, clock: Clock) -> None:
        self.root = root
        self.store = root / DIRECTORY
        self._disk = disk
        self._clock = clock

    @property
    def is_shared(self) -> bool:
        """Whether several brokers share this directory, or have shared it."""
        return self._disk.exists(self.store)

    def home(self, node_id: int, first_id: int) -> Path:
        """The data directory of a broker."""
        if node_id == first_id and self._is_a_broker(self.root):
            return self.root
        return self.root / str(node_id)

    def _is_a_broker(self, directory: Path) -> bool:
        return any(self._disk.exists(directory / name) for name in (NODE_FILE, "topics", FILE_NAME, OLD_NAME))

    def lock(self) -> Lock:
        """Keeps a second supervisor, and a single broker, from the directory."""
        self._disk.makedirs(self.store)
        try:
            return self._disk.lock(self.store)
        except DirectoryInUse:
            raise DirectoryInUse(
                f"{self.root} is in use by another braid serve --brokers; stop it, or choose another"
                " directory with --data"
            ) from None

    def strangers(self, known: dict[int, Path]) -> list[int]:
        """Brokers that run in this directory and are not among those known."""
        found = sorted(int(name) for name in self._disk.listdir(self.root) if _is_node_id(name))
        return [one for one in found if one not in known and is_held(self.root / str(one))]

    # -- from one broker to several, and back ---------------------------------------------------

    async def take_over(self, home: Path, node_id: int, cluster_name: str) -> None:
        """Moves the metadata of a single broker here, if there is one; `lock` first."""
        source, target = home / FILE_NAME, self.store / FILE_NAME
        alone = self._disk.exists(source) or self._disk.exists(home / OLD_NAME)
        if not alone:
            return
        if self._disk.exists(target):
            raise JoinRefused(
                f"both {source} and {target} are there; keep the one that is right and move the other away"
            )
        lock = self._lock_of(home)
        try:
            async with contextlib.AsyncExitStack() as stack:
                store = FileStore(self._disk, home, self._clock)
                await store.start()
                stack.push_async_callback(store.close)
                await upgrade(store, records.prefix(cluster_name), node_id, Writer("supervisor"))
                await store.end_leases()
            self._move(source, target)
            log.info("%s: the metadata of the broker is now that of a cluster, in %s", home, self.store)
        finally:
            lock.release()

    async def give_back(self) -> Path:
        """Makes the directory one of a single broker again; where that broker has its data.

        `JoinRefused` while other brokers hold partitions, `DirectoryInUse` while any of them runs.
        """
        if self._disk.exists(self.store / FILE_NAME):
            lock = self.lock()
            try:
                home = await self._give_back()
            finally:
                lock.release()
            return home
        return self._first_home()

    async def _give_back(self) -> Path:
        home = self._first_home()
        kept = read_node_file(self._disk, home)
        first_id = None if kept is None else kept.node_id
        store = FileStore(self._disk, self.store, self._clock)
        await store.start()
        try:
            others = await count_holders(store)
        finally:
            await store.close()
        if first_id is not None:
            del others[first_id]
        if others:
            most = max(others)
            held = ", ".join(f"broker {one}: {count}" for one, count in sorted(others.items()))
            raise JoinRefused(
                f"the directory is shared by several brokers, and others hold partitions ({held}); start with"
                f" --brokers {most if first_id is None else most - first_id + 1}"
            )
        lock = self._lock_of(home)
        try:
            self._move(self.store / FILE_NAME, home / FILE_NAME)
        finally:
            lock.release()
        log.info("%s is a single broker's again", home)
        return home

    def _first_home(self) -> Path:
        if self._is_a_broker(self.root):
            return self.root
        ids = sorted(int(name) for name in self._disk.listdir(self.root) if _is_node_id(name))
        return self.root / str(ids[0]) if ids else self.root

    def _lock_of(self, home: Path) -> Lock:
        self._disk.makedirs(home)
        try:
            return self._disk.lock(home)
        except DirectoryInUse:
            raise DirectoryInUse(f"a broker runs in {home}; stop it first") from None

    def _move(self, source: Path, target: Path) -> None:
        self._disk.rename(source, target)
        # The new name first: after a power loss the file must have one of them.
        self._disk.sync_directory(target.parent)
        self._disk.sync_directory(source.parent)


async def count_holders(store: MetadataStore) -> Counter[int]:
    """How many partitions each broker holds."""
    held: Counter[int] = Counter()
    found = await store.snapshot(records.ALL_CLUSTERS)
    names = dict.fromkeys(records.cluster_of(item.key) for item in found.items)
    for name in names:
        image = Image(records.prefix(name))
        image.load(Snapshot(found.revision, tuple(i for i in found.items if i.key.startswith(image.key("")))))
        for topic in image.topics.values():
            for partition in topic.partitions:
                held.update(() if partition is None else partition.record.replicas)
    return held


def socket_path(store: Path) -> Path:
    """Where the store of this directory is served: the same place after every start.

    Beside the store, unless that path is too long for a Unix socket; then in a directory under the
    system's runtime or temporary one that nobody else can write to.
    """
    beside = store.absolute() / SOCKET
    if len(os.fsencode(beside)) <= SOCKET_PATH_BYTES_MAX:
        return beside
    runtime = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir())
    name = hashlib.sha256(os.fsencode(store.resolve())).hexdigest()[:16]
    directory = runtime / f"braid-{os.getuid()}-{name}"
    directory.mkdir(mode=0o700, exist_ok=True)
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise JoinRefused(
            f"{directory} is not a directory of this user alone; remove it, or use a shorter --data path"
        )
    return directory / SOCKET


def _is_node_id(name: str) -> bool:
    return name.isascii() and name.isdecimal()
