"""The log of commits under a lake: whole or absent, one writer per number, the sum kept in snapshots."""

from __future__ import annotations

from pathlib import Path

import pytest

from braidmq.spark.lake.commits import (
    SNAPSHOT_EVERY,
    Commit,
    CommitLog,
    Conflict,
    LakeError,
    Operation,
    ParquetFile,
    Table,
)


def added(number: int) -> Commit:
    file = ParquetFile(f"date=2026-11-15/{number}.parquet", 10, 1000, 5, 6)
    return Commit(
        Operation.ARCHIVE,
        number,
        added=(file,),
        positions={"orders": {0: number * 10}},
        topic_ids={"orders": "0a" * 16},
    )


def filled(folder: Path, commits: int) -> tuple[CommitLog, Table]:
    log = CommitLog(folder)
    table = log.table()
    for number in range(commits):
        table = log.commit(table, added(number))
    return log, table


def test_commits_add_up_to_a_table(tmp_path: Path) -> None:
    """S5: files, and the offsets up to which they go."""
    log, table = filled(tmp_path, 3)
    table = log.commit(table, Commit(Operation.COMPACT, 99, removed=("date=2026-11-15/0.parquet",)))
    assert CommitLog(tmp_path).table() == table
    assert (table.version, table.rows, table.positions) == (3, 20, {"orders": {0: 20}})
    assert table.removed == {"date=2026-11-15/0.parquet": 99}
    assert table.topic_ids == {"orders": "0a" * 16}


def test_of_two_writers_one_wins_and_the_other_is_told(tmp_path: Path) -> None:
    """S5: a number is given once."""
    log, table = filled(tmp_path, 1)
    log.commit(table, added(1))
    with pytest.raises(Conflict, match="another writer made commit 1"):
        CommitLog(tmp_path).commit(table, added(2))
    assert log.table().positions == {"orders": {0: 10}}
    assert not list(tmp_path.rglob("*.tmp"))


def test_a_file_cannot_be_removed_twice(tmp_path: Path) -> None:
    """S5: two compactions of the same files would double their rows."""
    log, table = filled(tmp_path, 1)
    merge = Commit(Operation.COMPACT, 1, removed=("date=2026-11-15/0.parquet",))
    table = log.commit(table, merge)
    with pytest.raises(Conflict, match="another compaction was faster"):
        log.commit(table, merge)


def test_a_snapshot_stands_for_the_commits_before_it(tmp_path: Path) -> None:
    """S5: a lake of many commits is opened by reading few."""
    log, table = filled(tmp_path, SNAPSHOT_EVERY + 3)
    assert log.forget_before_last_snapshot() == SNAPSHOT_EVERY
    assert log.table() == table
    assert len(list((tmp_path / "_braid" / "log").iterdir())) == 4


def test_a_missing_or_damaged_commit_is_told_and_not_passed_over(tmp_path: Path) -> None:
    """S5: silence here would be lost rows."""
    log, _ = filled(tmp_path, 3)
    second = tmp_path / "_braid" / "log" / f"{1:020d}.json"
    content = second.read_bytes()
    second.write_bytes(content[: len(content) // 2])
    with pytest.raises(LakeError, match=r"00001\.json: damaged"):
        log.table()
    second.unlink()
    with pytest.raises(LakeError, match="commit 1 is missing"):
        log.table()
    second.write_bytes(content.replace(b'"format": 1', b'"format": 7'))
    with pytest.raises(LakeError, match="written in format 7, this braid knows 1"):
        log.table()
