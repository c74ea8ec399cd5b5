"""Batches in line for their transaction: one that fails does not hold up those after it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from braidmq.broker.broker import Broker
from braidmq.broker.replica import Replica
from braidmq.broker.txn_gate import TxnProducer
from braidmq.log.transactions import Guard
from braidmq.txn.events import Init
from braidmq.wire.errors import ErrorCode
from braidmq.wire.records import build_batch, parse_header
from unit.embedded import embedded

WAIT_S = 20.0


async def new_producer(broker: Broker) -> TxnProducer:
    made = await (await broker.transactions.reach("mine")).init(Init("mine", 60_000))
    return TxnProducer("mine", made.producer_id, made.producer_epoch, adds=True)


def admitted(broker: Broker, partition: Replica, producer: TxnProducer) -> asyncio.Future[ErrorCode]:
    """Puts a batch in line; done when it is let in or refused."""
    told: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
    admit(broker, partition, producer, lambda code, _: told.set_result(code))
    return told


def admit(broker: Broker, partition: Replica, producer: TxnProducer, then: object) -> None:
    batch = build_batch(
        [(None, b"x", (), broker.clock.wall_ms())], base_sequence=0, producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch, transactional=True,
    )  # fmt: skip
    broker.txn_gate.admit(partition, producer, parse_header(batch), then)  # type: ignore[arg-type]


def raising(code: ErrorCode, guard: Guard | None) -> None:
    raise OSError(28, f"planted, after {code} and {guard}")


def test_a_batch_whose_append_raises_does_not_hold_up_the_producer(tmp_path: Path) -> None:
    """T2: those asked about with it, those after it, and those of the next question are told."""

    async def run() -> None:
        async with embedded(tmp_path) as broker:
            partitions = list((await broker.topics.create("t", 3, {})).held.values())
            producer = await new_producer(broker)
            admit(broker, partitions[0], producer, raising)
            together = admitted(broker, partitions[1], producer)
            assert await asyncio.wait_for(together, WAIT_S) is ErrorCode.NONE
            later = admitted(broker, partitions[2], producer)
            assert await asyncio.wait_for(later, WAIT_S) is ErrorCode.NONE

    asyncio.run(run())


def test_a_coordinator_that_cannot_be_asked_refuses_the_batch_and_takes_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T2: the line is empty after that."""

    async def run() -> None:
        async with embedded(tmp_path) as broker:
            (partition,) = (await broker.topics.create("t", 1, {})).held.values()
            producer = await new_producer(broker)
            with monkeypatch.context() as planted:
                coordinator = broker.transactions.of("mine")
                planted.setattr(coordinator.transactions, "add_partitions", lambda *_: 1 // 0)
                refused = admitted(broker, partition, producer)
                assert await asyncio.wait_for(refused, WAIT_S) is ErrorCode.UNKNOWN_SERVER_ERROR
            taken = admitted(broker, partition, producer)
            assert await asyncio.wait_for(taken, WAIT_S) is ErrorCode.NONE

    asyncio.run(run())


def test_a_topic_deleted_while_its_batch_is_in_line_does_not_hold_up_the_producer(tmp_path: Path) -> None:
    """T2 L1: nor does the batch bring the topic's directory back."""

    async def run() -> None:
        async with embedded(tmp_path) as broker:
            gone = await broker.topics.create("gone", 1, {})
            kept = await broker.topics.create("kept", 1, {})
            producer = await new_producer(broker)
            first = admitted(broker, gone.held[0], producer)
            for partition in gone.held.values():
                partition.discard()
            await asyncio.wait_for(first, WAIT_S)
            second = admitted(broker, kept.held[0], producer)
            assert await asyncio.wait_for(second, WAIT_S) is ErrorCode.NONE
            assert not gone.held[0].is_open

    asyncio.run(run())
