"""The metadata store as everything in a cluster sees it: an asynchronous, linearizable map with revisions.

Keys are text, values are bytes. Every commit that changes something is one *revision*, a number that only
grows. An item carries the revision that created it and the one that last wrote it; a commit may demand
either, so that a writer that was overtaken changes nothing. A key may be bound to a lease and is deleted when
the lease ends.

Implementations: `FileStore` (one process), `ServedStore` (client of a process that holds a file store),
`EtcdStore`, and the simulator's. They behave alike: `tests/conformance` runs the same tests against all of
them.

Errors tell what is known:

- `Conflict`, `Refused`, `Unavailable`: nothing was changed.
- `Unknown`: a commit may have happened, or may still happen. `cluster/settlement.py` finds out.
- `Expired`: the lease is gone, and its keys with it.
- `Lost`: a watch cannot continue without a gap. Take a new snapshot and compare.

Everything except a commit may be asked again after `Unavailable`: asking twice does no harm.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple, Protocol

OPERATIONS_MAX = 128
"""Compares, and likewise puts and deletes together, in one commit. etcd's default."""
REQUEST_BYTES_MAX = 1_500_000
"""Keys and values of one commit; etcd refuses above 1.5 MiB, with its own overhead in it."""
OPERATION_BYTES = 64
"""What an operation is counted with beside its key and value."""
LEASE_TTL_MIN_S = 2
"""The shortest lease that is granted; etcd's, with its default election time-out."""
LEASE_TTL_MAX_S = 9_000_000_000
"""etcd's."""


class StoreError(Exception):
    """The store did not do what it was asked to."""


class Conflict(StoreError):
    """A compare of a commit did not hold. Nothing was changed."""


class Refused(StoreError):
    """The request itself is wrong: too large, too many operations, no rights. Nothing was changed."""


class Unavailable(StoreError):
    """The store cannot be reached or cannot work now. A commit was not made."""


class Unknown(StoreError):
    """A commit may have happened, or may happen yet: its answer is lost."""


class StoreFull(Unknown):
    """The store has no room left. Unknown, because etcd may apply the very commit that fills it."""


class Expired(StoreError):
    """The lease does not exist (any more). A commit that names it was not made."""


class StoreClosed(StoreError):
    """This end of the store was closed by its owner. A commit that was under way may have been made."""


class StoreCorrupt(StoreError):
    """What is stored is damaged: what it held is not known."""


class Lost(StoreError):
    """Changes after a watch's position are no longer kept."""

    def __init__(self, compact_revision: int) -> None:
        super().__init__(f"changes up to revision {compact_revision} are compacted; take a new snapshot")
        self.compact_revision = compact_revision


class Item(NamedTuple):
    """A key, its value, and when it came to be."""

    key: str
    value: bytes
    create_revision: int
    mod_revision: int
    lease: int = 0


class Event(NamedTuple):
    """What became of a key: its new item, or None if it was deleted."""

    key: str
    item: Item | None


class Change(NamedTuple):
    """One revision: all events of it that a watch asked for, in the order of their keys."""

    revision: int
    events: tuple[Event, ...]


def change_bytes(change: Change) -> int:
    """About how much memory a change holds."""
    values = sum(len(event.item.value) for event in change.events if event.item is not None)
    return values + sum(OPERATION_BYTES + len(event.key) for event in change.events)


class Snapshot(NamedTuple):
    """All items under a prefix as of one revision, in the order of their keys."""

    revision: int
    items: tuple[Item, ...]


class Put(NamedTuple):
    """Writes a key. Without a lease the key is bound to none, even if it was before."""

    key: str
    value: bytes
    lease: int = 0


class ModRevision(NamedTuple):
    """Demands that a key was last written at a revision; 0: that it does not exist."""

    key: str
    revision: int


class CreateRevision(NamedTuple):
    """Demands that a key was created at a revision; 0: that it does not exist."""

    key: str
    revision: int


class ValueIs(NamedTuple):
    """Demands that a key exists and holds this value."""

    key: str
    value: bytes


Compare = ModRevision | CreateRevision | ValueIs


class Lease(NamedTuple):
    """A lease and the time to live that was granted, which may be more than was asked for."""

    lease_id: int
    ttl_s: int


class Watch(Protocol):
    """Changes, whole revisions, each once and in order. Raises `Lost` where that cannot be kept."""

    def __aiter__(self) -> AsyncIterator[Change]: ...
    async def __anext__(self) -> Change: ...
    async def close(self) -> None:
        """Ends the watch, and with it the iteration of those who wait for its next change."""
        ...


class MetadataStore(Protocol):
    """What a cluster agrees on."""

    async def get(self, key: str) -> Item | None:
        """The newest item of a key."""
        ...

    async def snapshot(self, prefix: str) -> Snapshot:
        """All items whose keys start with `prefix`, as of one revision not older than this call."""
        ...

    async def commit(
        self, compares: Sequence[Compare] = (), puts: Sequence[Put] = (), deletes: Sequence[str] = ()
    ) -> int:
        """Makes all changes if all compares hold; the revision it happened at.

        Deleting a key that does not exist is no change; a commit that changes nothing answers the newest
        revision.
        """
        ...

    def watch(self, prefix: str, after_revision: int) -> Watch:
        """Every change under `prefix` after a revision, those of the past first."""
        ...

    async def lease(self, ttl_s: int) -> Lease:
        """A lease that lives for at least this long without renewal."""
        ...

    async def renew(self, lease_id: int) -> int:
        """Starts a lease's time again; its TTL in seconds. `Expired` if it has ended.

        Count the time from when this was called, not from when it answered.
        """
        ...

    async def revoke(self, lease_id: int) -> None:
        """Ends a lease and deletes its keys in one revision; does nothing if it has ended already."""
        ...

    async def compact(self, revision: int) -> None:
        """Forgets the changes up to a revision: a watch that is further behind is `Lost`."""
        ...

    async def start(self) -> None:
        """Begins to work; before anything else."""
        ...

    async def close(self) -> None: ...


def absent(key: str) -> CreateRevision:
    """Demands that a key does not exist."""
    return CreateRevision(key, 0)


def check_commit(compares: Sequence[Compare], puts: Sequence[Put], deletes: Sequence[str]) -> int:
    """How many bytes a commit has; `Refused` if no store takes it."""
    for what, count in (("compares", len(compares)), ("puts and deletes", len(puts) + len(deletes))):
        if count > OPERATIONS_MAX:
            raise Refused(f"a commit of {count} {what}; at most {OPERATIONS_MAX} are allowed")
    size = 0
    for compare in compares:
        size += check_key(compare.key)
        size += len(compare.value) if isinstance(compare, ValueIs) else 0
    written = set()
    for put in puts:
        size += check_key(put.key) + len(put.value)
        if put.key in written:
            raise Refused(f"{put.key!r} is put twice in one commit")
        written.add(put.key)
    for key in deletes:
        size += check_key(key)
        if key in written:
            raise Refused(f"{key!r} is put and deleted in one commit")
    size += OPERATION_BYTES * (len(compares) + len(puts) + len(deletes))
    if size > REQUEST_BYTES_MAX:
        raise Refused(f"a commit of {size:,} bytes; at most {REQUEST_BYTES_MAX:,} are allowed")
    return size


def check_key(key: str) -> int:
    """How many bytes a key has; `Refused` if it can be none."""
    if not key:
        raise Refused("a key is empty")
    return check_prefix(key)


def check_prefix(prefix: str) -> int:
    try:
        return len(prefix.encode())
    except UnicodeEncodeError:
        raise Refused(f"{prefix!r} cannot be written as UTF-8") from None


def check_ttl(ttl_s: int) -> None:
    if not 0 < ttl_s <= LEASE_TTL_MAX_S:
        raise Refused(f"a lease of {ttl_s} s; choose between 1 and {LEASE_TTL_MAX_S}")
