"""The log of commits that turns a folder of Parquet files into a table.

A file belongs to the table from the commit that adds it to the commit that removes it:

    DIR/_braid/log/00000000000000000007.json           one commit: files added and removed, offsets reached
    DIR/_braid/log/00000000000000000064.snapshot.json  the sum of all commits up to that one
    DIR/date=2026-11-15/….parquet                      rows

A commit is written to a temporary file, synced, and given its number with a hard link, which fails if the
number is taken. So a commit exists completely or not at all, two writers cannot both make commit 7, and a
reader sees the table as some commit left it. A commit holds both the files and the offsets that they reach:
an archiver that continues from the offsets of the last commit can neither lose nor repeat a row.

Commits that a snapshot includes are removed days later, and then a link to one of their numbers succeeds
again. So a commit is refused if a snapshot has passed its number: otherwise a slow writer could succeed with
rows that no reader ever sees. The snapshots are checked before the link and after it.

A killed writer leaves files that no commit names. `sweep` removes them when they are old.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from braidmq.platform.disk import RealDisk
from braidmq.spark.errors import UserError

FORMAT_VERSION = 1
SNAPSHOT_EVERY = 64
NUMBER_DIGITS = 20
SNAPSHOT_SUFFIX = ".snapshot.json"
COMMIT_SUFFIX = ".json"
FOLDER = "_braid"

Positions = Mapping[str, Mapping[int, int]]
"""Topic → partition → the next offset to be archived."""
TopicIds = Mapping[str, str]
"""Topic → its id, in hex: a recreated topic has another."""


class LakeError(UserError):
    """A lake cannot be read or written as asked; one line that says what to do."""


class CommitConflict(LakeError):
    """Another writer committed first, and this commit no longer fits."""


class LakeOperation(StrEnum):
    CREATE = "create"
    ARCHIVE = "archive"
    APPEND = "append"
    COMPACT = "compact"
    SWEEP = "sweep"


@dataclass(frozen=True, slots=True)
class ParquetFile:
    """A Parquet file of the table; `path` is relative to the lake, the times are those of its records."""

    path: str
    rows: int
    size_bytes: int
    first_ms: int | None = None
    last_ms: int | None = None

    @property
    def folder(self) -> str:
        return self.path.rpartition("/")[0]


@dataclass(frozen=True, slots=True)
class Commit:
    """One change of the table. `schema` is Spark's JSON of the whole schema, if it changed."""

    operation: LakeOperation
    at_ms: int
    added: tuple[ParquetFile, ...] = ()
    removed: tuple[str, ...] = ()
    positions: Positions = field(default_factory=dict)
    topic_ids: TopicIds = field(default_factory=dict)
    writer: str | None = None
    batch: int | None = None
    schema: dict[str, Any] | None = None
    swept: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The table after commit `version`; version -1 is a folder without a commit."""

    version: int = -1
    files: Mapping[str, ParquetFile] = field(default_factory=dict)
    positions: Positions = field(default_factory=dict)
    topic_ids: TopicIds = field(default_factory=dict)
    batches: Mapping[str, int] = field(default_factory=dict)
    removed: Mapping[str, int] = field(default_factory=dict)
    """Files that are no longer part of the table, and since when (ms); readers may still have them open."""
    schema: dict[str, Any] | None = None

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files.values())

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files.values())

    def recreated(self, now: TopicIds) -> str | None:
        """A topic whose id differs from that of earlier commits; unknown ids count as the same."""
        return next((topic for topic, id_ in now.items() if self.topic_ids.get(topic, id_) != id_), None)

    def after(self, commit: Commit) -> Snapshot:
        """The table with one more commit; CommitConflict if it removes a file that is not in the table."""
        gone = [path for path in commit.removed if path not in self.files]
        if gone:
            raise CommitConflict(f"{gone[0]} is no longer part of the lake: another compaction replaced it")
        files = {path: file for path, file in self.files.items() if path not in set(commit.removed)}
        files.update({file.path: file for file in commit.added})
        removed = {**self.removed, **dict.fromkeys(commit.removed, commit.at_ms)}
        swept = set(commit.swept)
        batches = dict(self.batches)
        if commit.writer is not None and commit.batch is not None:
            batches[commit.writer] = commit.batch
        return replace(
            self,
            version=self.version + 1,
            files=files,
            positions=merged(self.positions, commit.positions),
            topic_ids={**self.topic_ids, **commit.topic_ids},
            batches=batches,
            removed={path: since for path, since in removed.items() if path not in swept},
            schema=commit.schema or self.schema,
        )


def merged(old: Positions, new: Positions) -> dict[str, dict[int, int]]:
    """The old positions, updated by the new ones."""
    topics = {topic: dict(partitions) for topic, partitions in old.items()}
    for topic, partitions in new.items():
        topics.setdefault(topic, {}).update(partitions)
    return topics


class CommitLog:
    """The commits of one lake, on a file system that all writers and readers share."""

    def __init__(self, lake: Path) -> None:
        self._lake = lake
        self._folder = lake / FOLDER / "log"
        self._disk = RealDisk()

    @property
    def exists(self) -> bool:
        return self._folder.is_dir()

    def snapshot(self) -> Snapshot:
        """The table as the newest commit left it."""
        for _ in range(3):
            try:
                return self._read()
            except FileNotFoundError:
                # A sweep removed old commits after we listed the folder.
                continue
        raise LakeError(
            f"{self._lake}: commits disappear while they are read; does another tool delete files there?"
        )

    def commit(self, snapshot: Snapshot, commit: Commit) -> Snapshot:
        """Adds `commit` after `snapshot`; CommitConflict if another writer added one first."""
        after = snapshot.after(commit)
        self._folder.mkdir(parents=True, exist_ok=True)
        if after.version <= self._newest_snapshot():
            raise self._taken(after.version)
        temporary = self._folder / f".{uuid.uuid4().hex}.tmp"
        self._disk.write_atomically(temporary, _encode(commit))
        try:
            os.link(temporary, self._path(after.version))
        except FileExistsError:
            raise self._taken(after.version) from None
        finally:
            temporary.unlink()
        self._disk.sync_directory(self._folder)
        if after.version <= self._newest_snapshot():
            self._check_summed_up(after.version, commit)
            return after
        if after.version and after.version % SNAPSHOT_EVERY == 0:
            self._disk.write_atomically(self._path(after.version, SNAPSHOT_SUFFIX), _encode_snapshot(after))
        return after

    def _taken(self, number: int) -> CommitConflict:
        return CommitConflict(
            f"{self._lake}: another writer made commit {number}; nothing was changed; run it again"
        )

    def _check_summed_up(self, number: int, commit: Commit) -> None:
        """For a commit that a snapshot passed while it was linked: LakeError unless the snapshot has it.

        Others made many commits meanwhile. Either the snapshot includes ours, or its number had been used,
        included in a snapshot and removed before the link, and our link has no effect.
        """
        if not _has(self.snapshot(), commit):
            raise LakeError(
                f"{self._lake}: this writer was suspended for so long that another made commit {number}"
                " and removed it; nothing was changed; run it again"
            )

    def forget_before_last_snapshot(self, before_ms: int) -> int:
        """Removes old commits that the newest snapshot includes; returns how many files it removed.

        From the lowest number on, so that the rest has no gap. Older snapshots are removed at once.
        """
        names = self._names()
        newest = self._newest_snapshot(names)
        old = [name for number, name in names if number < newest and name.endswith(SNAPSHOT_SUFFIX)]
        for number, name in names:
            if name.endswith(SNAPSHOT_SUFFIX):
                continue
            if number >= newest or self._written_ms(name) >= before_ms:
                break
            old.append(name)
        for name in old:
            (self._folder / name).unlink(missing_ok=True)
        return len(old)

    def _newest_snapshot(self, names: list[tuple[int, str]] | None = None) -> int:
        known = self._names() if names is None else names
        return max((number for number, name in known if name.endswith(SNAPSHOT_SUFFIX)), default=-1)

    def _written_ms(self, name: str) -> int:
        try:
            return int((self._folder / name).stat().st_mtime * 1000)
        except FileNotFoundError:
            return 0  # Another sweep is removing them too.

    def _read(self) -> Snapshot:
        names = self._names()
        snapshot = Snapshot()
        if (newest := self._newest_snapshot(names)) >= 0:
            snapshot = _decode_snapshot(self._json(self._path(newest, SNAPSHOT_SUFFIX)))
        for number, name in names:
            if number <= snapshot.version or name.endswith(SNAPSHOT_SUFFIX):
                continue
            if number != snapshot.version + 1:
                raise LakeError(
                    f"{self._lake}: commit {snapshot.version + 1} is missing from {self._folder},"
                    f" but {number} exists; restore it from a backup"
                )
            snapshot = snapshot.after(_decode(self._json(self._folder / name)))
        return snapshot

    def _names(self) -> list[tuple[int, str]]:
        if not self.exists:
            return []
        names = [name for name in self._disk.listdir(self._folder) if name[:NUMBER_DIGITS].isdigit()]
        return sorted((int(name[:NUMBER_DIGITS]), name) for name in names if name.endswith(COMMIT_SUFFIX))

    def _path(self, number: int, suffix: str = COMMIT_SUFFIX) -> Path:
        return self._folder / f"{number:0{NUMBER_DIGITS}d}{suffix}"

    def _json(self, path: Path) -> dict[str, Any]:
        try:
            content: dict[str, Any] = json.loads(path.read_bytes())
        except ValueError as error:
            raise LakeError(f"{path}: damaged ({error}); restore it from a backup") from None
        if content.get("format") != FORMAT_VERSION:
            raise LakeError(
                f"{path}: has format {content.get('format')}, this version of braid knows {FORMAT_VERSION};"
                " use the version that wrote it"
            )
        return content


def _has(snapshot: Snapshot, commit: Commit) -> bool:
    """Whether a snapshot includes a commit: by its files, which have unique names, or else by its batch."""
    if commit.added:
        known = snapshot.files.keys() | snapshot.removed.keys()
        return all(file.path in known for file in commit.added)
    if commit.writer is not None:
        return snapshot.batches.get(commit.writer, -1) >= (commit.batch or 0)
    return all(
        snapshot.positions.get(topic, {}).get(partition, -1) >= offset
        for topic, partitions in commit.positions.items()
        for partition, offset in partitions.items()
    )


def _encode(commit: Commit) -> bytes:
    return json.dumps({"format": FORMAT_VERSION, **asdict(commit)}, indent=1).encode()


def _encode_snapshot(snapshot: Snapshot) -> bytes:
    return json.dumps({"format": FORMAT_VERSION, **asdict(snapshot)}).encode()


def _decode(content: Mapping[str, Any]) -> Commit:
    return Commit(
        operation=LakeOperation(content["operation"]),
        at_ms=content["at_ms"],
        added=tuple(_files(content["added"])),
        removed=tuple(content["removed"]),
        positions=_positions(content["positions"]),
        topic_ids=content.get("topic_ids", {}),
        writer=content["writer"],
        batch=content["batch"],
        schema=content["schema"],
        swept=tuple(content["swept"]),
    )


def _decode_snapshot(content: Mapping[str, Any]) -> Snapshot:
    return Snapshot(
        version=content["version"],
        files={file.path: file for file in _files(content["files"].values())},
        positions=_positions(content["positions"]),
        topic_ids=content.get("topic_ids", {}),
        batches=content["batches"],
        removed=content["removed"],
        schema=content["schema"],
    )


def _files(rows: Iterable[Mapping[str, Any]]) -> Iterable[ParquetFile]:
    return (ParquetFile(**row) for row in rows)


def _positions(content: Mapping[str, Mapping[str, int]]) -> dict[str, dict[int, int]]:
    return {topic: {int(index): at for index, at in parts.items()} for topic, parts in content.items()}
