"""Where groups go on after a reshard: nothing unread is passed over, as little as possible is read again."""

from __future__ import annotations

import random

from pyspark.sql import DataFrame, SparkSession

from braidmq.spark.rescue.translate import Translation, translate

COLUMNS = "partition int, offset long, from_topic string, from_partition long, from_offset long"
Copy = tuple[int, int, str | None, int | None, int | None]


def frame(spark: SparkSession, copies: list[Copy]) -> DataFrame:
    return spark.createDataFrame(copies, COLUMNS)


def test_a_group_goes_on_at_the_first_record_it_has_not_read(spark: SparkSession) -> None:
    """S6: one old partition in two new ones, a new one with two old ones, and one that is done."""
    copies: list[Copy] = [
        (0, 0, "old", 0, 0),
        (0, 1, "old", 1, 0),
        (0, 2, "old", 0, 2),
        (1, 0, "old", 0, 1),
        (1, 1, "old", 1, 1),
        (2, 0, "old", 0, 3),
    ]
    ends = {0: 3, 1: 2, 2: 1, 3: 0}
    groups = {"fast": {0: 4, 1: 2}, "slow": {0: 2, 1: 1}, "half": {0: 3}}
    found = {each.group: each for each in translate(frame(spark, copies), "old", groups, ends)}
    assert found["fast"] == Translation("fast", {0: 3, 1: 2, 2: 1, 3: 0}, unread=0, again=0)
    assert found["slow"] == Translation("slow", {0: 2, 1: 1, 2: 0, 3: 0}, unread=3, again=0)
    # Of partition 1 it has committed nothing, so nothing there is read; 0/2 is read, and will be again.
    assert found["half"] == Translation("half", {0: 1, 1: 1, 2: 0, 3: 0}, unread=3, again=1)


def test_what_was_sent_to_the_new_topic_directly_is_unread(spark: SparkSession) -> None:
    """S6: a producer that moved over early loses nothing either."""
    copies: list[Copy] = [(0, 0, "old", 0, 0), (0, 1, None, None, None), (0, 2, "other", 0, 0)]
    (found,) = translate(frame(spark, copies), "old", {"g": {0: 9}}, {0: 3})
    assert (found.positions, found.unread, found.again) == ({0: 1}, 2, 0)
    assert translate(frame(spark, copies), "old", {}, {0: 3}) == []


def test_no_group_loses_a_record_whatever_it_had_read(spark: SparkSession) -> None:
    """S6: random copies and commits against the rule in plain Python."""
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    left = dict.fromkeys(range(4), 0)
    copies: list[Copy] = []
    ends = dict.fromkeys(range(6), 0)
    for _ in range(300):
        old, new = chance.randrange(4), chance.randrange(6)
        copies.append((new, ends[new], "old", old, left[old]))
        left[old] += 1
        # Markers of transactions take offsets too.
        ends[new] += 1 + (chance.random() < 0.2)
    groups = {
        f"g{number}": {old: chance.randrange(end + 1) for old, end in left.items() if chance.random() < 0.9}
        for number in range(4)
    }
    groups = {name: committed for name, committed in groups.items() if committed}
    for each in translate(frame(spark, copies), "old", groups, ends):
        committed = groups[each.group]
        unread = [copy for copy in copies if copy[4] >= committed.get(copy[3], 0)]  # type: ignore[arg-type, operator]
        expected = {
            new: min((copy[1] for copy in unread if copy[0] == new), default=end) for new, end in ends.items()
        }
        again = [copy for copy in copies if copy not in unread and copy[1] >= expected[copy[0]]]
        assert (each.positions, each.unread, each.again) == (expected, len(unread), len(again)), (
            f"seed {seed}"
        )
