"""Finds out what became of a commit whose answer was lost.

A commit that is `Unknown` may have happened, may happen a second later, or never; taking it for failed is
the classic mistake. So every value says who wrote it (`by`: a writer and its counter), and every commit
demands the revision of one key it puts, its *witness*. `commit_settled` reads the witness back. Signed by
us: it happened. Still at the revision we demanded: it is committed again, which is safe, because at most
one of the attempts can find that revision. Changed by somebody else: our commit can only have been the
first change after what we had seen, and a watch from there tells whether it was. Where the history is
compacted `Unknown` stays, and the caller starts over from a new snapshot.

One case is left to the caller: a witness that must not exist, and that others create and delete meanwhile,
is again as we demanded, so our commit could happen, or happen again, after that. Where it matters, compare
something that does not come back as well, such as the create revision of one's own `alive`. The same holds
for other compares that can come true again.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

from braidmq.cluster.metadata_store import (
    Compare,
    Conflict,
    CreateRevision,
    Lost,
    MetadataStore,
    ModRevision,
    Put,
    Refused,
    StoreClosed,
    Unavailable,
    Unknown,
)

VALUE_VERSION = 1
TRIES = 5
PAUSE_S = 0.2
FIND_S_MAX = 5.0
SETTLE_S_MAX = 5.0
"""How long after the first answer that was lost another try is begun: somebody waits."""


class Writer:
    """Signs values. The name must be new with every start of the process: a random number is in it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._count = 0

    def sign(self) -> str:
        """A `by` that nothing was signed with before; one for all values of a commit."""
        self._count += 1
        return f"{self._name}/{self._count}"


def encode_value(fields: Mapping[str, Any], by: str) -> bytes:
    """A value as all keys hold it: compact JSON with its version and who wrote it."""
    return json.dumps({"v": VALUE_VERSION, **fields, "by": by}, separators=(",", ":")).encode()


def signed_by(value: bytes) -> str | None:
    """Who wrote a value; None if it does not say."""
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        return None
    by = found.get("by") if isinstance(found, dict) else None
    return by if isinstance(by, str) else None


async def commit_settled(
    store: MetadataStore,
    seen_revision: int,
    compares: Sequence[Compare],
    puts: Sequence[Put],
    deletes: Sequence[str] = (),
) -> int:
    """Like `commit`, and finds out what happened where that is `Unknown`. The first put is the witness.

    `seen_revision` is the revision of the snapshot or change that the compares were made from. Raises
    `Conflict` if the commit did not happen and cannot any more, `Unknown` if that could not be found out.
    """
    witness = _Witness(store, seen_revision, compares, puts)
    unknown: Unknown | None = None
    conflict: Conflict | None = None
    loop = asyncio.get_running_loop()
    until_s = 0.0
    for _ in range(TRIES):
        if unknown is not None and loop.time() >= until_s:
            break
        try:
            if unknown is not None and (revision := await witness.find()) is not None:
                return revision
            if conflict is not None:
                raise conflict
            return await store.commit(compares, puts, deletes)
        except Unknown as error:
            if unknown is None:
                until_s = loop.time() + SETTLE_S_MAX
            unknown = error
        except Conflict as error:
            if unknown is None or conflict is not None:
                raise
            # It may be our own first attempt that is in the way: look once more.
            conflict = error
        except Unavailable:
            if unknown is None:
                raise
            await asyncio.sleep(PAUSE_S)
        except Refused:
            if unknown is None:
                raise
            # It is this attempt that has no rights; the first one had, and may be under way.
            break
        except (Lost, TimeoutError):
            break
    assert unknown is not None
    raise unknown


class _Witness:
    """The key by which a commit is known again."""

    def __init__(
        self, store: MetadataStore, seen_revision: int, compares: Sequence[Compare], puts: Sequence[Put]
    ) -> None:
        by = signed_by(puts[0].value) if puts else None
        expected = _expected_revision(compares, puts[0].key) if puts else None
        if by is None or expected is None:
            raise ValueError("the first put of a commit must be signed, and its revision must be demanded")
        self._store = store
        self._seen_revision = seen_revision
        self._key = puts[0].key
        self._by = by
        self._expected = expected

    async def find(self) -> int | None:
        """The revision at which the commit happened; None if it has not by now."""
        item = await self._store.get(self._key)
        if item is not None and signed_by(item.value) == self._by:
            return item.mod_revision
        if (item.mod_revision if item is not None else 0) == self._expected:
            return None
        # A task of its own: a time-out needs one, and handlers of requests are none.
        return await asyncio.ensure_future(self._first_change())

    async def _first_change(self) -> int | None:
        """The revision of the first change of the key after what was seen, if it is ours. There is one."""
        watch = self._store.watch(self._key, self._seen_revision)
        try:
            async with asyncio.timeout(FIND_S_MAX):
                async for change in watch:
                    for event in change.events:
                        if event.key == self._key:
                            ours = event.item is not None and signed_by(event.item.value) == self._by
                            return change.revision if ours else None
            raise StoreClosed("the metadata store was closed before a commit was found")
        finally:
            await watch.close()


def _expected_revision(compares: Sequence[Compare], key: str) -> int | None:
    """The revision of a key that a commit demands; a demand that it does not exist is 0."""
    for compare in compares:
        if compare.key == key and (isinstance(compare, ModRevision) or compare == CreateRevision(key, 0)):
            return compare.revision
    return None
