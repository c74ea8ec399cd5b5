"""Topics as a folder of plain Parquet: what `read(…).write.parquet(path)` makes, without the JVM in between.

The files are written beside the folder and synced, then the folder is renamed into place: readers see the
whole export or none of it. For an archive that continues, exactly once, use the lake (`lake/`).
"""

from __future__ import annotations

import difflib
import shutil
import socket
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlparse

import pyarrow as pa

from braidmq.platform.disk import RealDisk
from braidmq.spark.options import OptionError
from braidmq.spark.parquet.files import GroupedFile, WrittenFile, written_by_tasks
from braidmq.spark.source.bulk import parse_read, planned_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

CODECS = ("none", "snappy", "gzip", "lz4", "zstd")
"""The codecs that Spark can read."""
SUCCESS = "_SUCCESS"
"""Spark's marker of a write that succeeded."""


@dataclass(frozen=True, slots=True)
class Export:
    """What was written."""

    path: Path
    rows: int
    files: int


def export(
    spark: SparkSession,
    bootstrap_servers: str,
    subscribe: str | None = None,
    *,
    path: str | Path,
    schema: str | StructType | None = None,
    codec: str = "snappy",
    overwrite: bool = False,
    **options: str | int | bool,
) -> Export:
    """Writes topics as Parquet files into a new folder, several times as fast as Spark's own writer.

    Options are those of `spark.read.format("braid")`, and `schema` names the columns, as for `read`. On a
    cluster `path` must be on a file system that the driver and all workers share.
    """
    if codec not in CODECS:
        close = difflib.get_close_matches(codec, CODECS, n=1)
        advice = f"; did you mean {close[0]!r}?" if close else ""
        raise OptionError(f"codec is {codec!r}; it must be one of {', '.join(CODECS)}{advice}")
    target = _target(str(path), overwrite)
    query, columns = parse_read(bootstrap_servers, subscribe, schema, options)
    planned = planned_tasks(query)
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    staging, made = scratch / "staging", scratch / "made"
    staging.mkdir(parents=True)
    made.mkdir()
    try:
        written = written_by_tasks(
            spark,
            query,
            columns,
            planned,
            lambda number: ExportedFile(staging, f"part-{number:05d}-{uuid.uuid4().hex}", columns, codec),
        )
        if not written:
            # As Spark does, so that readers of the folder find the columns.
            written = ExportedFile(staging, "part-00000", columns, codec).close()
        _take(staging, made, written)
        _replace(target, made, scratch / "replaced", overwrite)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return Export(target, sum(each.rows for each in written), len(written))


class ExportedFile:
    """The one file of a task."""

    def __init__(self, staging: Path, stem: str, columns: tuple[str, ...], codec: str) -> None:
        extension = "parquet" if codec == "none" else f"{codec}.parquet"
        try:
            self._file = GroupedFile(staging / f"{stem}.{extension}", columns, codec)
        except FileNotFoundError:
            raise OptionError(
                f"{staging.parent.parent} exists on the driver but not on {socket.gethostname()};"
                " on a cluster path must be on a file system that the driver and all workers share"
            ) from None

    def add(self, rows: pa.RecordBatch) -> None:
        self._file.add(rows)

    def close(self) -> list[WrittenFile]:
        self._file.close()
        RealDisk().sync_file(self._file.path)
        return [WrittenFile(self._file.path.name, self._file.rows)]


def _target(path: str, overwrite: bool) -> Path:
    if "://" in path:
        parsed = urlparse(path)
        if parsed.scheme != "file":
            raise OptionError(
                f"{path}: export writes to local or mounted file systems only; for others use"
                " read(…).write.parquet(path)"
            )
        path = unquote(parsed.path)
    target = Path(path).absolute()
    if not target.exists():
        return target
    if not overwrite:
        raise OptionError(f"{target} exists; choose another folder, or set overwrite=True")
    if not target.is_dir() or any(not _is_ours(entry) for entry in target.iterdir()):
        raise OptionError(f"{target} holds other files than Parquet; choose another folder")
    return target


def _is_ours(entry: Path) -> bool:
    """Whether an export, or Spark, could have written this file."""
    return entry.is_file() and (entry.suffix in (".parquet", ".crc") or entry.name == SUCCESS)


def _take(staging: Path, made: Path, written: list[WrittenFile]) -> None:
    """Moves the files that tasks reported; files of abandoned attempts that still run stay in `staging`."""
    for each in written:
        file = staging / each.file
        if not file.is_file():
            raise OptionError(
                f"{staging.parent.parent} differs between the driver and the workers; on a cluster path"
                " must be on a file system that all of them share"
            )
        file.rename(made / each.file)
    (made / SUCCESS).touch()
    RealDisk().sync_directory(made)


def _replace(target: Path, made: Path, replaced: Path, overwrite: bool) -> None:
    """Renames the new folder into place; an old one is moved to `replaced`."""
    is_there = overwrite and target.exists()
    if is_there:
        target.rename(replaced)
    try:
        made.rename(target)
    except OSError:
        if is_there:
            replaced.rename(target)
        elif target.exists():
            raise OptionError(f"{target} was created meanwhile; nothing is exported") from None
        raise
    RealDisk().sync_directory(target.parent)
