"""The log of commits under a lake: whole or absent, one writer per number, the sum kept in snapshots."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braidmq.spark.lake import commits
from braidmq.spark.lake.commits import (
    SNAPSHOT_EVERY,
    Commit,
    CommitConflict,
    CommitLog,
    LakeError,
    LakeOperation,
    ParquetFile,
    Snapshot,
)

LONG_AFTER_MS = 2**50
"""Every commit is older than this."""


def added(number: int) -> Commit:
    file = ParquetFile(f"date=2026-11-15/{number}.parquet", 10, 1000, 5, 6)
    return Commit(
        LakeOperation.ARCHIVE,
        number,
        added=(file,),
        positions={"orders": {0: number * 10}},
        topic_ids={"orders": "0a" * 16},
    )


def filled(folder: Path, commits: int) -> tuple[CommitLog, Snapshot]:
    log = CommitLog(folder)
    snapshot = log.snapshot()
    for number in range(commits):
        snapshot = log.commit(snapshot, added(number))
    return log, snapshot


def test_commits_add_up_to_a_table(tmp_path: Path) -> None:
    """S5: files, and the offsets up to which they go."""
    log, snapshot = filled(tmp_path, 3)
    snapshot = log.commit(snapshot, Commit(LakeOperation.COMPACT, 99, removed=("date=2026-11-15/0.parquet",)))
    assert CommitLog(tmp_path).snapshot() == snapshot
    assert (snapshot.version, snapshot.rows, snapshot.positions) == (3, 20, {"orders": {0: 20}})
    assert snapshot.removed == {"date=2026-11-15/0.parquet": 99}
    assert snapshot.topic_ids == {"orders": "0a" * 16}


def test_of_two_writers_one_wins_and_the_other_is_told(tmp_path: Path) -> None:
    """S5: a number is given once."""
    log, snapshot = filled(tmp_path, 1)
    log.commit(snapshot, added(1))
    with pytest.raises(CommitConflict, match="another writer made commit 1"):
        CommitLog(tmp_path).commit(snapshot, added(2))
    assert log.snapshot().positions == {"orders": {0: 10}}
    assert not list(tmp_path.rglob("*.tmp"))


def test_a_file_cannot_be_removed_twice(tmp_path: Path) -> None:
    """S5: two compactions of the same files would double their rows."""
    log, snapshot = filled(tmp_path, 1)
    merge = Commit(LakeOperation.COMPACT, 1, removed=("date=2026-11-15/0.parquet",))
    snapshot = log.commit(snapshot, merge)
    with pytest.raises(CommitConflict, match="another compaction replaced it"):
        log.commit(snapshot, merge)


def test_a_snapshot_stands_for_the_commits_before_it(tmp_path: Path) -> None:
    """S5: a lake of many commits is opened by reading few."""
    log, snapshot = filled(tmp_path, SNAPSHOT_EVERY + 3)
    assert log.forget_before_last_snapshot(LONG_AFTER_MS) == SNAPSHOT_EVERY
    assert log.snapshot() == snapshot
    assert len(list((tmp_path / "_braid" / "log").iterdir())) == 4


def test_commits_are_kept_for_as_long_as_they_are_young(tmp_path: Path) -> None:
    """S5: a snapshot sums them up at once, and who was slow or wants to know finds them for days."""
    log, snapshot = filled(tmp_path, SNAPSHOT_EVERY + 3)
    folder = tmp_path / "_braid" / "log"
    for number in range(SNAPSHOT_EVERY + 3):
        os.utime(folder / f"{number:020d}.json", (number, number))
    assert log.forget_before_last_snapshot(10_000) == 10
    assert log.snapshot() == snapshot
    assert min(path.name for path in folder.iterdir()) == f"{10:020d}.json"


def test_a_number_that_a_snapshot_passed_is_refused(tmp_path: Path) -> None:
    """S5: its file is gone, so a link to it would succeed, and readers would never see the rows."""
    slow = CommitLog(tmp_path)
    seen = slow.snapshot()
    log, snapshot = filled(tmp_path, SNAPSHOT_EVERY + 3)
    log.forget_before_last_snapshot(LONG_AFTER_MS)
    with pytest.raises(CommitConflict, match="another writer made commit 0; nothing was changed"):
        slow.commit(seen, added(999))
    assert log.snapshot() == snapshot


def test_a_number_that_is_forgotten_while_it_is_taken_is_no_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S5: a writer that stood still between its look at the snapshots and its link is told so."""
    slow, link = CommitLog(tmp_path), os.link
    seen = slow.snapshot()

    def late(source: Any, target: Any) -> None:
        monkeypatch.setattr(os, "link", link)
        filled(tmp_path, SNAPSHOT_EVERY + 3)[0].forget_before_last_snapshot(LONG_AFTER_MS)
        link(source, target)

    monkeypatch.setattr(os, "link", late)
    with pytest.raises(LakeError, match="another made commit 0 and removed it; nothing was changed"):
        slow.commit(seen, added(999))
    assert "date=2026-11-15/999.parquet" not in slow.snapshot().files


def test_a_commit_that_others_sum_up_at_once_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S5: a snapshot past our number is no trouble if it counts our commit."""
    log, link = CommitLog(tmp_path), os.link
    seen = log.snapshot()

    def slow(source: Any, target: Any) -> None:
        monkeypatch.setattr(os, "link", link)
        link(source, target)
        filled(tmp_path, SNAPSHOT_EVERY + 3)

    monkeypatch.setattr(os, "link", slow)
    assert log.commit(seen, added(999)).version == 0
    assert "date=2026-11-15/999.parquet" in log.snapshot().files


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_what_was_committed_is_in_the_table_whoever_was_slow(data: st.DataObject) -> None:
    """S5: writers that look, commit and forget in any order; every commit that succeeds stays visible."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(commits, "SNAPSHOT_EVERY", 3)
        logs = [CommitLog(Path(folder)) for _ in range(3)]
        seen = [log.snapshot() for log in logs]
        done: set[str] = set()
        for number in range(data.draw(st.integers(1, 25))):
            log, act = data.draw(st.tuples(st.integers(0, 2), st.sampled_from(["look", "commit", "forget"])))
            if act == "look":
                seen[log] = logs[log].snapshot()
            elif act == "forget":
                logs[log].forget_before_last_snapshot(LONG_AFTER_MS)
            else:
                try:
                    seen[log] = logs[log].commit(seen[log], added(number))
                except CommitConflict:
                    continue
                done.add(added(number).added[0].path)
        assert set(logs[0].snapshot().files) == done


def test_a_missing_or_damaged_commit_is_told_and_not_passed_over(tmp_path: Path) -> None:
    """S5: silence here would be lost rows."""
    log, _ = filled(tmp_path, 3)
    second = tmp_path / "_braid" / "log" / f"{1:020d}.json"
    content = second.read_bytes()
    second.write_bytes(content[: len(content) // 2])
    with pytest.raises(LakeError, match=r"00001\.json: damaged"):
        log.snapshot()
    second.unlink()
    with pytest.raises(LakeError, match="commit 1 is missing"):
        log.snapshot()
    second.write_bytes(content.replace(b'"format": 1', b'"format": 7'))
    with pytest.raises(LakeError, match="has format 7, this version of braid knows 1"):
        log.snapshot()
