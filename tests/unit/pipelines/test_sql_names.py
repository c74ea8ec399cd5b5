"""Tables in SQL, found without a parser."""

from __future__ import annotations

import pytest

from braidmq.spark.pipelines.sql_names import is_stateful, normal, tables


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT * FROM orders", ("orders",)),
        ("select * from orders o join customers c on o.id = c.id", ("orders", "customers")),
        ("SELECT * FROM a, b WHERE a.x = b.x", ("a", "b")),
        ("SELECT * FROM a LEFT JOIN b USING (id) CROSS JOIN c", ("a", "b", "c")),
        ("WITH x AS (SELECT * FROM a), y AS (SELECT 1) SELECT * FROM x, y, b", ("a", "b")),
        ("WITH a AS (SELECT * FROM a WHERE (x > 1)), b AS (SELECT * FROM a) SELECT * FROM a, b", ("a",)),
        ("WITH RECURSIVE a AS (SELECT 1 UNION ALL SELECT * FROM a) SELECT * FROM a, b", ("b",)),
        ("SELECT (SELECT max(v) FROM inner_one) FROM outer_one", ("inner_one", "outer_one")),
        ("SELECT extract(HOUR FROM at), trim(BOTH 'x' FROM name) FROM a", ("a",)),
        ("SELECT 'FROM nothing', -- FROM comment\n /* FROM block */ x FROM a", ("a",)),
        ("SELECT * FROM a WHERE id IN (SELECT id FROM b)", ("a", "b")),
        ("SELECT * FROM a UNION ALL SELECT * FROM b", ("a", "b")),
        ("SELECT * FROM range(10)", ()),
        ("SELECT * FROM `odd name` JOIN db.tab", ("odd name", "db.tab")),
        ("SELECT a.x IS DISTINCT FROM b.x FROM c", ("b.x", "c")),
        ("SELECT x FROM a GROUP BY x, y ORDER BY x, z", ("a",)),
    ],
)
def test_the_tables_of_a_query_are_found_in_order(sql: str, expected: tuple[str, ...]) -> None:
    """S4: what the graph is drawn from."""
    assert tables(sql) == expected


def test_queries_with_state_are_told_from_those_without() -> None:
    """S4: what a checkpoint depends on."""
    assert is_stateful("SELECT x, count(*) FROM a GROUP BY x", 1)
    assert is_stateful("SELECT DISTINCT x FROM a", 1)
    assert is_stateful("SELECT * FROM a JOIN b USING (id)", 2)
    assert not is_stateful("SELECT * FROM a JOIN b USING (id)", 1)
    assert not is_stateful("SELECT 'group by' FROM a", 1)


def test_spacing_case_and_comments_do_not_make_another_query() -> None:
    """S4: texts in quotes do."""
    assert normal("SELECT  x -- why\nFROM a;") == normal("select x\n from A")
    assert normal("SELECT 'A'") != normal("SELECT 'a'")
