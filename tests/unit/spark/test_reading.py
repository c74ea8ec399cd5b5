"""What a task reads: over the network, from the disk, in which splits; no Spark session is needed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    StringContains,
)

from braidmq.client import Admin, Producer
from braidmq.client.cluster import Cluster, TopicPartition
from braidmq.client.connection import Connection
from braidmq.client.errors import ClientError
from braidmq.client.groups import GroupAdmin
from braidmq.spark.options import Isolation, OptionError
from braidmq.spark.source import filters, limits, local_log, positions
from braidmq.spark.source.batch_reader import plan_batch
from braidmq.spark.source.fetch import RangeFetch, StoredBatch, committed, split_batches
from braidmq.spark.source.filters import Pushed, push
from braidmq.spark.source.group_positions import GroupPositions
from braidmq.spark.source.local_log import LocalRange, find_directories
from braidmq.spark.source.query import ReadQuery, parse_query
from braidmq.spark.source.splits import Range, Split, cut, tasks
from braidmq.spark.source.task import read_split
from braidmq.testing import BrokerProcess
from braidmq.wire.compress import Codec
from braidmq.wire.errors import ApiError, ErrorCode
from braidmq.wire.messages.cluster import DescribeLogDirsResponse
from braidmq.wire.messages.fetch import AbortedTransaction
from braidmq.wire.records import build_batch, parse_header

NewTopic = Callable[..., str]
COLUMNS = ("value", "offset")


def query_for(bootstrap: str, topic: str, **options: str) -> ReadQuery:
    given = {"bootstrap.servers": bootstrap, "subscribe": topic, "localLog": "never"} | options
    return parse_query(given, streaming=False)


def send(bootstrap: str, topic: str, count: int, codec: Codec = Codec.NONE, batch_bytes: int = 2000) -> None:
    with Producer(bootstrap, codec=codec, batch_bytes=batch_bytes) as producer:
        for number in range(count):
            producer.send(topic, b"%d" % number, partition=0, timestamp_ms=1000 + number)


def values(query: ReadQuery, pushed: Pushed = Pushed()) -> list[int]:  # noqa: B008
    found = []
    for split in plan_batch(query, pushed):
        for batch in read_split(query, (*COLUMNS, "timestamp"), split):
            for kept in pushed.keep(batch):
                found += [int(value.as_py()) for value in kept.column("value")]
    return found


@pytest.mark.parametrize("codec", list(Codec))
def test_network_and_disk_give_the_same(bootstrap: str, new_topic: NewTopic, codec: Codec) -> None:
    """S1: every codec, many batches, both ways."""
    topic = new_topic()
    send(bootstrap, topic, 3000, codec)

    network = values(query_for(bootstrap, topic))
    disk = values(query_for(bootstrap, topic, localLog="always"))

    assert network == disk == list(range(3000))


def test_several_segments_are_read_in_one_go(bootstrap: str, new_topic: NewTopic) -> None:
    """S1: the next segment is looked up when one ends, and a range may begin in the middle of one."""
    topic = new_topic(**{"segment.bytes": "16384"})
    send(bootstrap, topic, 4000)
    query = query_for(
        bootstrap,
        topic,
        localLog="always",
        startingOffsets=f'{{"{topic}":{{"0":1234}}}}',
        endingOffsets=f'{{"{topic}":{{"0":3987}}}}',
        maxRecordsPerPartition="700",
    )

    splits = plan_batch(query, Pushed())

    assert len(list(Path(splits[0].directory or "").glob("*.log"))) == 3
    assert [split.end - split.start for split in splits] == [688, 688, 688, 689]
    assert values(query) == list(range(1234, 3987))


def test_the_broker_is_asked_where_the_disk_has_no_answer(
    bootstrap: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    """S1: an empty directory, a foreign file, a damaged batch: what is missing comes over the network."""
    topic = new_topic()
    send(bootstrap, topic, 500)
    query = query_for(bootstrap, topic, localLog="always")
    (split,) = plan_batch(query, Pushed())
    stored = next(Path(split.directory or "").glob("*.log")).read_bytes()
    damaged = bytearray(stored)
    damaged[len(damaged) // 2] ^= 1
    for content in (None, b"", b"not a segment at all" * 10, bytes(damaged), stored[: len(stored) // 2]):
        if content is not None:
            (tmp_path / f"{0:020d}.log").write_bytes(content)
        moved = type(split)(**{**split.__dict__, "directory": str(tmp_path)})

        found = [
            int(each.as_py()) for batch in read_split(query, COLUMNS, moved) for each in batch.column("value")
        ]

        assert found == list(range(500))


def test_a_file_that_is_unlinked_while_it_is_read_stays_readable(
    bootstrap: str, new_topic: NewTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S1: retention may take a segment from under a reader."""
    monkeypatch.setattr(local_log, "CHECKED_BYTES", 1)
    topic = new_topic()
    send(bootstrap, topic, 500)
    (split,) = plan_batch(query_for(bootstrap, topic, localLog="always"), Pushed())
    place = tmp_path / f"{0:020d}.log"
    place.write_bytes(next(Path(split.directory or "").glob("*.log")).read_bytes())

    local = LocalRange(str(tmp_path), 0, 500, Isolation.READ_UNCOMMITTED)
    batches = local.batches()
    first = next(batches)
    place.unlink()
    rest = list(batches)

    assert parse_header(first).base_offset == 0
    assert split_batches(rest[-1])[-1].header.next_offset == 500


def test_a_directory_of_another_topic_is_not_taken(
    bootstrap: str, new_topic: NewTopic, shared_broker: BrokerProcess
) -> None:
    """S1: the topic's id must match, not only its name."""
    topic = new_topic()
    send(bootstrap, topic, 1)
    with positions.connect(query_for(bootstrap, topic)) as cluster:
        topology = positions.topology(cluster, query_for(bootstrap, topic))
        real = find_directories(cluster, topology.topic_ids, topology.partitions)
        other = find_directories(cluster, {topic: bytes(16)}, topology.partitions)

    assert list(real.values()) == [str(next((shared_broker.data / "topics").glob(f"{topic}.*")) / "0")]
    assert other == {}


def test_large_answers_are_fetched_in_turn(bootstrap: str, new_topic: NewTopic) -> None:
    """S1: with a small fetch size one range takes many answers, none lost or doubled between them."""
    topic = new_topic()
    send(bootstrap, topic, 3000)
    with positions.connect(query_for(bootstrap, topic)) as cluster:
        at = TopicPartition(topic, 0)
        fetch = RangeFetch(cluster, at, 17, 2900, Isolation.READ_UNCOMMITTED, fetch_bytes=3000)
        offsets = [
            (batch.header.base_offset, batch.header.next_offset)
            for some in fetch.batches()
            for batch in split_batches(some)
        ]

    assert offsets[0][0] <= 17
    assert offsets[-1][1] >= 2900
    assert all(left[1] == right[0] for left, right in pairwise(offsets))


def test_aborted_records_and_markers_are_not_seen() -> None:
    """S1: read_committed, with transactions of two producers interleaved."""

    def batch(
        offset: int, producer_id: int, transactional: bool = True, control: bytes | None = None
    ) -> StoredBatch:
        rows = [(control, b"", [], 0)] if control is not None else [(None, b"%d" % offset, [], 0)]
        built = build_batch(
            rows,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=0,
            transactional=transactional,
            control=control is not None,
            base_offset=offset,
        )
        return StoredBatch(parse_header(built), memoryview(bytes(built)))

    abort, commit = b"\0\0\0\0", b"\0\0\0\1"
    stored = [
        batch(0, 1), batch(1, 2), batch(2, 1), batch(3, 9, transactional=False), batch(4, 1, control=abort),
        batch(5, 2, control=commit), batch(6, 1), batch(7, 1, control=commit), batch(8, 2),
        batch(9, 2, control=abort),
    ]  # fmt: skip
    aborted = [
        AbortedTransaction(producer_id=2, first_offset=8),
        AbortedTransaction(producer_id=1, first_offset=0),
    ]

    assert [each.header.base_offset for each in committed(stored, aborted)] == [1, 3, 6]


def test_cuts_are_even_and_complete() -> None:
    """S1: at least as many tasks as asked for, none of them empty, every offset in exactly one."""
    large, small = Range(TopicPartition("a", 0), 100, 1100), Range(TopicPartition("a", 1), 0, 3)

    assert cut([large, small]) == [large, small]
    pieces = cut([large, small], partitions_min=8)
    assert len(pieces) >= 8
    assert sum(piece.size for piece in pieces) == 1003
    assert min(piece.size for piece in pieces) > 0
    assert [piece.size for piece in cut([large], records_max=300)] == [250, 250, 250, 250]
    assert len(cut([small], partitions_min=50)) == 3


def test_small_splits_share_a_task() -> None:
    """S2: a micro-batch of few records over many partitions is one task; a large split is one by itself."""
    splits = [Split("a", number, 0, size) for number, size in enumerate([400, 300, 9000, 400, 50_000, 1])]

    def sizes(alone: bool) -> list[list[int]]:
        return [[split.end for split in task.splits] for task in tasks(splits, alone)]

    assert sizes(alone=False) == [[400, 300, 9000], [400], [50_000], [1]]
    assert sizes(alone=True) == [[400], [300], [9000], [400], [50_000], [1]]


def test_pushed_filters_narrow_what_is_read(bootstrap: str, new_topic: NewTopic) -> None:
    """S1: topic, partition, offset and the earliest time; and exactly the rows that Spark would keep."""
    topic = new_topic(partitions=2)
    send(bootstrap, topic, 1000)
    query = query_for(bootstrap, topic)
    at_ms = datetime.fromtimestamp(1.9, UTC)

    def plan(*conditions: filters.Filter) -> tuple[list[tuple[int, int]], list[int]]:
        pushed, left = push(conditions)
        assert left == []
        splits = plan_batch(query, pushed)
        return [(split.start, split.end) for split in splits], values(query, pushed)

    assert plan(EqualTo(("partition",), 1)) == ([], [])
    assert plan(In(("topic",), ("other", "another"))) == ([], [])
    assert plan(EqualTo(("offset",), 7)) == ([(7, 8)], [7])
    assert plan(GreaterThan(("offset",), 10), LessThanOrEqual(("offset",), 12)) == ([(11, 13)], [11, 12])
    assert plan(In(("offset",), (5, 9))) == ([(5, 10)], [5, 9])
    ranges, found = plan(GreaterThanOrEqual(("timestamp",), at_ms), IsNotNull(("timestamp",)))
    assert (ranges, found) == ([(900, 1000)], list(range(900, 1000)))
    ranges, found = plan(LessThan(("timestamp",), at_ms), EqualTo(("topic",), topic))
    assert (ranges, found) == ([(0, 1000)], list(range(900)))


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (In(("offset",), (3, None, 5)), [3, 5]),
        (In(("offset",), (None,)), []),
        (GreaterThanOrEqual(("timestamp",), datetime(1969, 12, 31, 23, tzinfo=UTC)), list(range(10))),
        (GreaterThan(("timestamp",), datetime.fromtimestamp(-0.001, UTC)), list(range(10))),
        (LessThan(("timestamp",), datetime(1960, 1, 1, tzinfo=UTC)), []),
    ],
)
def test_nulls_and_times_before_1970_in_filters_are_no_trouble(
    bootstrap: str, new_topic: NewTopic, given: Filter, kept: list[int]
) -> None:
    """S1: a broker takes a negative time for the end of the partition, or refuses it."""
    topic = new_topic()
    send(bootstrap, topic, 10)
    pushed, left = push([given])

    assert left == []
    assert values(query_for(bootstrap, topic), pushed) == kept


def test_a_leader_that_is_not_known_for_a_moment_is_waited_for(bootstrap: str, new_topic: NewTopic) -> None:
    """S1: in the midst of a range, whether the next batches were asked for ahead or are waited for."""
    topic = new_topic()
    send(bootstrap, topic, 3000)

    class Unsettled(Cluster):
        parse_read = 0

        def leader(self, at: TopicPartition) -> Connection:
            self.parse_read += 1
            if self.parse_read % 3:
                raise ApiError(ErrorCode.LEADER_NOT_AVAILABLE, f"{at} has no leader")
            return super().leader(at)

    with Unsettled(bootstrap, creates_topics=False) as cluster:
        fetch = RangeFetch(cluster, TopicPartition(topic, 0), 0, 3000, Isolation.READ_UNCOMMITTED, 4096)
        found = sum(each.header.record_count for view in fetch.batches() for each in split_batches(view))

    assert found == 3000
    assert cluster.parse_read > 6


def test_a_limit_in_bytes_needs_sizes(
    bootstrap: str, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S2: a broker that does not tell them, as Kafka to those without permission, has no disk of 0 B."""
    refusal = DescribeLogDirsResponse(error_code=int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED), results=[])
    monkeypatch.setattr(limits, "describe", lambda *_: refusal)
    at = TopicPartition(new_topic(), 0)
    query = query_for(bootstrap, at.topic)

    with (
        positions.connect(query) as cluster,
        pytest.raises(ClientError, match=r"does not return that of .* \(cluster authorization failed\)"),
    ):
        limits.record_bytes(cluster, query, [at])


def test_filters_that_are_not_understood_are_left_to_spark() -> None:
    """S1: on other columns, of other kinds, and comparisons with null."""
    others = [StringContains(("topic",), "x"), EqualTo(("value",), b"x"), EqualTo(("offset",), None)]

    assert push(others) == (Pushed(), others)


def test_offsets_must_name_every_partition(bootstrap: str, new_topic: NewTopic) -> None:
    """S1: as in Spark's Kafka source, and partitions that are not read are a mistake."""
    topic = new_topic(partitions=2)

    for option in ("startingOffsets", "startingOffsetsByTimestamp", "endingOffsetsByTimestamp"):
        wrong = f"option {option} must have every partition, and {topic}-1 is missing"
        with pytest.raises(OptionError, match=wrong):
            plan_batch(query_for(bootstrap, topic, **{option: f'{{"{topic}":{{"0":0}}}}'}), Pushed())
    beyond = f'{{"{topic}":{{"0":7,"1":-1}}}}'
    with pytest.raises(OptionError, match=f"endingOffsets is 7 for {topic}-0, which ends at 0"):
        plan_batch(query_for(bootstrap, topic, endingOffsets=beyond), Pushed())
    starting = f'{{"{topic}":{{"0":0,"1":0,"2":0}}}}'
    with pytest.raises(OptionError, match="which the query does not read"):
        plan_batch(query_for(bootstrap, topic, startingOffsets=starting), Pushed())


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"startingOffsets": 11}, "startingOffsets is 11 for TOPIC-0, which ends at 10"),
        (
            {"startingOffsets": 5, "endingOffsets": 3},
            "TOPIC-0: the starting offset 5 is after",
        ),
        ({"endingOffsets": 1}, "TOPIC-0: the ending offset 1 is before the first offset 2"),
        (
            {"startingOffsetsByTimestamp": 1009, "endingOffsetsByTimestamp": 1005},
            "TOPIC-0: the starting offset 9 is after the ending offset 5",
        ),
    ],
)
def test_a_batch_that_begins_after_its_end_is_refused(
    bootstrap: str, new_topic: NewTopic, options: dict[str, int], complaint: str
) -> None:
    """S1: as in Spark's Kafka source; nothing is what nobody asks for."""
    topic = new_topic(partitions=1)
    send(bootstrap, topic, 10)
    with Admin(bootstrap) as admin:
        admin.delete_records({TopicPartition(topic, 0): 2})
    parse_read = {name: f'{{"{topic}":{{"0":{number}}}}}' for name, number in options.items()}
    with pytest.raises(OptionError, match=complaint.replace("TOPIC", topic)):
        plan_batch(query_for(bootstrap, topic, **parse_read), Pushed())
    for nothing in (
        {"startingOffsets": f'{{"{topic}":{{"0":10}}}}'},
        {"startingTimestamp": "5000", "startingOffsetsByTimestampStrategy": "latest"},
    ):
        assert values(query_for(bootstrap, topic, **nothing)) == []


def test_a_pattern_is_looked_for_anywhere_in_a_name(bootstrap: str, new_topic: NewTopic) -> None:
    """S1: as in Spark's Kafka source; who means the whole name says so."""
    topic = new_topic(partitions=1)
    send(bootstrap, topic, 3)
    part = topic[1:]
    for pattern, found in ((part, True), (f"^{part}$", False), (rf"^\p{{Lower}}{part}$", True)):
        options = {"bootstrap.servers": bootstrap, "subscribePattern": pattern}
        splits = plan_batch(parse_query(options, streaming=False), Pushed())
        assert (topic in {split.topic for split in splits}) is found


def test_positions_are_sent_again_when_a_coordinator_was_not_ready(
    bootstrap: str, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S2: the last positions of a query arrive, whatever was answered before."""
    topic = new_topic()
    at = TopicPartition(topic, 0)
    group = GroupPositions(query_for(bootstrap, topic, groupId=f"{topic}-group"))
    collect, refusals = group._collect, [ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]

    def refused() -> None:
        collect()
        if refusals and group._published:
            group._published.clear()
            code = refusals.pop()
            raise ApiError(code, code.name)

    monkeypatch.setattr(group, "_collect", refused)
    group.publish({at: 3})
    group.publish({at: 5})
    group.close()

    with GroupAdmin(bootstrap) as groups:
        assert groups.committed(f"{topic}-group") == {at: 5}
    assert refusals == []
