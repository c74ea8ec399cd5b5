"""Brings back topics whose directories the metadata does not know; the broker is stopped.

What a topic was is read from the description in its directory. Without one, as earlier releases left it, it
is guessed: the name and the first digits of the id from the directory's name, the partitions from what is
there, and options under which nothing is removed. A topic is back with one commit, after those of its
partitions; the directories then get their names, here or, after a crash, at the next start.

A topic of the same name may exist by now, above all the broker's own ones, which it recreates when it misses
them. Then the two can change places: the directory of the newer topic is set aside in turn.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from braidmq.broker import group_coordinator, share_coordinator, txn_coordinator
from braidmq.broker.share_records import STATE_TOPIC as SHARE_STATE_TOPIC
from braidmq.broker.topic import DIRECTORY_NAME_CHARACTERS, TopicRecord, directory_name
from braidmq.broker.topic_directories import (
    SET_ASIDE_SUFFIX,
    DirectorySurvey,
    description,
    set_right,
    split_name,
    survey,
)
from braidmq.cluster.changes import Changes
from braidmq.cluster.image import Image
from braidmq.group.records import OFFSETS_TOPIC
from braidmq.platform.disk import Disk
from braidmq.platform.randomness import new_uuid

KEEP_ALL = {"retention.ms": "-1", "retention.bytes": "-1"}
_INTERNAL_OPTIONS = {
    OFFSETS_TOPIC: group_coordinator.TOPIC_OPTIONS,
    SHARE_STATE_TOPIC: share_coordinator.TOPIC_OPTIONS,
    txn_coordinator.STATE_TOPIC: txn_coordinator.TOPIC_OPTIONS,
}


class Candidate(NamedTuple):
    """A directory that the metadata does not know, and the topic it holds."""

    directory: str
    record: TopicRecord
    guessed: str
    """What is not certain about the topic, for people; empty if it is described."""


def look(disk: Disk, root: Path, image: Image) -> DirectorySurvey:
    """What is under `topics/`, by what the metadata says."""
    known = {directory_name(topic.name, topic.id) for topic in image.topics.values()}
    deleted = {
        directory_name(record.name, topic_id)
        for topic_id in image.all_deleted()
        if (record := image.deleted(topic_id)) is not None
    }
    return survey(disk.listdir(root) if disk.exists(root) else (), known, deleted)


def candidates(disk: Disk, root: Path, image: Image) -> list[Candidate]:
    """The topics that can be brought back."""
    found = look(disk, root, image)
    return [_candidate(disk, root, name) for name in sorted((*found.unknown, *found.set_aside))]


def conflict(image: Image, record: TopicRecord) -> str | None:
    """Why the topic can only be brought back in the place of another; None if nothing is in its way."""
    known = image.find(record.name)
    if known is None:
        return None
    return f"a topic {record.name} exists, with the directory {directory_name(known.name, known.id)}"


async def adopt(disk: Disk, root: Path, image: Image, changes: Changes, candidate: Candidate) -> list[str]:
    """Brings a topic back, in the place of one that has its name; what was done, for people."""
    record = candidate.record
    if record.id in image.topics:
        # A copy of a directory that is in use: it becomes a topic with an id of its own.
        record = replace(record, id=new_uuid())
    aside = record.directory_name + SET_ASIDE_SUFFIX
    if candidate.directory not in (aside, record.directory_name):
        disk.rename(root / candidate.directory, root / aside)
        disk.sync_directory(root)
    replicas = changes.place(record.partition_count)
    await changes.replace_topic(record.name, record.id, replicas, record.overrides)
    found = look(disk, root, image)
    deeds = [f"{candidate.directory}: topic {record.name} is back, {record.partition_count} partitions"]
    deeds += [f"{name}: set aside" for name in found.unknown]
    if candidate.guessed:
        deeds.append(f"{record.directory_name}: {candidate.guessed}")
    return deeds + set_right(disk, root, found)


def _candidate(disk: Disk, root: Path, directory: str) -> Candidate:
    indexes = [int(name) for name in disk.listdir(root / directory) if name.isdecimal()]
    count = max(indexes, default=0) + 1
    record = description(disk, root / directory)
    if record is not None:
        return Candidate(directory, replace(record, partition_count=max(count, record.partition_count)), "")
    name, id_digits = split_name(directory)
    topic_id = bytes.fromhex(id_digits) + new_uuid()[len(id_digits) // 2 :]
    overrides = _INTERNAL_OPTIONS.get(name, KEEP_ALL)
    guessed = f"guessed, as it is not described: {count} partitions, nothing removed by retention"
    if len(name) == DIRECTORY_NAME_CHARACTERS:
        guessed += ", and a name that may be cut off"
    return Candidate(directory, TopicRecord(name, topic_id, count, dict(overrides)), guessed)
