"""Tables of one row per key, kept in Parquet files, replaced atomically.

    customers/
      current -> versions/00000012
      versions/00000012/part-00003.parquet           the rows of bucket 3
      versions/00000012/_deleted/part-00003.parquet  keys that were deleted, with the order of their deletion
      versions/00000012/_version.json                schema, batch, counts
      lock                                           held by the run that writes

A batch of changes touches some buckets. One task for each of them merges the changes and writes a new file;
the files of other buckets are hard links to the previous version. When everything is on disk, the symbolic
link `current` is replaced, and the batch's number with it: a repeated batch does nothing, and a crash before
that moment leaves only files that the next batch removes. A run holds the lock in the directory: there is one
writer at a time.

Of two changes to a key the one that is newer by the ordering columns wins, whenever it comes. So deletions
are kept: otherwise a late update of a deleted row would bring it back. Spark and pandas skip names that begin
with an underscore, so both can read `customers/current` as a table.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from braidmq.platform.disk import RealDisk
from braidmq.spark.pipelines.mistakes import PipelineError

CURRENT, VERSIONS, MANIFEST, DELETED = "current", "versions", "_version.json", "_deleted"
IS_DELETED, CHANGED_MS = "_braid_deleted", "_braid_changed_ms"
KEPT_MS = 600_000
"""How long a replaced version is kept for its readers."""
KEPT_MAX = 100


@dataclass(frozen=True, slots=True)
class Rules:
    """How changes are merged."""

    key: tuple[str, ...]
    order_by: tuple[str, ...]
    forget_deletes_ms: int


@dataclass(frozen=True, slots=True)
class Version:
    """The description of a version."""

    number: int
    query: str
    batch: int
    schema: dict[str, Any]
    key: tuple[str, ...]
    order_by: tuple[str, ...]
    buckets: int
    parts: dict[int, int]
    """bucket → rows"""

    @property
    def rows(self) -> int:
        return sum(self.parts.values())


class UpsertTable:
    """The directory of a table, for its readers and its writer."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._disk = RealDisk()

    def current(self) -> tuple[Path, Version] | None:
        """The newest version and its directory; None for a table without one."""
        try:
            directory = (self.path / CURRENT).resolve(strict=True)
            written = json.loads((directory / MANIFEST).read_bytes())
        except FileNotFoundError:
            return None
        written["parts"] = {int(bucket): rows for bucket, rows in written["parts"].items()}
        written |= {name: tuple(written[name]) for name in ("key", "order_by")}
        return directory, Version(**written)

    def prepare(self, number: int) -> Path:
        """An empty directory for a version that is being written."""
        directory = self.path / VERSIONS / f"{number:08d}.new"
        if directory.exists():
            shutil.rmtree(directory)
        self._disk.makedirs(directory / DELETED)
        return directory

    def finish(self, directory: Path, version: Version) -> None:
        """Makes a written version the current one."""
        manifest = {name: getattr(version, name) for name in Version.__dataclass_fields__}
        self._disk.write_atomically(directory / MANIFEST, json.dumps(manifest).encode())
        self._disk.sync_directory(directory / DELETED)
        final = directory.with_suffix("")
        if final.exists():
            if (self.path / CURRENT).resolve() == final.resolve():
                raise PipelineError(
                    f"{self.path}: another run made version {version.number} current; stop it:"
                    " a table has one writer"
                )
            # Written by a run that died before it could be made current.
            shutil.rmtree(final)
        directory.rename(final)
        self._disk.sync_directory(final.parent)
        link = self.path / f"{CURRENT}.new"
        link.unlink(missing_ok=True)
        link.symlink_to(Path(VERSIONS) / final.name)
        link.replace(self.path / CURRENT)
        self._disk.sync_directory(self.path)

    def keep_part(self, source: Path, target: Path, bucket: int) -> None:
        """A bucket that did not change: the same file under one more name."""
        for name in (part_name(bucket), f"{DELETED}/{part_name(bucket)}"):
            if (source / name).exists():
                try:
                    os.link(source / name, target / name)
                except OSError:
                    shutil.copy2(source / name, target / name)

    def sweep(self, now_ms: int) -> None:
        """Removes versions that were replaced some time ago."""
        found = self.current()
        if found is None:
            return
        old = sorted(
            each
            for each in (self.path / VERSIONS).iterdir()
            if each.name.isdigit() and each.name < found[0].name
        )
        for index, each in enumerate(old):
            replaced_ms = (old[index + 1] if index + 1 < len(old) else found[0]).stat().st_mtime * 1000
            if now_ms - replaced_ms > KEPT_MS or len(old) - index > KEPT_MAX:
                shutil.rmtree(each, ignore_errors=True)


def part_name(bucket: int) -> str:
    return f"part-{bucket:05d}.parquet"


def merge(old: pa.Table, changes: pa.Table, rules: Rules) -> pa.Table:
    """One row per key: the newest by the ordering columns; of equals, the one that came last."""
    try:
        # The empty one comes first because the columns keep its order.
        parts = [changes.slice(0, 0), old, changes]
        everything = pa.concat_tables(parts, promote_options="default").combine_chunks()
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise PipelineError(f"a column changed its type, which a table does not support: {error}") from None
    order = _in_order(everything, rules.order_by)
    ranked = everything.select(list(rules.key)).take(order)
    ranked = ranked.append_column("_braid_rank", pa.array(range(len(order)), pa.int64()))
    newest = ranked.group_by(list(rules.key)).aggregate([("_braid_rank", "max")])["_braid_rank_max"]
    return everything.take(order.take(newest.combine_chunks().sort()))


def _in_order(table: pa.Table, order_by: tuple[str, ...]) -> pa.Array:
    """Indexes of the rows from the oldest to the newest; null is oldest, equal rows keep their order."""
    columns = {}
    for name in order_by:
        columns[f"has {name}"] = pc.cast(pc.is_valid(table[name]), pa.int8())
        columns[name] = table[name]
    columns["row"] = pa.chunked_array([pa.array(range(table.num_rows), pa.int64())])
    return pc.sort_indices(pa.table(columns), sort_keys=[(name, "ascending") for name in columns])


def merge_part(
    old_directory: Path | None, new_directory: Path, bucket: int, changes: pa.Table, rules: Rules, now_ms: int
) -> int:
    """Merges the changes of one bucket into its files; returns the number of rows."""
    before = [read_part(old_directory, bucket, deleted) for deleted in (False, True)] if old_directory else []
    found = [changes.slice(0, 0), *(each for each in before if each is not None)]
    merged = merge(pa.concat_tables(found, promote_options="default"), changes, rules)
    is_deleted = merged[IS_DELETED]
    rows = merged.filter(pc.invert(is_deleted)).drop_columns([IS_DELETED, CHANGED_MS])
    deleted = merged.filter(
        pc.and_(is_deleted, pc.greater(merged[CHANGED_MS], now_ms - rules.forget_deletes_ms))
    )
    write_part(new_directory / part_name(bucket), rows)
    if deleted.num_rows:
        write_part(new_directory / DELETED / part_name(bucket), deleted.drop_columns([IS_DELETED]))
    return int(rows.num_rows)


def read_part(directory: Path, bucket: int, deleted: bool = False) -> pa.Table | None:
    """The rows, or the deleted keys, of a bucket, with the columns that mark deletions."""
    file = directory / DELETED / part_name(bucket) if deleted else directory / part_name(bucket)
    if not file.exists():
        return None
    table = pq.read_table(file, partitioning=None)
    table = table.append_column(IS_DELETED, pa.array([deleted] * table.num_rows, pa.bool_()))
    if not deleted:
        table = table.append_column(CHANGED_MS, pa.array([0] * table.num_rows, pa.int64()))
    return table


def write_part(file: Path, table: pa.Table) -> None:
    """Synced when it returns. A second attempt of a task replaces the file of the first."""
    temporary = file.with_name(f".{file.name}.{uuid.uuid4().hex}")
    pq.write_table(table, temporary)
    written = RealDisk().open(temporary)
    try:
        written.fdatasync()
    finally:
        written.close()
    temporary.replace(file)
