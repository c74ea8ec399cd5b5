"""What `braid doctor` finds in a broker's metadata: its store, and directories missing from it.

Looking changes nothing. Adopting opens the metadata as a broker does.
"""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from pathlib import Path

from braidmq.broker import adoption
from braidmq.broker.adoption import Candidate
from braidmq.broker.metadata import Metadata, Start
from braidmq.broker.topic import check_name
from braidmq.broker.topic_directories import SET_ASIDE_SUFFIX
from braidmq.cli.mistake import UserMistake
from braidmq.cluster import journal
from braidmq.cluster.carry_over import OLD_NAME
from braidmq.cluster.file_store import FILE_NAME, replayed
from braidmq.cluster.image import Image
from braidmq.cluster.journal import Tail
from braidmq.cluster.membership import JoinRefused
from braidmq.cluster.metadata_store import StoreCorrupt, StoreError
from braidmq.cluster.offline import Offline, read_offline
from braidmq.log.doctor import DAMAGED_SUFFIX, Finding
from braidmq.platform.clock import SystemClock
from braidmq.platform.disk import RealDisk
from braidmq.platform.host import Host
from braidmq.platform.threads import DiskThreads
from braidmq.wire.errors import ApiError

ALL = "all"

Examined = tuple[list[Finding], list[str], list[Finding]]
"""What was found, what was done, and what is left of it."""


def examine_store(directory: Path, repair: bool, adopting: bool) -> Examined:
    """Reads the file; a repair ends it before an entry that is torn, or damaged and the last one."""
    path = _metadata(directory)
    name = path.name
    if not path.exists():
        missing = [Finding(name, 0, "missing; restore it from a backup, or use --adopt all")]
        return (missing, [f"{name}: a new one was created"], []) if adopting else (missing, [], missing)
    found = journal.read(path.read_bytes())
    if found.tail is Tail.NONE:
        return _examine_entries(name, found)
    if found.tail is Tail.TORN:
        torn = [Finding(name, found.end, "the last change was cut off by a crash")]
        if not repair:
            return torn, [], torn
        journal.cut(RealDisk(), path, found.end)
        return torn, [f"{name}: cut back to byte {found.end}"], []
    damage = [Finding(name, found.end, journal.complaint(name, found))]
    if found.tail is Tail.DAMAGED or not repair:
        return damage, [], damage
    kept = path.with_name(name + DAMAGED_SUFFIX)
    shutil.copyfile(path, kept)
    journal.cut(RealDisk(), path, found.end)
    return damage, [f"{name}: the damaged last change is undone; the file is kept as {kept.name}"], []


def _metadata(directory: Path) -> Path:
    """The file that counts: that of release 0.x until a broker has started with it."""
    old = directory / OLD_NAME
    return old if old.exists() and not (directory / FILE_NAME).exists() else directory / FILE_NAME


def _examine_entries(name: str, found: journal.Journal) -> Examined:
    if name == FILE_NAME:
        try:
            replayed(name, found, 0.0)
        except StoreCorrupt as damage:
            wrong = [Finding(name, 0, str(damage))]
            return wrong, [], wrong
    return [], [], []


def examine_directories(directory: Path) -> list[Finding]:
    """Directories of topics that the metadata does not know, and those that it misses."""
    disk, root = RealDisk(), directory / "topics"
    if not _metadata(directory).exists():
        return []
    image = _offline(directory).image
    findings = [_finding(image, candidate) for candidate in adoption.candidates(disk, root, image)]
    missing = adoption.look(disk, root, image).missing
    return findings + [Finding(name, 0, "missing; the topic is empty") for name in missing]


def _offline(directory: Path) -> Offline:
    return asyncio.run(read_offline(RealDisk(), directory, SystemClock()))


def _finding(image: Image, candidate: Candidate) -> Finding:
    record = candidate.record
    what = (
        f"missing from the metadata; it holds topic {record.name}, {record.partition_count} partitions;"
        f" --adopt {candidate.directory.removesuffix(SET_ASIDE_SUFFIX)} brings it back"
    )
    in_the_way = adoption.conflict(image, record)
    if in_the_way is not None:
        what += f", with --replace or --adopt-as, as {in_the_way}"
    return Finding(candidate.directory, 0, what)


def adopt(directory: Path, names: list[str], new_name: str | None, replace: bool) -> list[str]:
    """Brings topics back as asked for; what was done. UserMistake if it cannot be done without more words."""
    try:
        offline = _offline(directory)
        found = adoption.candidates(RealDisk(), directory / "topics", offline.image)
        chosen = _certain(offline.image, found) if names == [ALL] else [_find(found, name) for name in names]
        if new_name is not None:
            chosen = [_renamed(chosen, new_name)]
        if not replace:
            for candidate in chosen:
                _check(offline.image, candidate)
        return asyncio.run(_bring_back(directory, offline, chosen))
    except (StoreError, JoinRefused) as error:
        raise UserMistake(str(error)) from None


async def _bring_back(directory: Path, whose: Offline, chosen: list[Candidate]) -> list[str]:
    host = Host()
    threads = DiskThreads(asyncio.get_running_loop(), 1)
    metadata = Metadata(whose.node_id, whose.cluster_name, directory, host, threads)
    try:
        await metadata.open(Start.ADOPTING)
        deeds = []
        for candidate in chosen:
            deeds += await adoption.adopt(
                host.disk, directory / "topics", metadata.image, metadata.changes, candidate
            )
        return deeds
    finally:
        await metadata.close()
        threads.stop()


def _certain(image: Image, found: list[Candidate]) -> list[Candidate]:
    """Those whose names nobody else claims; the others are left to be decided one by one."""
    claims = Counter(candidate.record.name for candidate in found)
    return [
        candidate
        for candidate in found
        if claims[candidate.record.name] == 1 and adoption.conflict(image, candidate.record) is None
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


def _check(image: Image, candidate: Candidate) -> None:
    in_the_way = adoption.conflict(image, candidate.record)
    if in_the_way is not None:
        raise UserMistake(
            f"{in_the_way}; --replace brings {candidate.directory} back in its place and sets the other"
            " aside, --adopt-as NAME brings it back under another name"
        )
