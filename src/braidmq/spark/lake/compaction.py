"""Merges many small files into few large ones, and removes files that are not needed any more.

Compaction reads the small files of a date, writes their rows into new files, and commits the exchange:
readers see the old files or the new ones, with the same rows. Old files stay on disk for an hour, for queries
that still read them; then `sweep` removes them and what killed writers left. Commits that a snapshot includes
stay for a week.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from braidmq.spark.lake.commits import (
    FOLDER,
    Commit,
    CommitConflict,
    LakeError,
    LakeOperation,
    ParquetFile,
    Snapshot,
)
from braidmq.spark.lake.lake import Lake
from braidmq.spark.lake.schema import DATE

log = logging.getLogger("braidmq.spark")

TARGET_BYTES = 128 * 1024 * 1024
FILES_MIN = 2
FRAGMENTED_FILES = 32
"""An archiver compacts when a date has this many small files."""
KEPT_AFTER_REMOVAL_MS = 3_600_000
ORPHANS_KEPT_MS = 86_400_000
"""Files without a commit may belong to a writer that still runs; no write takes a day."""
COMMITS_KEPT_MS = 7 * 86_400_000
"""For suspended writers and for diagnosis: far longer than a write may take."""


@dataclass(frozen=True, slots=True)
class Compaction:
    """How many files were exchanged, and the table afterwards."""

    files_before: int
    files_after: int
    rows: int
    snapshot: Snapshot


def compact(
    lake: Lake, spark: SparkSession, target_bytes: int = TARGET_BYTES, files_min: int = FILES_MIN
) -> Compaction:
    """Merges the small files of each date; dates with fewer than `files_min` of them are left alone."""
    snapshot = lake.snapshot()
    before = after = rows = 0
    for group in _groups(snapshot.files.values(), target_bytes, files_min):
        made, snapshot = _merge(lake, spark, group)
        before, after = before + len(group), after + len(made)
        rows += sum(file.rows for file in made)
    return Compaction(before, after, rows, snapshot)


def tidy(lake: Lake, spark: SparkSession, snapshot: Snapshot) -> Snapshot:
    """Compacts and sweeps if the table has many small files; returns the table afterwards.

    For writers that tidy up along the way: a conflict with another compaction does not affect the rows that
    were just written, and the small files are merged after the next batch.
    """
    if not is_fragmented(snapshot):
        return snapshot
    try:
        compact(lake, spark)
        sweep(lake)
    except CommitConflict as conflict:
        log.warning("%s; small files are merged after the next batch", conflict)
    return lake.snapshot()


def is_fragmented(snapshot: Snapshot, target_bytes: int = TARGET_BYTES) -> bool:
    return any(_groups(snapshot.files.values(), target_bytes, FRAGMENTED_FILES))


def _groups(files: Iterable[ParquetFile], target_bytes: int, files_min: int) -> Iterator[list[ParquetFile]]:
    """Small files of one date that together make about one file of the target size."""
    small: dict[str, list[ParquetFile]] = {}
    for file in files:
        if file.size_bytes < target_bytes // 2:
            small.setdefault(file.folder, []).append(file)
    for _, candidates in sorted(small.items()):
        if len(candidates) < files_min:
            continue
        group: list[ParquetFile] = []
        for file in candidates:
            group.append(file)
            if sum(each.size_bytes for each in group) >= target_bytes:
                yield group
                group = []
        if len(group) > 1:
            yield group


def _merge(lake: Lake, spark: SparkSession, group: list[ParquetFile]) -> tuple[list[ParquetFile], Snapshot]:
    snapshot = lake.snapshot()
    made = lake.write(lake.frame(spark, group, lake.schema(snapshot)), files_max=1)
    expected, written = sum(file.rows for file in group), sum(file.rows for file in made)
    if expected != written:
        raise LakeError(
            f"{lake.path}: compaction of {len(group)} files has {written} rows instead of {expected};"
            " nothing was changed. A file was changed outside of Braid: compare with braid topic audit"
        )
    removed = tuple(file.path for file in group)
    commit = Commit(LakeOperation.COMPACT, lake.clock.wall_ms(), added=tuple(made), removed=removed)

    def again(now: Snapshot) -> Commit:
        if any(path not in now.files for path in removed):
            raise CommitConflict(f"{lake.path}: another compaction finished first; nothing was changed")
        return commit

    return made, lake.commit(snapshot, commit, again)


def sweep(
    lake: Lake,
    kept_ms: int = KEPT_AFTER_REMOVAL_MS,
    orphans_kept_ms: int = ORPHANS_KEPT_MS,
    commits_kept_ms: int = COMMITS_KEPT_MS,
) -> int:
    """Deletes files that left the table long ago, and old commits; returns the number of files."""
    snapshot = lake.snapshot()
    now_ms = lake.clock.wall_ms()
    replaced = tuple(name for name, since_ms in snapshot.removed.items() if now_ms - since_ms >= kept_ms)
    orphans = [
        f"{path.parent.name}/{path.name}"
        for path in lake.path.glob(f"{DATE}=*/*.parquet")
        if now_ms - _changed_ms(path) >= orphans_kept_ms
    ]
    gone = {*replaced, *(name for name in orphans if name not in snapshot.removed)} - set(snapshot.files)
    for name in gone:
        (lake.path / name).unlink(missing_ok=True)
    for staging in (lake.path / FOLDER / "staging").glob("*"):
        if now_ms - _changed_ms(staging) >= orphans_kept_ms:
            shutil.rmtree(staging, ignore_errors=True)
    if replaced:
        commit = Commit(LakeOperation.SWEEP, now_ms, swept=replaced)
        lake.commit(snapshot, commit, lambda _: commit)
    lake.forget_old_commits(commits_kept_ms)
    return len(gone)


def _changed_ms(path: Path) -> int:
    return int(path.stat().st_mtime * 1000)
