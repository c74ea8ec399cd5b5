"""The directories under `topics/`: which of them the metadata knows, and what becomes of the others.

A directory is removed on a record of its topic's deletion, and on nothing else. One that the metadata does
not know is set aside: it gets the suffix `.unknown`, is kept, and is reported at every start. So metadata
that is empty, or older than the data because it was restored from a backup, costs no records. When the
metadata knows the directory again, it gets its name back.

Each directory describes its topic in the small file `topic`: name, id, partitions and options, in one line of
JSON after its CRC. It is how `braid doctor` brings a directory back (`broker/adoption.py`). The metadata
stays the truth, so the file is not synced; one that is missing or damaged is written again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from braidmq.broker.topic import TopicRecord
from braidmq.platform.disk import TEMPORARY_SUFFIX, Disk
from braidmq.wire.checksum import seal, unseal

SET_ASIDE_SUFFIX = ".unknown"
TRASH_SUFFIX = ".deleted"
DESCRIPTION_NAME = "topic"

_TOPIC_DIRECTORY = re.compile(r"(?P<name>.+)\.(?P<id>[0-9a-f]{12})(\.deleted)?(?P<aside>\.unknown)?")


class DirectorySurvey(NamedTuple):
    """What is under `topics/`, by directory names."""

    missing: list[str]
    """Known to the metadata, and not there."""
    returned: list[str]
    """Set aside before, and known again; by the names that they get back."""
    unknown: list[str]
    """Not known, and not set aside yet."""
    set_aside: list[str]
    """Set aside before, and still not known."""
    trash: list[str]
    """Those of topics whose deletion is recorded."""


def survey(names: Iterable[str], known: set[str], deleted: set[str]) -> DirectorySurvey:
    """Sorts what is there by what the metadata says; names that no topic could have are left out."""
    present = set(names)
    missing = sorted(name for name in known - present if name + SET_ASIDE_SUFFIX not in present)
    returned = sorted(name for name in known - present if name + SET_ASIDE_SUFFIX in present)
    found = DirectorySurvey(missing, returned, [], [], [])
    for name in sorted(present - known - {name + SET_ASIDE_SUFFIX for name in returned}):
        matched = _TOPIC_DIRECTORY.fullmatch(name)
        if matched is None:
            continue
        if name.removesuffix(TRASH_SUFFIX) in deleted:
            found.trash.append(name)
        elif matched["aside"]:
            found.set_aside.append(name)
        else:
            found.unknown.append(name)
    return found


def set_right(disk: Disk, root: Path, found: DirectorySurvey) -> list[str]:
    """Renames what is to be set aside or comes back; what could not be renamed, for people."""
    pairs = [(name, name + SET_ASIDE_SUFFIX) for name in found.unknown]
    pairs += [(name + SET_ASIDE_SUFFIX, name) for name in found.returned]
    complaints = []
    for source, target in pairs:
        try:
            disk.rename(root / source, root / target)
        except OSError as error:
            complaints.append(f"{source} cannot be renamed to {target}: {error}")
    if pairs:
        disk.sync_directory(root)
    return complaints


def holds_topics(disk: Disk, root: Path) -> bool:
    """Whether there is a directory of any topic."""
    return disk.exists(root) and any(map(_TOPIC_DIRECTORY.fullmatch, disk.listdir(root)))


def split_name(directory: str) -> tuple[str, str]:
    """A topic's name, cut to what fits into a directory's, and the first digits of its id."""
    matched = _TOPIC_DIRECTORY.fullmatch(directory)
    assert matched is not None, f"{directory} is not a topic's"
    return matched["name"], matched["id"]


# -- descriptions -------------------------------------------------------------------------------


def describe(disk: Disk, directory: Path, record: TopicRecord) -> None:
    """Writes a topic's description into its directory; not synced."""
    temporary = directory / (DESCRIPTION_NAME + TEMPORARY_SUFFIX)
    file = disk.open(temporary, create=True)
    try:
        file.truncate(0)
        file.write(_encode(record))
    finally:
        file.close()
    disk.rename(temporary, directory / DESCRIPTION_NAME)


def description(disk: Disk, directory: Path) -> TopicRecord | None:
    """The topic that a directory says it belongs to; None if it does not say, or cannot be believed."""
    try:
        content = disk.read_file(directory / DESCRIPTION_NAME)
    except FileNotFoundError:
        return None
    body = unseal(content)
    if body is None:
        return None
    value = json.loads(body)
    record = TopicRecord.from_json(value["name"], value)
    return record if split_name(record.directory_name) == split_name(directory.name) else None


def _encode(record: TopicRecord) -> bytes:
    return seal(json.dumps({"name": record.name, **record.to_json()}, separators=(",", ":")).encode())
