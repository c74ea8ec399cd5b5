"""A metadata store written down as plainly as can be, to compare the real ones with.

Revisions and leases are counted from 1 here; `Played` knows which numbers of the real store they stand for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from braidmq.cluster.metadata_store import (
    Change,
    Compare,
    Conflict,
    CreateRevision,
    Event,
    Expired,
    Item,
    MetadataStore,
    ModRevision,
    Put,
    Refused,
    Snapshot,
    StoreError,
    ValueIs,
)

Outcome = int | type[StoreError]


@dataclass(frozen=True)
class Commit:
    compares: Sequence[Compare]
    puts: Sequence[Put]
    deletes: Sequence[str]


@dataclass(frozen=True)
class Grant:
    pass


@dataclass(frozen=True)
class Revoke:
    lease: int


Command = Commit | Grant | Revoke


@dataclass
class Model:
    revision: int = 1
    items: dict[str, Item] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)
    leases: list[bool] = field(default_factory=list)
    """Whether each lease there ever was is alive."""

    def do(self, command: Command) -> Outcome:
        if isinstance(command, Grant):
            self.leases.append(True)
            return 0
        if isinstance(command, Revoke):
            if self._alive(command.lease):
                self.leases[command.lease - 1] = False
                self._change([], [key for key, item in self.items.items() if item.lease == command.lease])
            return 0
        put_keys = [put.key for put in command.puts]
        if len(set(put_keys)) < len(put_keys) or set(put_keys) & set(command.deletes):
            return Refused
        if not all(self._holds(compare) for compare in command.compares):
            return Conflict
        if any(put.lease and not self._alive(put.lease) for put in command.puts):
            return Expired
        self._change(command.puts, [key for key in set(command.deletes) if key in self.items])
        return self.revision

    def _alive(self, lease: int) -> bool:
        return lease <= len(self.leases) and self.leases[lease - 1]

    def _holds(self, compare: Compare) -> bool:
        item = self.items.get(compare.key)
        match compare:
            case ModRevision(_, revision):
                return revision == (item.mod_revision if item else 0)
            case CreateRevision(_, revision):
                return revision == (item.create_revision if item else 0)
            case ValueIs(_, value):
                return item is not None and item.value == value

    def _change(self, puts: Sequence[Put], deletes: Sequence[str]) -> None:
        if not puts and not deletes:
            return
        self.revision += 1
        events = [Event(key, None) for key in deletes]
        for key in deletes:
            del self.items[key]
        for put in puts:
            before = self.items.get(put.key)
            created = before.create_revision if before else self.revision
            self.items[put.key] = Item(put.key, put.value, created, self.revision, put.lease)
            events.append(Event(put.key, self.items[put.key]))
        self.changes.append(Change(self.revision, tuple(sorted(events))))


class Played:
    """Plays commands to a real store, and tells what came of it in the model's numbers."""

    def __init__(self, store: MetadataStore, base: int) -> None:
        self._store = store
        self._offset = base - Model.revision
        self._leases: list[int] = []

    async def do(self, command: Command) -> Outcome:
        if isinstance(command, Grant):
            self._leases.append((await self._store.lease(600)).lease_id)
            return 0
        if isinstance(command, Revoke):
            await self._store.revoke(self._lease(command.lease))
            return 0
        try:
            revision = await self._store.commit(
                [self._real(compare) for compare in command.compares],
                [put._replace(lease=self._lease(put.lease)) for put in command.puts],
                command.deletes,
            )
        except (Conflict, Expired, Refused) as error:
            return type(error)
        return revision - self._offset

    def _lease(self, number: int) -> int:
        """A lease that was never granted is one that has ended."""
        if not number:
            return 0
        return self._leases[number - 1] if number <= len(self._leases) else 987654321

    def _real(self, compare: Compare) -> Compare:
        if isinstance(compare, ValueIs):
            return compare
        return compare._replace(revision=compare.revision + self._offset if compare.revision else 0)

    async def snapshot(self, prefix: str) -> Snapshot:
        found = await self._store.snapshot(prefix)
        return Snapshot(found.revision - self._offset, tuple(self._model_item(item) for item in found.items))

    async def changes(self, prefix: str, after: int, count: int) -> list[Change]:
        watch = self._store.watch(prefix, after + self._offset)
        found = [await anext(watch) for _ in range(count)]
        await watch.close()
        return [
            Change(
                change.revision - self._offset,
                tuple(Event(key, item and self._model_item(item)) for key, item in change.events),
            )
            for change in found
        ]

    def _model_item(self, item: Item) -> Item:
        return item._replace(
            create_revision=item.create_revision - self._offset,
            mod_revision=item.mod_revision - self._offset,
            lease=self._leases.index(item.lease) + 1 if item.lease else 0,
        )

    async def end(self) -> None:
        for lease in self._leases:
            await self._store.revoke(lease)
