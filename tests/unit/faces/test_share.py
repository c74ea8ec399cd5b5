"""Share groups as a client of any kind would speak to them: sessions and acknowledgements."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from braidmq.log.files import FileSlice
from braidmq.net.connection import PendingReply
from braidmq.wire.errors import ErrorCode
from braidmq.wire.messages.share_fetch import (
    AcknowledgePartition,
    AcknowledgeTopic,
    ForgottenTopic,
    ShareFetchRequest,
    ShareFetchResponse,
)
from unit.embedded import append
from unit.faces.sharing import (
    ACCEPT,
    REJECT,
    RELEASE,
    RENEW,
    acknowledge,
    acquired,
    code_of,
    fetch,
    join,
    parts,
    run_story,
    topics,
    verdict,
)
from unit.faces.spoken import Speaker


@pytest.fixture
def tell(tmp_path: Path) -> Callable[..., None]:
    """Runs a story with a share group."""
    return partial(run_story, tmp_path)


def test_records_are_acquired_acknowledged_and_never_come_again(tell: Callable[..., None]) -> None:
    """C1 F1: verdicts ride on the next fetch; released records come again with a higher count."""

    async def story(one: Speaker) -> None:
        first = await fetch(one, 0, 0, 1)
        assert acquired(first) == {0: [(0, 9, 1)], 1: [(0, 9, 1)]}
        assert first.acquisition_lock_timeout_ms == 30_000
        assert len(parts(first)[0].records) > 60
        second = await fetch(one, 1, 0, acks=(verdict(0, 3, ACCEPT), verdict(4, 6, RELEASE, REJECT, ACCEPT)))
        assert acquired(second) == {0: [(4, 4, 2)]}
        assert parts(second)[0].acknowledge_error_code == 0
        assert code_of(await acknowledge(one, 2, verdict(4, 4, ACCEPT), verdict(7, 9, ACCEPT))) == 0
        assert acquired(await fetch(one, 3)) == {}

    tell(story)


def test_a_session_goes_through_its_epochs(tell: Callable[..., None]) -> None:
    """F1: stale and unknown sessions get their codes; partitions are added and forgotten on the way."""

    async def story(one: Speaker) -> None:
        assert (await fetch(one, 1, 0)).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
        assert (await acknowledge(one, 0)).error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
        refused = await fetch(one, 0, 0, acks=(verdict(0, 0, ACCEPT),))
        assert refused.error_code == ErrorCode.INVALID_REQUEST
        assert acquired(await fetch(one, 0, 0)) == {0: [(0, 9, 1)]}
        assert (await fetch(one, 2, 0)).error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
        gone = [ForgottenTopic(topic_id=one.broker.topics.get("jobs").id, partitions=[0])]
        assert acquired(await fetch(one, 1, 1, forgotten_topics_data=gone)) == {1: [(0, 9, 1)]}
        assert code_of(await acknowledge(one, 2, verdict(0, 9, RELEASE))) == 0
        assert acquired(await fetch(one, 3)) == {}
        assert acquired(await fetch(one, 0, 0)) == {0: [(0, 9, 2)]}
        assert (await fetch(one, -1)).error_code == 0
        assert (await fetch(one, -1)).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND

    tell(story)


def test_the_end_of_a_session_and_of_a_connection_give_back_what_was_held(tell: Callable[..., None]) -> None:
    """C1: at once, not when the lock ends."""

    async def story(one: Speaker) -> None:
        await join(one, "bob")
        await fetch(one, 0, 0)
        assert acquired(await fetch(one, 0, 0, member_id="bob")) == {}
        await acknowledge(one, -1, verdict(0, 4, ACCEPT))
        assert acquired(await fetch(one, 1, member_id="bob")) == {0: [(5, 9, 2)]}
        one.close()
        assert len(one.face.share_sessions) == 0
        await fetch(one, 0, 0, member_id="bob")
        assert acquired(await fetch(one, 0, 0)) == {}
        part = next(part for part in one.broker.share_delivery if part.key.partition == 0)
        assert [(first, last, held.deliveries) for first, last, held in part.window.runs()] == [(5, 9, 3)]

    tell(story)


def test_a_fetch_waits_for_records_to_come_or_to_come_back(tell: Callable[..., None]) -> None:
    """C1: it is woken by a producer, by a release of somebody else, and by the time."""

    async def story(one: Speaker) -> None:
        await join(one, "bob")
        await fetch(one, 0, 0)
        assert acquired(await fetch(one, 0, 0, member_id="bob", max_wait_ms=20)) == {}
        waiting = asyncio.ensure_future(fetch(one, 1, member_id="bob", max_wait_ms=60_000))
        await asyncio.sleep(0.05)
        await acknowledge(one, 1, verdict(3, 3, RELEASE))
        assert acquired(await asyncio.wait_for(waiting, 10)) == {0: [(3, 3, 2)]}
        waiting = asyncio.ensure_future(fetch(one, 2, member_id="bob", max_wait_ms=60_000))
        await asyncio.sleep(0.05)
        append(one.broker.topics.get("jobs").held[0], b"job", one.broker.clock.wall_ms())
        assert acquired(await asyncio.wait_for(waiting, 10)) == {0: [(10, 10, 1)]}
        waiting = asyncio.ensure_future(fetch(one, 3, member_id="bob", max_wait_ms=60_000))
        await asyncio.sleep(0.05)
        one.face.begin_drain()
        assert acquired(await asyncio.wait_for(waiting, 10)) == {}

    tell(story)


def test_limits_of_a_fetch_are_kept_to_whole_batches_or_exactly(tell: Callable[..., None]) -> None:
    """C1: as the client asks; a fetch for no records brings none."""

    async def story(one: Speaker) -> None:
        assert acquired(await fetch(one, 0, 0, 1, max_records=3, share_acquire_mode=1)) == {0: [(0, 2, 1)]}
        assert acquired(await fetch(one, 1, max_records=0)) == {}
        assert acquired(await fetch(one, 2, max_records=4)) == {1: [(0, 9, 1)]}
        assert acquired(await fetch(one, 3, max_bytes=1)) == {0: [(3, 9, 1)]}

    tell(story)


def test_an_answer_stays_within_max_bytes_but_never_below_one_batch(tell: Callable[..., None]) -> None:
    """C1 F1: a client drops a connection whose answer is larger than it accepts."""

    async def story(one: Speaker) -> None:
        topic = await one.broker.topics.create("mixed", 2, {"flush": "async"})
        for partition in topic.held.values():
            append(partition, b"s" * 1_000, one.broker.clock.wall_ms())
            append(partition, b"l" * 200_000, one.broker.clock.wall_ms())
        wanted = [
            AcknowledgeTopic(
                topic_id=topic.id, partitions=[AcknowledgePartition(partition_index=n) for n in (0, 1)]
            )
        ]

        async def records(epoch: int) -> list[tuple[int, int]]:
            request = ShareFetchRequest(
                group_id="workers", member_id="ada", share_session_epoch=epoch, max_records=500,
                max_bytes=100_000, topics=wanted if epoch == 0 else [],
            )  # fmt: skip
            answer = await one.ask(request, ShareFetchResponse)
            assert sum(len(part.records) for part in parts(answer).values()) <= 202_000
            return sorted((index, run[0]) for index, runs in acquired(answer).items() for run in runs)

        assert await records(0) == [(0, 0), (1, 0)]
        assert len(await records(1)) == 1
        assert len(await records(2)) == 1
        assert await records(3) == []

    tell(story)


def test_records_are_sent_from_their_files_and_not_held_in_memory(tell: Callable[..., None]) -> None:
    """C1 W3: clients that do not read their answers cost no memory for the records in them."""

    async def story(one: Speaker) -> None:
        for _ in range(8):
            append(one.broker.partition("jobs", 0), b"j" * 500_000, one.broker.clock.wall_ms())
        request = ShareFetchRequest(
            group_id="workers", member_id="ada", max_records=500, max_bytes=50_000_000,
            topics=topics(one.broker, 0),
        )  # fmt: skip
        pending = one.send(request, 2)
        assert isinstance(pending, PendingReply)
        while not pending.done:
            await asyncio.sleep(0.001)
        files = [part for part in pending.parts or () if isinstance(part, FileSlice)]
        others = [part for part in pending.parts or () if not isinstance(part, FileSlice)]
        assert sum(part.size for part in files) > 4_000_000
        assert sum(len(part) for part in others) < 1_000  # type: ignore[arg-type]
        held = files[0].file
        assert held is not None
        pins = held.pins
        pending.abandon()
        assert held.pins == pins - len(files)

    tell(story)


def test_partitions_of_all_sessions_together_are_limited(tell: Callable[..., None]) -> None:
    """C1 C9: a code that clients retry, until others have let go of theirs."""

    async def story(one: Speaker) -> None:
        await join(one, "bob")
        assert (await fetch(one, 0, *range(600))).error_code == 0
        assert (await fetch(one, 1, *range(600))).error_code == 0
        refused = await fetch(one, 0, *range(600), member_id="bob")
        assert refused.error_code == ErrorCode.SHARE_SESSION_LIMIT_REACHED
        assert (await fetch(one, -1)).error_code == 0
        assert (await fetch(one, 0, *range(600), member_id="bob")).error_code == 0

    tell(story, fetch_sessions_partitions_max=1_000)


def test_verdicts_that_cannot_be_are_refused_partition_by_partition(tell: Callable[..., None]) -> None:
    """C1: with Kafka's codes; the session goes on."""

    async def story(one: Speaker) -> None:
        await fetch(one, 0, 0)
        assert code_of(await acknowledge(one, 1, verdict(0, 99, ACCEPT))) == ErrorCode.INVALID_RECORD_STATE
        assert code_of(await acknowledge(one, 2, verdict(0, 0, 9))) == ErrorCode.INVALID_REQUEST
        assert code_of(await acknowledge(one, 3, verdict(0, 5, 1, 1))) == ErrorCode.INVALID_REQUEST
        assert code_of(await acknowledge(one, 4, verdict(0, 0, RENEW))) == ErrorCode.INVALID_REQUEST
        assert code_of(await acknowledge(one, 5, verdict(0, 9, RENEW), is_renew_ack=True)) == 0
        unread = await acknowledge(one, 6, verdict(0, 0, ACCEPT), index=1)
        assert code_of(unread) == ErrorCode.INVALID_RECORD_STATE
        refused = parts(await fetch(one, 7, 0, acks=(verdict(0, 0, ACCEPT), verdict(0, 0, ACCEPT))))
        assert refused[0].acknowledge_error_code == ErrorCode.INVALID_RECORD_STATE
        assert code_of(await acknowledge(one, 8, verdict(0, 9, ACCEPT))) == 0

    tell(story)


def test_partitions_and_groups_that_do_not_exist_are_told_so(tell: Callable[..., None]) -> None:
    """F1: a partition's error does not hide the records of another; a deleted topic is gone at once."""

    async def story(one: Speaker) -> None:
        assert (await fetch(one, 0, 0, group_id="none")).error_code == ErrorCode.GROUP_ID_NOT_FOUND
        assert (await fetch(one, 0, 0, member_id="")).error_code == ErrorCode.INVALID_REQUEST
        answer = await fetch(one, 0, 7, 0)
        assert parts(answer)[7].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert acquired(answer) == {0: [(0, 9, 1)]}
        await one.broker.delete_topic("jobs")
        answer = await one.ask(
            ShareFetchRequest(group_id="workers", member_id="ada", share_session_epoch=1, max_records=1),
            ShareFetchResponse,
        )
        assert {part.error_code for part in parts(answer).values()} == {ErrorCode.UNKNOWN_TOPIC_ID}

    tell(story)


def test_sessions_are_limited(tell: Callable[..., None]) -> None:
    """W4: one more than allowed is refused, until another ends."""

    async def story(one: Speaker) -> None:
        await fetch(one, 0, 0)
        refused = await fetch(one, 0, 0, member_id="bob")
        assert refused.error_code == ErrorCode.SHARE_SESSION_LIMIT_REACHED
        await fetch(one, -1)
        assert acquired(await fetch(one, 0, 0, member_id="bob")) == {0: [(0, 9, 2)]}

    tell(story, group_share_max_share_sessions=1)
