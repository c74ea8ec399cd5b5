"""Markers on their way to other brokers: asked for once, tried until the image says that there is no need."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from tests.cluster import Cluster, cluster

from braidmq.broker.broker import Broker
from braidmq.broker.txn_markers import MarkerWriter
from braidmq.net.peer import PeerUnavailable
from braidmq.txn.events import Marker
from braidmq.txn.marker_queue import Codes, MarkerKey
from braidmq.wire.errors import ErrorCode

WAIT_S = 10.0
MARKER = Marker(1_000, 1, True, 0, 2)
OWNER = object()


class FakePeers:
    """Other brokers, which do what a test says; without a word they write."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, list[int]]] = []
        self.answers: list[ErrorCode | Exception] = []
        self.under_way = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def write_markers(self, node_id: int, due: Sequence[MarkerKey]) -> Codes:
        self.asked.append((node_id, [index for (_, index), _ in due]))
        self.under_way += 1
        assert self.under_way == 1, "one request at a time"
        await self.gate.wait()
        self.under_way -= 1
        answer = self.answers.pop(0) if self.answers else ErrorCode.NONE
        if isinstance(answer, Exception):
            raise answer
        return dict.fromkeys(due, answer)


def run(tmp_path: Path, story: Callable[[Cluster, MarkerWriter, FakePeers], Awaitable[None]]) -> None:
    """With partitions 0 to 3 of `t` on broker 2, and a writer on broker 1."""

    async def played() -> None:
        async with cluster(tmp_path, 2) as found:
            topic = await found[1].broker.topics.create("t", 4, {}, [[2]] * 4)
            await found.shown(topic.id)
            peers = FakePeers()
            writer = writing(found[1].broker, peers)
            await story(found, writer, peers)
            await writer.stop()

    asyncio.run(played())


def writing(broker: Broker, peers: FakePeers) -> MarkerWriter:
    writer = MarkerWriter(broker.node_id, broker.image, broker.topics, broker.clock, peers)
    broker.metadata.feed.listen(writer.follow)
    return writer


def write(writer: MarkerWriter, index: int) -> asyncio.Future[ErrorCode]:
    told: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
    writer.write(("t", index), MARKER, OWNER, told.set_result)
    return told


def test_what_is_due_goes_in_one_request_and_the_next_waits_for_it(tmp_path: Path) -> None:
    """T2 N4: all partitions of a transaction; what is asked for meanwhile is one request more."""

    async def story(_: Cluster, writer: MarkerWriter, peers: FakePeers) -> None:
        peers.gate.clear()
        first = [write(writer, 0), write(writer, 1)]
        await asyncio.sleep(0.05)
        later = [write(writer, 2), write(writer, 3)]
        await asyncio.sleep(0.05)
        assert (peers.asked, writer.waiting()) == ([(2, [0, 1])], 4)
        peers.gate.set()
        assert await asyncio.wait_for(asyncio.gather(*first, *later), WAIT_S) == [ErrorCode.NONE] * 4
        assert (peers.asked, writer.waiting()) == ([(2, [0, 1]), (2, [2, 3])], 0)

    run(tmp_path, story)


def test_a_failure_is_tried_again_until_it_is_none(tmp_path: Path) -> None:
    """T2 N4: the broker is away, its answer is lost or broken, its image is behind ours."""

    async def story(_: Cluster, writer: MarkerWriter, peers: FakePeers) -> None:
        peers.answers = [
            PeerUnavailable("away", sent=False),
            PeerUnavailable("lost", sent=True),
            ValueError("planted"),
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.TRANSACTION_COORDINATOR_FENCED,
        ]
        told = write(writer, 0)
        assert await asyncio.wait_for(told, WAIT_S) is ErrorCode.TRANSACTION_COORDINATOR_FENCED
        assert peers.asked == [(2, [0])] * 6

    run(tmp_path, story)


def test_a_deleted_topic_and_a_resigned_coordinator_end_it(tmp_path: Path) -> None:
    """T2 N4: what is gone counts as written; whom nobody asks any more is not tried again."""

    async def story(found: Cluster, writer: MarkerWriter, peers: FakePeers) -> None:
        peers.answers = [PeerUnavailable("away", sent=False) for _ in range(1000)]
        told = write(writer, 0)
        await asyncio.sleep(0.1)
        await found[1].broker.delete_topic("t")
        assert await asyncio.wait_for(told, WAIT_S) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        topic = await found[1].broker.topics.create("t", 1, {}, [[2]])
        await found.shown(topic.id)
        dropped = write(writer, 0)
        await asyncio.sleep(0.1)
        writer.drop(OWNER)
        await asyncio.sleep(0.1)
        assert (writer.waiting(), dropped.done()) == (0, False)

    run(tmp_path, story)


def test_a_coordinator_that_fails_at_its_answer_does_not_stop_the_markers_of_others(tmp_path: Path) -> None:
    """T2 N4: nobody else would send them, and their transactions would stay open."""

    async def story(found: Cluster, writer: MarkerWriter, peers: FakePeers) -> None:
        def broken(_: ErrorCode) -> None:
            raise ValueError("planted")

        peers.answers = [PeerUnavailable("away", sent=False) for _ in range(1000)]
        writer.write(("t", 0), MARKER, OWNER, broken)
        told = write(writer, 1)
        await asyncio.sleep(0.1)
        await found[1].broker.delete_topic("t")
        assert await asyncio.wait_for(told, WAIT_S) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        topic = await found[1].broker.topics.create("t", 1, {}, [[2]])
        await found.shown(topic.id)
        peers.answers = []
        assert await asyncio.wait_for(write(writer, 0), WAIT_S) is ErrorCode.NONE

    run(tmp_path, story)
