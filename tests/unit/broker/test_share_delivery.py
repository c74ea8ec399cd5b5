"""Delivery to share groups: windows over real logs, and what a restart finds of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from braidmq.broker.broker import Broker
from braidmq.broker.outcomes import Isolation, ReadResult
from braidmq.broker.replica import Replica
from braidmq.broker.share_partition import AnswerLimits, Delivered, SharePartition
from braidmq.broker.share_records import (
    DELTAS_MAX,
    STATE_TOPIC,
    SharePartitionKey,
    StoredWindows,
    delta_key,
    snapshot_key,
    tombstones,
)
from braidmq.delivery.status import Acknowledgement, Verdict
from braidmq.group.consumer_member import Heartbeat
from braidmq.log.files import FileSlice
from braidmq.log.log import Log
from braidmq.wire.errors import ApiError, ErrorCode
from braidmq.wire.records import parse_header
from unit.embedded import TurnedClock, append, embedded, readable

Story = Callable[[Broker], Awaitable[None]]
ALL = 1_000_000
OPTIONS = {"group_share_auto_offset_reset": "earliest", "group_share_partition_max_record_locks": 100}


def tell(data: Path, *stories: Story, clock: TurnedClock | None = None, **options: object) -> None:
    """Runs each story on the same data, with a restart between them."""

    async def told() -> None:
        for story in stories:
            async with embedded(data, clock=clock, **{**OPTIONS, **options}) as broker:
                await story(broker)

    asyncio.run(told())


async def fill(broker: Broker, *batches: int) -> Replica:
    """A topic with batches of so many records each, all of them readable."""
    topic = broker.topics.find("jobs") or await broker.topics.create("jobs", 1, {"flush": "async"})
    for count in batches:
        append(topic.held[0], b"job", broker.clock.wall_ms(), count)
    return topic.held[0]


async def opened(broker: Broker, group: str = "workers") -> SharePartition:
    key = SharePartitionKey(group, broker.topics.get("jobs").id, 0)
    await broker.share_delivery.open([key])
    found = broker.share_delivery.find(key)
    assert found is not None
    await readable(found.partition)
    return found


def acquire(
    broker: Broker, part: SharePartition, member: str = "ada", records_max: int = ALL, exact: bool = False
) -> Delivered:
    return broker.share_delivery.acquire(part, member, AnswerLimits(records_max, ALL, exact))


def ranges(delivered: Delivered) -> list[tuple[int, int, int]]:
    return [tuple(one) for one in delivered.acquired]  # type: ignore[misc]


def base_offsets(delivered: Delivered) -> list[int]:
    view, found = memoryview(b"".join(one.read() for one in delivered.records)), []
    while view:
        header = parse_header(view)
        found.append(header.base_offset)
        view = view[header.size :]
    return found


async def judge(
    broker: Broker, part: SharePartition, first: int, last: int, verdict: Verdict, member: str = "ada"
) -> None:
    broker.share_delivery.acknowledge(part, member, [Acknowledgement(first, last, (verdict,))])
    await broker.share_delivery.save([part])


def test_a_record_is_handed_to_one_member_only_and_limits_round_up_to_a_batch(tmp_path: Path) -> None:
    """C1: whole batches, up to the high watermark."""

    async def story(broker: Broker) -> None:
        await fill(broker, 10, 10, 10)
        part = await opened(broker)
        first = acquire(broker, part, "ada", 5)
        assert (ranges(first), base_offsets(first)) == ([(0, 9, 1)], [0])
        second = acquire(broker, part, "bob", 11)
        assert (ranges(second), base_offsets(second)) == ([(10, 29, 1)], [10, 20])
        assert ranges(acquire(broker, part, "cid")) == []

    tell(tmp_path, story)


def test_an_exact_limit_cuts_a_batch_and_the_rest_goes_to_another(tmp_path: Path) -> None:
    """C1: both get the batch, each its own offsets of it."""

    async def story(broker: Broker) -> None:
        await fill(broker, 10)
        part = await opened(broker)
        first, second = acquire(broker, part, "ada", 4, exact=True), acquire(broker, part, "bob")
        assert (ranges(first), base_offsets(first)) == ([(0, 3, 1)], [0])
        assert (ranges(second), base_offsets(second)) == ([(4, 9, 1)], [0])

    tell(tmp_path, story)


def test_what_came_back_is_sent_without_what_others_hold_in_between(tmp_path: Path) -> None:
    """C1: one record of the first batch and the newest batch, and no bytes of the batches between them."""

    async def story(broker: Broker) -> None:
        await fill(broker, 5, 5, 5, 5)
        part = await opened(broker)
        acquire(broker, part, "ada", 15)
        await judge(broker, part, 2, 2, Verdict.RELEASE)
        again = acquire(broker, part, "bob")
        assert ranges(again) == [(2, 2, 2), (15, 19, 1)]
        assert base_offsets(again) == [0, 15]

    tell(tmp_path, story)


def test_a_restart_neither_loses_nor_delivers_again_what_was_acknowledged(tmp_path: Path) -> None:
    """C1 L6: what was released, or held by somebody, comes again; its deliveries count."""

    async def before(broker: Broker) -> None:
        await fill(broker, 10, 10)
        part = await opened(broker)
        acquire(broker, part)
        await judge(broker, part, 0, 3, Verdict.ACCEPT)
        await judge(broker, part, 5, 5, Verdict.REJECT)
        await judge(broker, part, 8, 8, Verdict.RELEASE)

    async def after(broker: Broker) -> None:
        assert [group.group_id for group in broker.groups.all_groups()] == ["workers"]
        part = await opened(broker)
        assert part.window.start_offset == 4
        assert part.lag == 15
        assert ranges(acquire(broker, part)) == [(4, 4, 2), (6, 19, 2)]

    tell(tmp_path, before, after)


def test_the_place_of_a_group_is_kept_before_it_reads_anything(tmp_path: Path) -> None:
    """C6: a group that begins at the end finds what came after that, over a restart."""

    async def before(broker: Broker) -> None:
        await fill(broker, 10)
        await opened(broker)
        await fill(broker, 3)

    async def after(broker: Broker) -> None:
        assert ranges(acquire(broker, await opened(broker))) == [(10, 12, 1)]

    tell(tmp_path, before, after, group_share_auto_offset_reset="latest")


def test_many_changes_are_found_again_over_snapshots_and_deltas(tmp_path: Path) -> None:
    """C1 L9: every second record is accepted, one by one, in more writes than there are slots."""
    count = 3 * DELTAS_MAX

    async def before(broker: Broker) -> None:
        await fill(broker, count)
        part = await opened(broker)
        acquire(broker, part)
        for offset in range(1, count, 2):
            broker.share_delivery.acknowledge(
                part, "ada", [Acknowledgement(offset, offset, (Verdict.ACCEPT,))]
            )
            broker.share_delivery.append([part])
        await broker.share_delivery.save([part])

    async def after(broker: Broker) -> None:
        assert broker.topics.get(STATE_TOPIC).config.compacts
        part = await opened(broker)
        handed = acquire(broker, part).acquired
        left = [offset for one in handed for offset in range(one.first, one.last + 1)]
        assert left == list(range(0, count, 2))

    tell(tmp_path, before, after, group_share_partition_max_record_locks=10_000)


def test_a_lock_ends_by_itself_and_the_last_delivery_archives(tmp_path: Path) -> None:
    """C1: those who wait are told; after its deliveries a record is given up."""

    class Waiter:
        def __init__(self) -> None:
            self.told = asyncio.Event()

        def on_available(self) -> None:
            self.told.set()

    async def story(broker: Broker) -> None:
        await fill(broker, 1)
        part, waiter = await opened(broker), Waiter()
        part.watch(waiter)
        for delivery in (1, 2):
            assert ranges(acquire(broker, part)) == [(0, 0, delivery)]
            await asyncio.wait_for(waiter.told.wait(), 10)
            waiter.told.clear()
        assert ranges(acquire(broker, part)) == []
        assert part.window.start_offset == 1

    tell(tmp_path, story, group_share_record_lock_duration_ms=100, group_share_delivery_count_limit=2)


def test_records_that_are_given_up_are_summed_up_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """C1 O1: one line for a group and partition, however many ranges were rejected."""

    async def story(broker: Broker) -> None:
        await fill(broker, 50)
        part = await opened(broker)
        acquire(broker, part)
        for offset in range(0, 50, 2):
            await judge(broker, part, offset, offset, Verdict.REJECT)

    caplog.set_level(logging.INFO, "braid.share")
    tell(tmp_path, story)
    assert [record.getMessage() for record in caplog.records if record.name == "braid.share"] == [
        (
            "group workers, jobs-0: 25 records between offsets 0 and 48 are not delivered again:"
            " 25 rejected, 0 after their last delivery"
        )
    ]


def test_what_was_acquired_is_handed_out_though_what_follows_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C1: it would be held by somebody who never got it. The error comes with the next request."""

    async def story(broker: Broker) -> None:
        await fill(broker, *[1] * 3)
        part = await opened(broker)
        read = Replica.read

        def damaged(self: Replica, offset: int, bytes_max: int, isolation: Isolation) -> ReadResult:
            if offset == 2:
                raise ApiError(ErrorCode.CORRUPT_MESSAGE, "damaged")
            return read(self, offset, min(bytes_max, 1), isolation)

        monkeypatch.setattr(Replica, "read", damaged)
        delivered = acquire(broker, part)
        assert (ranges(delivered), base_offsets(delivered)) == ([(0, 1, 1)], [0, 1])
        with pytest.raises(ApiError, match="damaged"):
            acquire(broker, part)

    tell(tmp_path, story)


def test_what_was_acquired_is_handed_out_though_the_disk_fails_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C1: an I/O error keeps no file open and no record from its consumer; it is answered next time."""

    async def story(broker: Broker) -> None:
        await fill(broker, *[1] * 3)
        part = await opened(broker)
        read, read_part = Replica.read, FileSlice.read_part

        def one_batch(self: Replica, offset: int, _: int, isolation: Isolation) -> ReadResult:
            return read(self, offset, 1, isolation)

        def broken(self: FileSlice, at: int, size: int) -> bytes:
            if self.position > 0:
                raise OSError("the disk is broken")
            return read_part(self, at, size)

        monkeypatch.setattr(Replica, "read", one_batch)
        monkeypatch.setattr(FileSlice, "read_part", broken)
        delivered = acquire(broker, part)
        assert ranges(delivered) == [(0, 0, 1)]
        with pytest.raises(ApiError, match="the disk is broken"):
            acquire(broker, part)

    tell(tmp_path, story)


def test_the_window_is_bounded_whatever_the_backlog(tmp_path: Path) -> None:
    """C1: nobody gets more until something is settled."""

    async def story(broker: Broker) -> None:
        await fill(broker, *[1] * 150)
        part = await opened(broker)
        assert ranges(acquire(broker, part)) == [(0, 99, 1)]
        assert ranges(acquire(broker, part, "bob")) == []
        await judge(broker, part, 0, 9, Verdict.ACCEPT)
        assert ranges(acquire(broker, part, "bob")) == [(100, 109, 1)]
        assert part.window.run_count == 2

    tell(tmp_path, story)


def test_records_that_retention_took_are_passed_over(tmp_path: Path) -> None:
    """C1 L7: the window follows the start of the log."""

    async def story(broker: Broker) -> None:
        partition = await fill(broker, 5, 5)
        part = await opened(broker)
        acquire(broker, part, records_max=5)
        await broker.delete_records(partition, 7)
        assert ranges(acquire(broker, part, "bob")) == [(7, 9, 1)]
        assert part.window.start_offset == 7

    tell(tmp_path, story)


def test_records_that_a_crash_took_back_are_not_taken_for_those_that_follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C1 L6: what gets an offset anew is delivered, although its predecessor was accepted."""

    async def story(broker: Broker) -> None:
        await fill(broker, 5, 5)
        part = await opened(broker)
        acquire(broker, part)
        await judge(broker, part, 1, 9, Verdict.ACCEPT)
        await judge(broker, part, 0, 0, Verdict.RELEASE)
        with monkeypatch.context() as patch:
            patch.setattr(Log, "end_offset", 5)
            part.follow_log()
        assert (part.window.start_offset, part.window.end_offset) == (0, 5)
        assert ranges(acquire(broker, part)) == [(0, 0, 2), (5, 9, 1)]

    tell(tmp_path, story)


def test_verdicts_on_what_one_does_not_hold_are_refused(tmp_path: Path) -> None:
    """C1: all verdicts of a request count, or none."""

    async def story(broker: Broker) -> None:
        await fill(broker, 10)
        part = await opened(broker)
        acquire(broker, part, "ada", 5, exact=True)
        for first, last, member in ((0, 5, "ada"), (0, 4, "bob"), (0, 99, "ada")):
            with pytest.raises(ApiError) as refusal:
                await judge(broker, part, first, last, Verdict.ACCEPT, member)
            assert refusal.value.code is ErrorCode.INVALID_RECORD_STATE
        with pytest.raises(ApiError) as refusal:
            await judge(broker, part, 3, 2, Verdict.ACCEPT)
        assert refusal.value.code is ErrorCode.INVALID_REQUEST
        await judge(broker, part, 0, 4, Verdict.ACCEPT)
        assert part.window.start_offset == 5

    tell(tmp_path, story)


def test_a_deleted_topic_and_a_deleted_group_leave_nothing_behind(tmp_path: Path) -> None:
    """C6: neither now nor after a restart."""

    async def before(broker: Broker) -> None:
        await fill(broker, 1)
        await opened(broker)
        await opened(broker, "others")
        (await broker.groups.reach("others")).groups.add_share("others")
        assert await broker.delete_group("others") is ErrorCode.NONE
        assert [part.key.group_id for part in broker.share_delivery] == ["workers"]
        await broker.delete_topic("jobs")
        assert list(broker.share_delivery) == []

    async def after(broker: Broker) -> None:
        assert list(broker.share_delivery) == []
        assert list(broker.groups.all_groups()) == []

    tell(tmp_path, before, after)


def test_state_of_a_topic_that_is_gone_is_cleared_away_at_the_start(tmp_path: Path) -> None:
    """C6: as a crash between deleting a topic and forgetting it would leave it."""

    async def before(broker: Broker) -> None:
        await fill(broker, 1)
        await opened(broker)
        await broker.topics.delete("jobs")

    async def after(broker: Broker) -> None:
        assert list(broker.share_delivery) == []
        assert broker.topics.get(STATE_TOPIC).held[0].end_offset == 1 + 1 + DELTAS_MAX

    tell(tmp_path, before, after)


def test_state_of_a_topic_that_is_set_aside_is_kept(tmp_path: Path) -> None:
    """C6 N4: when the topic comes back, so does the place of its groups."""
    journal = tmp_path / "metadata.store"
    kept: list[bytes] = []

    async def other(broker: Broker) -> None:
        topic = await broker.topics.create("other", 1, {})
        await broker.share_delivery.open([SharePartitionKey("workers", topic.id, 0)])
        kept.append(journal.read_bytes())

    async def before(broker: Broker) -> None:
        await fill(broker, 10)
        part = await opened(broker)
        acquire(broker, part)
        await judge(broker, part, 0, 2, Verdict.ACCEPT)
        kept.append(journal.read_bytes())

    async def without(broker: Broker) -> None:
        assert broker.topics.find("jobs") is None

    async def after(broker: Broker) -> None:
        assert (await opened(broker)).window.start_offset == 3

    tell(tmp_path, other, before)
    journal.write_bytes(kept[0])
    tell(tmp_path, without)
    journal.write_bytes(kept[1])
    tell(tmp_path, after)


def test_a_group_that_has_read_nothing_is_forgotten_with_its_members(tmp_path: Path) -> None:
    """C4: so that names of groups cannot pile up; one that has a place stays."""

    async def story(broker: Broker) -> None:
        await fill(broker, 1)
        await opened(broker)
        for name in ("workers", "passing"):
            (await broker.groups.reach(name)).groups.add_share(name)
        joining = Heartbeat("ada", 0, topics=frozenset({"jobs"}))
        await (await broker.groups.reach("waiting")).share_heartbeat("waiting", joining)
        await broker.expire_groups()
        assert {group.group_id for group in broker.groups.all_groups()} == {"workers", "waiting"}

    tell(tmp_path, story)


def test_options_of_a_group_count_at_once_and_stay(tmp_path: Path) -> None:
    """C1: its own lock time, for the windows it has."""

    async def before(broker: Broker) -> None:
        await fill(broker, 1)
        part = await opened(broker)
        await broker.reconfigure_group("workers", {"share.record.lock.duration.ms": "1234"})
        assert part.window.limits.lock_ms == 1234
        with pytest.raises(ApiError) as refusal:
            await broker.reconfigure_group("workers", {"share.record.lock.duration.ms": "none"})
        assert refusal.value.code is ErrorCode.INVALID_CONFIG

    async def after(broker: Broker) -> None:
        assert (await opened(broker)).window.limits.lock_ms == 1234
        await broker.reconfigure_group("workers", {})
        assert (await opened(broker)).window.limits.lock_ms == 30_000

    tell(tmp_path, before, after)


def test_the_stored_form_survives_compaction_and_strange_keys() -> None:
    """C1 L9: a delta whose snapshot is gone is void; a tombstone forgets; other keys are counted."""
    one, other = SharePartitionKey("g:é", b"t" * 16, 7), SharePartitionKey("g", b"u" * 16, 0)
    found = StoredWindows()
    records = [
        (delta_key(one, 3), b"void"),
        (snapshot_key(one), b"whole"),
        (delta_key(one, 0), b"change"),
        (snapshot_key(other), b"gone"),
        *tombstones(other),
        (b"", b"x"),
        (snapshot_key(one) + b"!", b"x"),
    ]
    for key, value in records:
        found.record(key, value)
    assert found.windows == {one: (b"whole", [b"change"])}
    assert found.unreadable == 2
