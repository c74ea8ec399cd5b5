"""What `braid doctor` finds in a broker's metadata: its journal, and directories missing from it."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

from braidmq.broker import adoption
from braidmq.broker.adoption import Candidate
from braidmq.broker.broker import METADATA_NAME
from braidmq.broker.topic import check_name
from braidmq.broker.topic_directories import SET_ASIDE_SUFFIX
from braidmq.cli.mistake import UserMistake
from braidmq.cluster import journal
from braidmq.cluster.journal import Tail
from braidmq.cluster.store import Store, StoreCorrupt, complaint, cut_journal
from braidmq.log.doctor import DAMAGED_SUFFIX, Finding
from braidmq.platform.disk import RealDisk
from braidmq.wire.errors import ApiError

ALL = "all"

Examined = tuple[list[Finding], list[str], list[Finding]]
"""What was found, what was done, and what is left of it."""


def examine_journal(directory: Path, repair: bool, adopting: bool) -> Examined:
    """Reads the journal; a repair ends it before an entry that is torn, or damaged and the last one."""
    path = directory / METADATA_NAME
    if not path.exists():
        missing = [Finding(METADATA_NAME, 0, "missing; restore it from a backup, or use --adopt all")]
        return (
            (missing, [f"{METADATA_NAME}: a new one was created"], []) if adopting else (missing, [], missing)
        )
    found = journal.read(path.read_bytes())
    if found.tail is Tail.NONE:
        return [], [], []
    if found.tail is Tail.TORN:
        torn = [Finding(METADATA_NAME, found.end, "the last change was cut off by a crash")]
        if not repair:
            return torn, [], torn
        cut_journal(RealDisk(), path, found.end)
        return torn, [f"{METADATA_NAME}: cut back to byte {found.end}"], []
    damage = [Finding(METADATA_NAME, found.end, complaint(METADATA_NAME, found))]
    if found.tail is Tail.DAMAGED or not repair:
        return damage, [], damage
    kept = path.with_name(path.name + DAMAGED_SUFFIX)
    shutil.copyfile(path, kept)
    cut_journal(RealDisk(), path, found.end)
    return (
        damage,
        [f"{METADATA_NAME}: the damaged last change is undone; the file is kept as {kept.name}"],
        [],
    )


def examine_directories(directory: Path) -> list[Finding]:
    """Directories of topics that the metadata does not know, and those that it misses."""
    disk, root = RealDisk(), directory / "topics"
    if not (directory / METADATA_NAME).exists():
        return []
    store = Store(disk, directory / METADATA_NAME)
    try:
        findings = [_finding(store, candidate) for candidate in adoption.candidates(disk, root, store)]
        missing = adoption.look(disk, root, store).missing
        return findings + [Finding(name, 0, "missing; the topic is empty") for name in missing]
    finally:
        store.close()


def _finding(store: Store, candidate: Candidate) -> Finding:
    record = candidate.record
    what = (
        f"missing from the metadata; it holds topic {record.name}, {record.partition_count} partitions;"
        f" --adopt {candidate.directory.removesuffix(SET_ASIDE_SUFFIX)} brings it back"
    )
    in_the_way = adoption.conflict(store, record)
    if in_the_way is not None:
        what += f", with --replace or --adopt-as, as {in_the_way}"
    return Finding(candidate.directory, 0, what)


def adopt(directory: Path, names: list[str], new_name: str | None, replace: bool) -> list[str]:
    """Brings topics back as asked for; what was done. UserMistake if it cannot be done without more words."""
    disk, root = RealDisk(), directory / "topics"
    try:
        store = Store(disk, directory / METADATA_NAME)
    except StoreCorrupt as damage:
        raise UserMistake(str(damage)) from None
    try:
        found = adoption.candidates(disk, root, store)
        chosen = _certain(store, found) if names == [ALL] else [_find(found, name) for name in names]
        if new_name is not None:
            chosen = [_renamed(chosen, new_name)]
        if not replace:
            for candidate in chosen:
                _check(store, candidate)
        deeds = []
        for candidate in chosen:
            deeds += adoption.adopt(disk, root, store, candidate)
        return deeds
    finally:
        store.close()


def _certain(store: Store, found: list[Candidate]) -> list[Candidate]:
    """Those whose names nobody else claims; the others are left to be decided one by one."""
    claims = Counter(candidate.record.name for candidate in found)
    return [
        candidate
        for candidate in found
        if claims[candidate.record.name] == 1 and adoption.conflict(store, candidate.record) is None
    ]


def _find(found: list[Candidate], name: str) -> Candidate:
    plain = name.removesuffix(SET_ASIDE_SUFFIX)
    for candidate in found:
        if candidate.directory.removesuffix(SET_ASIDE_SUFFIX) == plain:
            return candidate
    of_topic = [candidate for candidate in found if candidate.record.name == name]
    if len(of_topic) == 1:
        return of_topic[0]
    listed = ", ".join(candidate.directory for candidate in of_topic or found) or "none is"
    if of_topic:
        raise UserMistake(f"{len(of_topic)} directories hold a topic {name}; name one of them: {listed}")
    raise UserMistake(f"no directory called {name} is missing from the metadata: {listed}")


def _renamed(chosen: list[Candidate], new_name: str) -> Candidate:
    if len(chosen) != 1:
        raise UserMistake("--adopt-as names one topic; give --adopt once")
    try:
        check_name(new_name)
    except ApiError as error:
        raise UserMistake(error.message or str(error)) from None
    return chosen[0]._replace(record=chosen[0].record.renamed(new_name))


def _check(store: Store, candidate: Candidate) -> None:
    in_the_way = adoption.conflict(store, candidate.record)
    if in_the_way is not None:
        raise UserMistake(
            f"{in_the_way}; --replace brings {candidate.directory} back in its place and sets the other"
            " aside, --adopt-as NAME brings it back under another name"
        )
