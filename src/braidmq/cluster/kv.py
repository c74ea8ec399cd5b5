"""The metadata store as a pure state machine: revisions, leases, history. No clock, no disk, no network.

Every change is made in two halves. A method named after a request (`commit`, `grant`, `revoke`, `compact`)
looks whether it can be done and answers the *step* that does it, or None if there is nothing to do; it
changes nothing. `apply` takes the step. A shell writes steps to its journal and applies them again when it
opens, so a replay cannot differ from what happened. A step that does not fit the state is a `ValueError`:
the journal is wrong.

The newest changes are kept as *history*, so that a watch can begin in the past. It is bounded: what falls
out counts as compacted, and a watch that is further behind is `Lost`. Nobody's pace makes it grow.

Time comes in as `now`, in seconds from any fixed point. A lease ends when somebody looks (`due`) and
revokes it: late, never early. Deadlines are not part of a step: after a replay every lease has its full
time again, once.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from braidmq.cluster import journal
from braidmq.cluster.metadata_store import (
    LEASE_TTL_MIN_S,
    Change,
    Compare,
    Conflict,
    CreateRevision,
    Event,
    Expired,
    Item,
    Lost,
    ModRevision,
    Put,
    Refused,
    change_bytes,
    check_commit,
    check_ttl,
)
from braidmq.cluster.store_json import (
    Json,
    fields,
    item_from_json,
    item_to_json,
    number,
    put_from_json,
    put_to_json,
    sequence,
    string,
)

FIRST_REVISION = 1
"""The revision of an empty store, as in etcd: its first change is 2, and 0 stands for a key that does not
exist."""
HISTORY_REVISIONS_MAX = 10_000
HISTORY_BYTES_MAX = 16 * 1024 * 1024
ITEMS_PER_ENTRY = 1000
"""How many items an entry of a dump holds, and how many bytes, so that no entry grows too large."""
BYTES_PER_ENTRY = 4 * 1024 * 1024


class Committed(NamedTuple):
    """Puts and deletes, all of which change something."""

    revision: int
    puts: tuple[Put, ...]
    deletes: tuple[str, ...]


class Granted(NamedTuple):
    """A lease begins."""

    lease_id: int
    ttl_s: int


class Revoked(NamedTuple):
    """A lease ends, and its keys with it; the revision is 0 if it has none."""

    lease_id: int
    revision: int


class Compacted(NamedTuple):
    """History up to a revision is forgotten."""

    revision: int


Step = Committed | Granted | Revoked | Compacted


class _LiveLease:
    def __init__(self, ttl_s: int, deadline: float) -> None:
        self.ttl_s = ttl_s
        self.deadline = deadline
        self.keys: dict[str, None] = {}


class KeyValues:
    """Keys, values, leases and the newest history."""

    def __init__(self, revision: int = FIRST_REVISION, last_lease: int = 0) -> None:
        self.revision = revision
        self.compact_revision = _known_from(revision)
        """Changes up to this one are not in the history."""
        self._last_lease = last_lease
        self._items: dict[str, Item] = {}
        self._keys: list[str] = []
        """All keys, in order."""
        self._leases: dict[int, _LiveLease] = {}
        self._history: deque[Change] = deque()
        """The changes after `compact_revision`, one for each revision without a gap."""
        self._history_bytes = 0

    def __len__(self) -> int:
        return len(self._items)

    # -- reading --------------------------------------------------------------------------------

    def get(self, key: str) -> Item | None:
        return self._items.get(key)

    def items(self, prefix: str) -> tuple[Item, ...]:
        """All items whose keys start with `prefix`, in order."""
        return tuple(self._items[key] for key in self._keys_under(prefix))

    def _keys_under(self, prefix: str) -> Iterator[str]:
        at = bisect_left(self._keys, prefix)
        while at < len(self._keys) and self._keys[at].startswith(prefix):
            yield self._keys[at]
            at += 1

    def change_after(self, revision: int, prefix: str, until: int) -> tuple[int, Change | None]:
        """The first change under `prefix` after a revision and not after `until`.

        Answers the revision up to which a watch has seen everything, so that nothing is looked at twice,
        and the change.
        """
        if revision < self.compact_revision:
            raise Lost(self.compact_revision)
        until = min(until, self.revision)
        first = self._history[0].revision if self._history else until + 1
        for at in range(max(revision + 1, first), until + 1):
            change = self._history[at - first]
            assert change.revision == at
            events = tuple(event for event in change.events if event.key.startswith(prefix))
            if events:
                return at, Change(at, events)
        return max(revision, until), None

    # -- requests -------------------------------------------------------------------------------

    def commit(
        self, compares: Sequence[Compare], puts: Sequence[Put], deletes: Sequence[str]
    ) -> Committed | None:
        check_commit(compares, puts, deletes)
        for compare in compares:
            if not self._holds(compare):
                raise Conflict(f"{compare.key} is not as the commit demands")
        for put in puts:
            if put.lease and put.lease not in self._leases:
                raise Expired(f"lease {put.lease:x} of {put.key} has ended")
        gone = tuple(key for key in dict.fromkeys(deletes) if key in self._items)
        return Committed(self.revision + 1, tuple(puts), gone) if puts or gone else None

    def _holds(self, compare: Compare) -> bool:
        item = self._items.get(compare.key)
        if isinstance(compare, ModRevision):
            return compare.revision == (item.mod_revision if item else 0)
        if isinstance(compare, CreateRevision):
            return compare.revision == (item.create_revision if item else 0)
        return item is not None and item.value == compare.value

    def grant(self, ttl_s: int) -> Granted:
        check_ttl(ttl_s)
        return Granted(self._last_lease + 1, max(ttl_s, LEASE_TTL_MIN_S))

    def revoke(self, lease_id: int) -> Revoked | None:
        lease = self._leases.get(lease_id)
        if lease is None:
            return None
        return Revoked(lease_id, self.revision + 1 if lease.keys else 0)

    def compact(self, revision: int) -> Compacted | None:
        if revision > self.revision:
            raise Refused(f"revision {revision} cannot be compacted: the newest is {self.revision}")
        return Compacted(revision) if revision > self.compact_revision else None

    # -- leases ---------------------------------------------------------------------------------

    def renew(self, lease_id: int, now: float) -> int:
        """Starts a lease's time again. No step: deadlines are not kept."""
        lease = self._leases.get(lease_id)
        if lease is None or lease.deadline <= now:
            raise Expired(f"lease {lease_id:x} has ended")
        lease.deadline = now + lease.ttl_s
        return lease.ttl_s

    def due(self, now: float) -> list[int]:
        """The leases whose time is over, the longest over first."""
        due = [
            (lease.deadline, lease_id) for lease_id, lease in self._leases.items() if lease.deadline <= now
        ]
        return [lease_id for _, lease_id in sorted(due)]

    def next_deadline(self) -> float | None:
        """When the next lease ends if nothing renews it."""
        return min((lease.deadline for lease in self._leases.values()), default=None)

    def deadlines(self) -> dict[int, float]:
        return {lease_id: lease.deadline for lease_id, lease in self._leases.items()}

    def keep_deadlines(self, deadlines: Mapping[int, float]) -> None:
        """Takes over the deadlines of leases that continue."""
        for lease_id, lease in self._leases.items():
            lease.deadline = deadlines.get(lease_id, lease.deadline)

    # -- steps ----------------------------------------------------------------------------------

    def apply(self, step: Step, now: float) -> Change | None:
        """Takes a step; the change it made, if it made a revision."""
        match step:
            case Committed(revision, puts, deletes):
                return self._change(revision, puts, deletes)
            case Granted(lease_id, ttl_s):
                if lease_id <= self._last_lease:
                    raise ValueError(f"lease {lease_id:x} is granted after {self._last_lease:x}")
                self._last_lease = lease_id
                self._leases[lease_id] = _LiveLease(ttl_s, now + ttl_s)
            case Revoked(lease_id, revision):
                if lease_id not in self._leases:
                    raise ValueError(f"lease {lease_id:x} is revoked and does not exist")
                keys = tuple(sorted(self._leases[lease_id].keys))
                if bool(keys) != bool(revision):
                    raise ValueError(f"lease {lease_id:x} has {len(keys)} keys at revision {revision}")
                change = self._change(revision, (), keys) if keys else None
                del self._leases[lease_id]
                return change
            case Compacted(revision):
                if not self.compact_revision < revision <= self.revision:
                    raise ValueError(f"revision {revision} is compacted at {self.revision}")
                self._forget(revision)
        return None

    def _change(self, revision: int, puts: Iterable[Put], deletes: Iterable[str]) -> Change:
        if revision != self.revision + 1:
            raise ValueError(f"revision {revision} follows {self.revision}")
        self.revision = revision
        events = [Event(put.key, self._put(put)) for put in puts]
        for key in deletes:
            self._delete(key)
            events.append(Event(key, None))
        if not events:
            raise ValueError(f"revision {revision} changes nothing")
        change = Change(revision, tuple(sorted(events, key=lambda event: event.key)))
        self._history.append(change)
        self._history_bytes += change_bytes(change)
        while len(self._history) > HISTORY_REVISIONS_MAX or self._history_bytes > HISTORY_BYTES_MAX:
            self._forget(self._history[0].revision)
        return change

    def _put(self, put: Put) -> Item:
        before = self._items.get(put.key)
        if before is None:
            insort(self._keys, put.key)
        else:
            self._unbind(before)
        created = self.revision if before is None else before.create_revision
        item = Item(put.key, put.value, created, self.revision, put.lease)
        self._items[put.key] = item
        self._bind(item)
        return item

    def _delete(self, key: str) -> None:
        item = self._items.pop(key, None)
        if item is None:
            raise ValueError(f"{key!r} is deleted and does not exist")
        del self._keys[bisect_left(self._keys, key)]
        self._unbind(item)

    def _bind(self, item: Item) -> None:
        if item.lease:
            if item.lease not in self._leases:
                raise ValueError(f"{item.key!r} has a lease that does not exist: {item.lease:x}")
            self._leases[item.lease].keys[item.key] = None

    def _unbind(self, item: Item) -> None:
        if item.lease:
            del self._leases[item.lease].keys[item.key]

    def _forget(self, revision: int) -> None:
        while self._history and self._history[0].revision <= revision:
            self._history_bytes -= change_bytes(self._history.popleft())
        self.compact_revision = revision

    # -- bytes ----------------------------------------------------------------------------------

    def entries(self) -> Iterator[Mapping[str, Json]]:
        """The state without its history, as journal entries for `load`."""
        leases = [[lease_id, lease.ttl_s] for lease_id, lease in self._leases.items()]
        yield {"state": [self.revision, self._last_lease, leases]}
        chunk: list[Item] = []
        size = 0
        for key in self._keys:
            chunk.append(self._items[key])
            size += len(key) + len(chunk[-1].value)
            if len(chunk) == ITEMS_PER_ENTRY or size >= BYTES_PER_ENTRY:
                yield {"items": [item_to_json(item) for item in chunk]}
                chunk, size = [], 0
        if chunk:
            yield {"items": [item_to_json(item) for item in chunk]}

    def load(self, entry: Mapping[str, Any], now: float) -> None:
        """Takes one entry of a journal: part of a state, or steps."""
        for kind, found in entry.items():
            if kind == "state":
                self._load_state(found, now)
            elif kind == "items":
                for each in sequence(found):
                    self._load_item(item_from_json(each))
            elif kind == "steps":
                for each in sequence(found):
                    self.apply(step_from_json(each), now)
            else:
                raise ValueError(f"no such entry: {kind!r:.100}")

    def _load_state(self, found: Json, now: float) -> None:
        if self._items or self._leases or self._history:
            raise ValueError("a state begins within another one")
        revision, last_lease, leases = fields(found, 3)
        self.revision = number(revision)
        self.compact_revision = _known_from(self.revision)
        self._last_lease = number(last_lease)
        for each in sequence(leases):
            lease_id, ttl_s = (number(part) for part in fields(each, 2))
            if lease_id > self._last_lease:
                raise ValueError(f"lease {lease_id:x} is newer than the newest")
            self._leases[lease_id] = _LiveLease(ttl_s, now + ttl_s)

    def _load_item(self, item: Item) -> None:
        if item.key in self._items or not 0 < item.create_revision <= item.mod_revision <= self.revision:
            raise ValueError(f"{item.key!r} is there twice, or its revisions are wrong")
        self._items[item.key] = item
        insort(self._keys, item.key)
        self._bind(item)

    def dump(self) -> bytes:
        """The state without its history: a watch of a restored store cannot begin before its revision."""
        content = bytearray()
        for entry in self.entries():
            content += journal.encode(entry, len(content))
        return bytes(content)


def restore(content: bytes, now: float) -> KeyValues:
    """A store from a dump, with a full time for every lease."""
    found = journal.read(content)
    if found.tail is not journal.Tail.NONE or not found.changes:
        raise ValueError(f"a dump of {len(content)} bytes can be read up to byte {found.end} only")
    store = KeyValues()
    for entry in found.changes:
        store.load(entry, now)
    return store


def step_to_json(step: Step) -> Json:
    match step:
        case Committed(revision, puts, deletes):
            return ["commit", revision, [put_to_json(put) for put in puts], list(deletes)]
        case Granted(lease_id, ttl_s):
            return ["grant", lease_id, ttl_s]
        case Revoked(lease_id, revision):
            return ["revoke", lease_id, revision]
        case Compacted(revision):
            return ["compact", revision]


def step_from_json(found: Json) -> Step:
    kind, *rest = sequence(found)
    if kind == "commit":
        revision, puts, deletes = fields(rest, 3)
        return Committed(
            number(revision),
            tuple(put_from_json(put) for put in sequence(puts)),
            tuple(string(key) for key in sequence(deletes)),
        )
    if kind == "grant":
        lease_id, ttl_s = fields(rest, 2)
        return Granted(number(lease_id), number(ttl_s))
    if kind == "revoke":
        lease_id, revision = fields(rest, 2)
        return Revoked(number(lease_id), number(revision))
    if kind == "compact":
        (revision,) = fields(rest, 1)
        return Compacted(number(revision))
    raise ValueError(f"no such step: {kind!r:.100}")


def _known_from(revision: int) -> int:
    """The revision up to which a store without history has forgotten: nothing came before the first."""
    return 0 if revision <= FIRST_REVISION else revision
