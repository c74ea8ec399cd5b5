"""Upserted tables: merging, versions, crashes."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

from braidmq.spark.pipelines.mistakes import PipelineError  # noqa: E402
from braidmq.spark.pipelines.upsert_table import (  # noqa: E402
    CHANGED_MS,
    DELETED,
    IS_DELETED,
    Rules,
    UpsertTable,
    Version,
    merge,
    merge_part,
    part_name,
)

RULES = Rules(("id",), ("position",), forget_deletes_ms=1000)
Change = tuple[int, int, str, bool]


def changes(rows: list[Change], now_ms: int = 0) -> pa.Table:
    """Rows of id, position, name, deleted."""
    names = {"id": 0, "position": 1, "name": 2, IS_DELETED: 3}
    kinds = {"id": pa.int64(), "position": pa.int64(), "name": pa.string(), IS_DELETED: pa.bool_()}
    columns = {name: pa.array([row[index] for row in rows], kinds[name]) for name, index in names.items()}
    return pa.table(columns | {CHANGED_MS: pa.array([now_ms] * len(rows), pa.int64())})


def version(number: int, parts: dict[int, int]) -> Version:
    return Version(number, "query", number, {}, ("id",), ("position",), 1, parts)


def test_of_two_changes_the_newer_one_wins_whichever_comes_first() -> None:
    """S4: never out of order."""
    late = merge(changes([(1, 5, "new", False)]), changes([(1, 3, "old", False)]), RULES)
    assert late["name"].to_pylist() == ["new"]
    within = merge(
        changes([]), changes([(1, 5, "new", False), (1, 3, "old", False), (2, 1, "x", False)]), RULES
    )
    assert sorted(within["name"].to_pylist()) == ["new", "x"]


def test_of_equal_changes_the_last_one_wins() -> None:
    """S4: a record that is sent again with more in it."""
    assert merge(changes([(1, 5, "a", False)]), changes([(1, 5, "b", False)]), RULES)["name"].to_pylist() == [
        "b"
    ]


def test_a_late_update_does_not_bring_a_deleted_row_back(tmp_path: Path) -> None:
    """S4: deletions are remembered with their order, then forgotten."""
    first, second, third = (tmp_path / name / DELETED for name in "123")
    for each in (first, second, third):
        each.mkdir(parents=True)
    first, second, third = first.parent, second.parent, third.parent
    assert (
        merge_part(
            None,
            first,
            0,
            changes([(1, 1, "a", False), (1, 9, "", True), (2, 1, "b", False)], 100),
            RULES,
            100,
        )
        == 1
    )
    assert merge_part(first, second, 0, changes([(1, 5, "late", False)], 200), RULES, 200) == 1
    assert pq.read_table(second / part_name(0))["name"].to_pylist() == ["b"]
    assert pq.read_table(second / DELETED / part_name(0))["id"].to_pylist() == [1]
    # After forget_deletes_ms the deletion is forgotten, and takes no room any more.
    assert merge_part(second, third, 0, changes([(2, 2, "c", False)], 5000), RULES, 5000) == 1
    assert not (third / DELETED / part_name(0)).exists()


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 20), st.just(""), st.booleans()), max_size=40),
    st.integers(1, 6),
)
def test_any_split_into_batches_gives_the_same_table(rows: list[Change], batches: int) -> None:
    """S4: order within and between batches does not matter, positions do."""
    named = [(key, position, f"{key}-{position}-{deleted}", deleted) for key, position, _, deleted in rows]
    # Two different changes of one key at the same position have no order; leave one of them.
    unique = list({(row[0], row[1]): row for row in named}.values())
    merged = changes([])
    for index in range(batches):
        merged = merge(merged, changes(unique[index::batches]), RULES)
    expected = {}
    for row in sorted(unique, key=lambda row: row[1]):
        expected[row[0]] = row[2]
    assert dict(zip(merged["id"].to_pylist(), merged["name"].to_pylist(), strict=True)) == expected


def test_columns_that_come_in_later_are_null_in_older_rows() -> None:
    """S4: a schema grows by added columns."""
    more = changes([(2, 1, "b", False)]).append_column("city", pa.array(["Oslo"]))
    merged = merge(changes([(1, 1, "a", False)]), more, RULES)
    assert sorted(zip(merged["id"].to_pylist(), merged["city"].to_pylist(), strict=True)) == [
        (1, None),
        (2, "Oslo"),
    ]


def test_a_version_becomes_current_in_one_step(tmp_path: Path) -> None:
    """S4: what a crash left behind is neither read nor in the way."""
    table = UpsertTable(tmp_path / "t")
    assert table.current() is None
    for number, name in ((1, "a"), (2, "b")):
        directory = table.prepare(number)
        merge_part(None, directory, 0, changes([(1, 1, name, False)]), RULES, 0)
        table.finish(directory, version(number, {0: 1}))
    left = table.prepare(3)
    merge_part(None, left, 0, changes([(1, 1, "torn", False)]), RULES, 0)
    found = table.current()
    assert found is not None
    assert found[1].number == 2
    assert pq.read_table(tmp_path / "t" / "current")["name"].to_pylist() == ["b"]
    again = table.prepare(3)
    assert list(again.glob("*.parquet")) == []
    table.finish(again, version(3, {}))
    assert table.current()[1].number == 3  # type: ignore[index]


def test_a_version_that_another_run_made_current_is_not_removed(tmp_path: Path) -> None:
    """S4: on a file system without locks, say; neither of the two is lost in silence."""
    table = UpsertTable(tmp_path / "t")
    mine, theirs = table.prepare(1), tmp_path / "t" / "versions" / "theirs"
    mine.rename(theirs)
    table.finish(table.prepare(1), version(1, {}))
    theirs.rename(mine)
    with pytest.raises(PipelineError, match="another run made version 1 current"):
        table.finish(mine, version(1, {}))
    assert table.current() is not None


def test_a_bucket_that_did_not_change_is_the_same_file(tmp_path: Path) -> None:
    """S4: a batch costs what it touches."""
    table = UpsertTable(tmp_path / "t")
    first = table.prepare(1)
    merge_part(None, first, 0, changes([(1, 1, "a", False)]), RULES, 0)
    table.finish(first, version(1, {0: 1}))
    found = table.current()
    assert found is not None
    second = table.prepare(2)
    table.keep_part(found[0], second, 0)
    table.finish(second, version(2, {0: 1}))
    newest = table.current()
    assert newest is not None
    assert (newest[0] / part_name(0)).samefile(found[0] / part_name(0))


def test_replaced_versions_stay_for_their_readers_and_then_go(tmp_path: Path) -> None:
    """S4: ten minutes, and never more than a hundred of them."""
    table = UpsertTable(tmp_path / "t")
    for number in (1, 2, 3):
        table.finish(table.prepare(number), version(number, {}))
    now_ms = round((tmp_path / "t" / "versions" / "00000003").stat().st_mtime * 1000)
    table.sweep(now_ms)
    assert len(list((tmp_path / "t" / "versions").iterdir())) == 3
    table.sweep(now_ms + 700_000)
    assert [each.name for each in (tmp_path / "t" / "versions").iterdir()] == ["00000003"]
