"""Where share groups begin, and what they get of transactions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from braidmq.broker.broker import Broker
from braidmq.broker.outcomes import Acks
from braidmq.broker.replica import Replica
from braidmq.config import ConfigError, configure
from braidmq.delivery.status import Verdict
from braidmq.log.transactions import EndMarker, MarkerType
from braidmq.reset import Reset, ResetKind, parse_reset
from braidmq.wire.errors import ApiError, ErrorCode
from braidmq.wire.records import build_batch, parse_header
from unit.broker.test_share_delivery import acquire, base_offsets, fill, judge, opened, ranges, tell
from unit.embedded import TurnedClock

NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
COMMITTED = {"share.isolation.level": "read_committed"}


@pytest.mark.parametrize(
    ("text", "age_ms"),
    [
        ("PT1H", HOUR_MS),
        ("P7D", 168 * HOUR_MS),
        ("P1DT2H3M4.5S", 26 * HOUR_MS + 184_500),
        ("pt30m", HOUR_MS // 2),
        ("PT0.001S", 1),
        ("PT0,25S", 250),
        ("PT1.S", 1000),
        ("PT0S", 0),
    ],
)
def test_a_duration_is_written_as_in_iso_8601(text: str, age_ms: int) -> None:
    """C7: by_duration of KIP-1106."""
    assert parse_reset(f"by_duration:{text}") == Reset(ResetKind.BY_DURATION, age_ms)
    configure({"group.share.auto.offset.reset": f"by_duration:{text}"})


@pytest.mark.parametrize(
    "text",
    ["", "none", "Earliest", "by_duration", "by_duration:", "by_duration:P", "by_duration:PT",
     "by_duration:1h", "by_duration:-PT1H", "by_duration:PT-1H", "by_duration:P1W", "by_duration:P1M",
     "by_duration:PT1H ",     "by_duration:PT" + "9" * 40 + "H", "by_duration:PT1.1234567890S"],
)  # fmt: skip
def test_another_place_to_begin_is_refused(text: str) -> None:
    """C7: with what would be right."""
    with pytest.raises(ConfigError, match="PT12H"):
        configure({"group.share.auto.offset.reset": text})


@pytest.mark.parametrize(
    ("reset", "start"),
    [
        ("earliest", 0),
        ("latest", 9),
        ("by_duration:PT3H", 0),
        ("by_duration:PT2H", 3),
        ("by_duration:PT1H30M", 6),
        ("by_duration:PT0S", 9),
        ("by_duration:P400000000D", 0),
    ],
)
def test_a_share_group_begins_where_it_is_told(tmp_path: Path, reset: str, start: int) -> None:
    """C1 C7: three batches of three records, two hours, one hour and some time ago."""
    clock = TurnedClock(NOW_MS)

    async def story(broker: Broker) -> None:
        for age_ms in (2 * HOUR_MS + 1, 2 * HOUR_MS, HOUR_MS):
            clock.now_ms = NOW_MS - age_ms
            await fill(broker, 3)
        clock.now_ms = NOW_MS
        await broker.reconfigure_group("workers", {"share.auto.offset.reset": reset})
        part = await opened(broker)
        assert part.window.start_offset == start

    tell(tmp_path, story, clock=clock)


# -- transactions ---------------------------------------------------------------------------------


class Writer:
    """A producer with transactions, as its partition sees it."""

    def __init__(self, partition: Replica, producer_id: int) -> None:
        self.partition = partition
        self.producer_id = producer_id
        self._sequence = 0

    def write(self, count: int) -> None:
        rows = [(None, b"job", [], NOW_MS)] * count
        batch = build_batch(
            rows,
            base_sequence=self._sequence,
            producer_id=self.producer_id,
            producer_epoch=0,
            transactional=True,
        )
        self._sequence += count
        guard = self.partition.begin_verification(parse_header(batch))
        self.partition.append_leader(memoryview(batch), NOW_MS, Acks.ALL, guard)

    def end(self, outcome: MarkerType) -> None:
        self.partition.append_marker(EndMarker(self.producer_id, 0, outcome, 0), 0)


def committed_group(story: Callable[[Broker, Replica], Awaitable[None]], data: Path) -> None:
    async def told(broker: Broker) -> None:
        partition = await fill(broker, 1)
        await broker.reconfigure_group("workers", COMMITTED)
        await story(broker, partition)

    tell(data, told, clock=TurnedClock(NOW_MS))


def test_a_group_at_read_committed_waits_for_the_end_of_a_transaction(tmp_path: Path) -> None:
    """C1 T2: and for those behind it; then it gets what was committed, without the markers."""

    async def story(broker: Broker, partition: Replica) -> None:
        part = await opened(broker)
        writer = Writer(partition, 7)
        writer.write(2)  # 1, 2
        await fill(broker, 1)  # 3
        assert ranges(acquire(broker, part)) == [(0, 0, 1)]
        assert ranges(acquire(broker, part)) == []
        writer.end(MarkerType.COMMIT)  # 4
        assert ranges(acquire(broker, part)) == [(1, 3, 1)]
        await fill(broker, 1)
        assert ranges(acquire(broker, part)) == [(5, 5, 1)]

    committed_group(story, tmp_path)


def test_what_was_aborted_is_passed_over_and_never_sent(tmp_path: Path) -> None:
    """C1 T2: also where an aborted and a committed transaction are interleaved; the window moves on."""

    async def story(broker: Broker, partition: Replica) -> None:
        part = await opened(broker)
        good, bad = Writer(partition, 7), Writer(partition, 8)
        for writer in (bad, good, bad, good):
            writer.write(2)  # 1-2 bad, 3-4 good, 5-6 bad, 7-8 good
        bad.end(MarkerType.ABORT)  # 9
        good.end(MarkerType.COMMIT)  # 10
        bad.write(1)  # 11, of its next transaction
        bad.end(MarkerType.COMMIT)  # 12
        delivered = acquire(broker, part)
        assert ranges(delivered) == [(0, 0, 1), (3, 4, 1), (7, 8, 1), (11, 11, 1)]
        assert base_offsets(delivered) == [0, 3, 7, 11]
        for first, last, _ in delivered.acquired:
            await judge(broker, part, first, last, Verdict.ACCEPT)
        assert part.window.start_offset == 13
        assert part.lag == 0

    committed_group(story, tmp_path)


def test_a_partition_full_of_aborted_records_is_passed_in_one_go(tmp_path: Path) -> None:
    """C1 T2: nothing is acquired of them, so they do not fill the window."""

    async def story(broker: Broker, partition: Replica) -> None:
        part = await opened(broker)
        bad = Writer(partition, 8)
        for _ in range(60):
            bad.write(20)
        bad.end(MarkerType.ABORT)
        await fill(broker, 1)
        assert ranges(acquire(broker, part)) == [(0, 0, 1), (1202, 1202, 1)]

    committed_group(story, tmp_path)


def test_other_groups_get_everything_at_once(tmp_path: Path) -> None:
    """C1 T2: read_uncommitted is the default; a group may change its mind, and then loses what is aborted."""

    async def story(broker: Broker, partition: Replica) -> None:
        part = await opened(broker, "hasty")
        writer = Writer(partition, 7)
        writer.write(2)
        assert ranges(acquire(broker, part)) == [(0, 2, 1)]
        await judge(broker, part, 0, 2, Verdict.RELEASE)
        writer.end(MarkerType.ABORT)
        await broker.reconfigure_group("hasty", COMMITTED)
        assert ranges(acquire(broker, part)) == [(0, 0, 2)]
        await broker.reconfigure_group("hasty", {})
        writer.write(1)
        assert ranges(acquire(broker, part)) == [(4, 4, 1)]

    committed_group(story, tmp_path)


def test_the_level_of_a_group_holds_after_a_restart(tmp_path: Path) -> None:
    """C1 T2: it is one of the group's options, which are kept."""

    async def before(broker: Broker) -> None:
        partition = await fill(broker, 1)
        await broker.reconfigure_group("workers", COMMITTED)
        await opened(broker)
        Writer(partition, 7).write(1)

    async def after(broker: Broker) -> None:
        assert ranges(acquire(broker, await opened(broker))) == [(0, 0, 1)]

    tell(tmp_path, before, after, clock=TurnedClock(NOW_MS))


def test_a_group_bounds_its_own_window_and_options_are_checked(tmp_path: Path) -> None:
    """C1: share.partition.max.record.locks; what is not an option, or not a value of it, is refused."""

    async def story(broker: Broker) -> None:
        await fill(broker, 50)
        await broker.reconfigure_group("workers", {"share.partition.max.record.locks": "10"})
        part = await opened(broker)
        assert ranges(acquire(broker, part, exact=True)) == [(0, 9, 1)]
        for bad in ({"share.isolation.level": "dirty"}, {"share.partition.max.record.locks": "1"}):
            with pytest.raises(ApiError) as refused:
                await broker.reconfigure_group("workers", bad)
            assert refused.value.code is ErrorCode.INVALID_CONFIG

    tell(tmp_path, story)
