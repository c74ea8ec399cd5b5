"""Carries the metadata of a data directory of release 0.x into the form it has now.

Before, a directory held `metadata.journal`: keys with JSON values. Now it holds `metadata.store`. The first
start writes the new file, whole, with the size and checksum of the old one in its header, and then renames
the old one to `metadata.journal.old`; nothing else happens before that. A crash in between leaves both, and
the next start finishes the rename. Whoever wants back stops the broker, removes `metadata.store` and takes
`.old` off the old file's name.

Both files under their own names, and not from such a crash, is a state nobody here has made: the start is
refused, because only a person knows which one is right.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from braidmq.cluster import journal
from braidmq.cluster.journal import Tail
from braidmq.cluster.kv import FIRST_REVISION, KeyValues
from braidmq.cluster.metadata_store import Item, StoreCorrupt
from braidmq.cluster.store_json import item_to_json
from braidmq.platform.disk import Disk
from braidmq.wire.checksum import crc32c

OLD_NAME = "metadata.journal"
ASIDE_SUFFIX = ".old"

log = logging.getLogger("braid.store")


def carry_over(disk: Disk, directory: Path, last_lease: int) -> tuple[KeyValues, list[int] | None]:
    """The state a new file begins with, and what it was carried over from: size, checksum, revision."""
    path = directory / OLD_NAME
    if not disk.exists(path):
        return KeyValues(last_lease=last_lease), None
    content = disk.read_file(path)
    found = journal.read(content)
    if found.tail in (Tail.DAMAGED, Tail.DAMAGED_LAST):
        raise StoreCorrupt(journal.complaint(path.name, found))
    revision, values = _replay(found.changes)
    kv = KeyValues()
    kv.load({"state": [revision, last_lease, []]}, 0.0)
    # The old form knows no creation; the last write is the closest.
    items = [
        Item(key, json.dumps(value, separators=(",", ":")).encode(), written, written)
        for key, (written, value) in values.items()
    ]
    kv.load({"items": [item_to_json(item) for item in items]}, 0.0)
    return kv, [len(content), crc32c(content), revision]


def _replay(changes: list[journal.Change]) -> tuple[int, dict[str, tuple[int, Any]]]:
    revision = 0
    values: dict[str, tuple[int, Any]] = {}
    for change in changes:
        revision = change.get("revision", revision + 1)
        revisions = change.get("revisions", {})
        for key, value in change["put"].items():
            values[key] = (revisions.get(key, revision), value)
        for key in change["delete"]:
            values.pop(key, None)
    # An empty store of today's form is at 1. One with keys is later, or a watch from 0 would miss them.
    return max(revision, FIRST_REVISION + bool(values)), values


def finish_carry_over(disk: Disk, directory: Path, carried: list[int] | None, revision: int) -> None:
    """Sets the old file aside, if it is the one that was carried over."""
    path = directory / OLD_NAME
    if not disk.exists(path):
        return
    content = disk.read_file(path)
    if carried != [len(content), crc32c(content), revision]:
        raise StoreCorrupt(
            f"both {path.name} and metadata.store are there, and the one is not what the other was made of;"
            f" keep the right one and move the other away (metadata.store is at revision {revision})"
        )
    disk.rename(path, path.with_name(path.name + ASIDE_SUFFIX))
    disk.sync_directory(directory)
    log.info("%s is carried over into metadata.store and kept as %s%s", path.name, path.name, ASIDE_SUFFIX)
