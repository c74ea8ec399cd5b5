"""Moves metadata from one store to another: `braid cluster export` and `braid cluster import`.

An export is text: a header line, then one line for every key, then nothing. The header has the number of
keys and a SHA-256 over the lines after it, so a file that was cut off or edited is noticed before anything
is written. Keys that are bound to a lease are left out: they stand for processes, which register again.

Revisions belong to a store and are not carried over. An import goes only into an empty store; the keys are
written in as many commits as are needed, and a marker that is written first and deleted last shows one that
did not finish.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from braidmq.cluster.metadata_store import (
    OPERATION_BYTES,
    OPERATIONS_MAX,
    REQUEST_BYTES_MAX,
    Conflict,
    Item,
    MetadataStore,
    ModRevision,
    Put,
    Refused,
    absent,
)
from braidmq.cluster.store_json import fields, string, to_bytes, to_text

FORMAT = 1
MARKER = "import-under-way"


class BadExport(Exception):
    """A file that is no export, or not a whole one."""


class Exported(NamedTuple):
    """What went into an export."""

    revision: int
    keys: int
    bound_keys: int
    """Keys with a lease, which were left out."""


async def export_lines(store: MetadataStore, prefix: str = "") -> tuple[Exported, list[str]]:
    """The lines of an export of all keys under a prefix, as of one revision."""
    found = await store.snapshot(prefix)
    if await store.get(MARKER) is not None:
        raise Refused("an import into this store did not finish: its content is not whole")
    kept = [item for item in found.items if not item.lease]
    lines = [_line(item) for item in kept]
    header = {
        "braid-export": FORMAT,
        "keys": len(lines),
        "revision": found.revision,
        "sha256": _checksum(lines),
    }
    return Exported(found.revision, len(kept), len(found.items) - len(kept)), [json.dumps(header), *lines]


def _line(item: Item) -> str:
    return json.dumps([item.key, to_text(item.value)])


def _checksum(lines: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for line in lines:
        digest.update(line.encode() + b"\n")
    return digest.hexdigest()


def read_export(lines: Iterable[str]) -> list[Put]:
    """What an export holds, checked as a whole."""
    header_line, *rest = [line.rstrip("\r\n") for line in lines] or [""]
    try:
        header = json.loads(header_line)
        if not isinstance(header, dict) or "braid-export" not in header:
            raise ValueError
    except (ValueError, RecursionError):
        raise BadExport("this is no export of a metadata store: its first line is no header") from None
    if header["braid-export"] != FORMAT:
        raise BadExport(f"an export of format {header['braid-export']!r}; a newer release is needed")
    if header.get("keys") != len(rest):
        raise BadExport(f"the export has {len(rest)} of {header.get('keys')} keys: a part of it is missing")
    if header.get("sha256") != _checksum(rest):
        raise BadExport("the checksum does not match: the export was changed or damaged")
    try:
        return [_put(line) for line in rest]
    except (ValueError, RecursionError) as error:
        raise BadExport(f"a line of the export cannot be understood: {error}") from None


def _put(line: str) -> Put:
    key, value = fields(json.loads(line), 2)
    return Put(string(key), to_bytes(value))


async def import_puts(
    store: MetadataStore, puts: list[Put], on_written: Callable[[int], None] | None = None
) -> int:
    """Writes what an export holds into an empty store; the revision it is complete at.

    `on_written` gets the number of keys that are written so far.
    """
    if any(put.key == MARKER for put in puts):
        raise BadExport(f"an export with the key {MARKER}")
    found = await store.snapshot("")
    if found.items:
        unfinished = any(item.key == MARKER for item in found.items)
        what = "an import that did not finish" if unfinished else f"{len(found.items)} keys"
        raise Refused(f"the store is not empty: it holds {what}; import into an empty one")
    try:
        mark = await store.commit([absent(MARKER)], [Put(MARKER, b"")])
        written_keys = 0
        for chunk in _chunks(puts):
            await store.commit([ModRevision(MARKER, mark), *(absent(put.key) for put in chunk)], chunk)
            written_keys += len(chunk)
            if on_written is not None:
                on_written(written_keys)
        revision = await store.commit([ModRevision(MARKER, mark)], deletes=[MARKER])
    except Conflict:
        raise Refused("somebody else writes to this store; import into one that nobody uses") from None
    written = await store.snapshot("")
    if [(item.key, item.value) for item in written.items] != sorted((put.key, put.value) for put in puts):
        raise Refused("the store does not hold what was imported; somebody else writes to it")
    return revision


def _chunks(puts: list[Put]) -> Iterator[list[Put]]:
    """As many puts as one commit takes, each with a compare, and one compare for the marker."""
    chunk: list[Put] = []
    size = 1024
    for put in puts:
        added = 2 * (len(put.key.encode()) + OPERATION_BYTES) + len(put.value)
        if chunk and (len(chunk) == OPERATIONS_MAX - 1 or size + added > REQUEST_BYTES_MAX):
            yield chunk
            chunk, size = [], 1024
        chunk.append(put)
        size += added
    if chunk:
        yield chunk
