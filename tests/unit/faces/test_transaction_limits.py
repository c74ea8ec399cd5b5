"""What transactions are kept from: forged markers, ends that overtake, waits without bounds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from braidmq.broker.outcomes import Acks
from braidmq.wire.errors import ErrorCode
from braidmq.wire.messages.produce import ProduceResponse
from braidmq.wire.messages.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from braidmq.wire.records import build_batch, parse_header
from unit.faces.spoken import Speaker, speaker
from unit.faces.test_produce import batch_of, producing
from unit.faces.txn_client import OLD, Client, fetched, settled
from unit.held_disk import HeldDisk


def run(tmp_path: Path, story: Callable[[Speaker], Awaitable[None]], **options: object) -> None:
    async def told() -> None:
        async with speaker(tmp_path, **options) as one:
            if one.broker.topics.find("t") is None:
                await one.broker.topics.create("t", 3, {})
            await story(one)

    asyncio.run(told())


def test_batches_that_wait_for_the_coordinator_are_limited(tmp_path: Path) -> None:
    """T2 W5: past the limit there is a code that clients retry, or the end of a connection with acks=0."""
    disk = HeldDisk()

    async def told() -> None:
        async with speaker(tmp_path, disk=disk, produce_waiting_bytes_max=1 << 20) as one:
            await one.broker.topics.create("t", 1, {})
            now_ms = one.broker.clock.wall_ms()
            clients = [Client(one, name) for name in ("x", "y", "z")]
            for client in clients:
                assert await client.init() is ErrorCode.NONE
            requests = [
                producing(
                    build_batch(
                        [(b"k", b"v" * 600_000, [], now_ms)], base_sequence=0, transactional=True,
                        producer_id=client.producer_id, producer_epoch=client.epoch,
                    ),
                    acks=acks, transactional_id=client.name,
                )
                for client, acks in zip(clients, (0, -1, 0), strict=True)
            ]  # fmt: skip
            disk.hold("__transaction_state")
            one.tell(requests[0], 12)
            refused = await one.ask(requests[1], ProduceResponse, 12)
            one.tell(requests[2], 12)
            assert refused.responses[0].partition_responses[0].error_code == ErrorCode.NOT_ENOUGH_REPLICAS
            assert len(one.closed) == 1
            assert "produce.waiting.bytes.max" in one.closed[0]
            disk.let_go()
            while one.face.produce.waiting_bytes:
                await asyncio.sleep(0.001)
            retried = await one.ask(requests[1], ProduceResponse, 12)
            assert retried.responses[0].partition_responses[0].error_code == 0
            assert one.broker.partition("t", 0).end_offset == 2

    asyncio.run(told())


def test_an_abort_does_not_overtake_the_partitions_that_it_ends(tmp_path: Path) -> None:
    """T2: librdkafka aborts without waiting for AddPartitionsToTxn, which may wait."""
    disk = HeldDisk()

    async def told() -> None:
        async with speaker(tmp_path, disk=disk) as one:
            await one.broker.topics.create("t", 1, {})
            client = Client(one, protocol=OLD)
            await client.init()
            await client.add(0)
            await client.produce()
            disk.hold("/t.")
            assert await client.end(commit=True) is ErrorCode.NONE
            added = asyncio.ensure_future(client.add_once(0))
            aborted = asyncio.ensure_future(client.end(commit=False))
            await asyncio.sleep(0)  # both are sent
            disk.let_go()
            assert await added == {0: ErrorCode.NONE}
            assert await aborted is ErrorCode.NONE
            await settled(one)
            found = one.broker.transactions.of("x").transactions.find("x")
            assert found is not None
            assert found.state.label == "CompleteAbort"

    asyncio.run(told())


def test_clients_write_no_markers(tmp_path: Path) -> None:
    """T2 W5: WriteTxnMarkers would let anybody end any producer's transaction and fence it."""

    async def story(one: Speaker) -> None:
        client = Client(one)
        await client.init()
        await client.produce()
        marker = WritableTxnMarker(
            producer_id=client.producer_id,
            producer_epoch=client.epoch,
            transaction_result=False,
            coordinator_epoch=0,
            topics=[WritableTxnMarkerTopic(name="t", partition_indexes=[0, 9])],
        )
        answer = await one.ask(WriteTxnMarkersRequest(markers=[marker]), WriteTxnMarkersResponse)
        codes = [each.error_code for each in answer.markers[0].topics[0].partitions]
        assert codes == [ErrorCode.CLUSTER_AUTHORIZATION_FAILED] * 2
        assert (await fetched(one)).last_stable_offset == 0
        assert await client.end(commit=True) is ErrorCode.NONE

    run(tmp_path, story)


def test_the_broker_ends_transactions_that_no_coordinator_knows_of(tmp_path: Path) -> None:
    """T2 O1: nobody else may, and they hold back every reader at read_committed; others stay open."""

    async def story(one: Speaker) -> None:
        client = Client(one)
        await client.init()
        await client.produce(1)
        partition = one.broker.partition("t", 0)
        lost = batch_of(one, producer_id=4_711, producer_epoch=0, base_sequence=0, transactional=True)
        guard = partition.begin_verification(parse_header(lost))
        partition.append_leader(memoryview(lost), one.broker.clock.wall_ms(), Acks.ALL, guard)
        await one.broker.tend_transactions()
        durable: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        partition.when_committed(partition.end_offset, durable.set_result)
        await durable
        found = await fetched(one)
        assert (found.last_stable_offset, len(found.aborted_transactions or ())) == (2, 1)
        assert one.broker.partition("t", 1).last_stable_offset == 0
        assert await client.end(commit=True) is ErrorCode.NONE

    run(tmp_path, story)
