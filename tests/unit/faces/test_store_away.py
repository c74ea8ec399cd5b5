"""What clients hear while the metadata store cannot be reached: a code, soon, on a connection that stays."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from braidmq.broker.broker import Broker
from braidmq.cluster import settlement
from braidmq.cluster.served_store import ServedStore
from braidmq.wire.api import response_class
from braidmq.wire.errors import ErrorCode
from braidmq.wire.messages.commits import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from braidmq.wire.messages.configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from braidmq.wire.messages.consumer_groups import ConsumerGroupHeartbeatRequest
from braidmq.wire.messages.groups import FindCoordinatorRequest, JoinGroupRequest, JoinGroupRequestProtocol
from braidmq.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from braidmq.wire.messages.producers import InitProducerIdRequest, InitProducerIdResponse
from braidmq.wire.messages.share_groups import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
    ShareGroupHeartbeatRequest,
)
from braidmq.wire.messages.topics import (
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from braidmq.wire.messages.transactions import TxnOffsetCommitRequest
from braidmq.wire.schema import Message
from cluster import cluster
from unit.faces.spoken import Speaker

PATIENCE_S = 0.4
RETRIABLE = (
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.KAFKA_STORAGE_ERROR,
)


@pytest.fixture(autouse=True)
def short_settlement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settlement, "SETTLE_S_MAX", PATIENCE_S)


def impatient(broker: Broker) -> None:
    store = broker.metadata.store
    assert isinstance(store, ServedStore)
    store._timeout_s = PATIENCE_S


def codes(message: Message) -> Iterator[int]:
    """Every error code of an answer that is one."""
    for name, value in vars(message).items() if hasattr(message, "__dict__") else _slots(message):
        if name == "error_code" and value:
            yield value
        elif isinstance(value, list):
            for each in value:
                if isinstance(each, Message):
                    yield from codes(each)


def _slots(message: Message) -> Iterator[tuple[str, object]]:
    for kind in type(message).__mro__:
        for name in getattr(kind, "__slots__", ()):
            yield name, getattr(message, name, None)


def changes() -> list[Message]:
    """Requests of every kind that cannot be carried out without the store."""
    commit = OffsetCommitRequestTopic(
        name="there", partitions=[OffsetCommitRequestPartition(partition_index=0, committed_offset=1)]
    )
    set_option = IncrementalAlterableConfig(name="retention.ms", config_operation=0, value="1000")
    moved = AlterShareGroupOffsetsRequestPartition(partition_index=0, start_offset=0)
    return [
        InitProducerIdRequest(),
        InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=1000),
        FindCoordinatorRequest(key_type=0, coordinator_keys=["g", "h"]),
        FindCoordinatorRequest(key_type=1, coordinator_keys=["t"]),
        CreateTopicsRequest(topics=[CreatableTopic(name=f"new{n}", num_partitions=1) for n in range(5)]),
        DeleteTopicsRequest(topics=[DeleteTopicState(name="there")]),
        CreatePartitionsRequest(topics=[CreatePartitionsTopic(name="there", count=9, assignments=None)]),
        MetadataRequest(
            topics=[MetadataRequestTopic(name=f"auto{n}") for n in range(5)], allow_auto_topic_creation=True
        ),
        IncrementalAlterConfigsRequest(
            resources=[
                IncrementalAlterConfigsResource(resource_type=2, resource_name="there", configs=[set_option])
            ]
        ),
        AlterConfigsRequest(
            resources=[
                AlterConfigsResource(
                    resource_type=4,
                    resource_name="",
                    configs=[AlterableConfig(name="log.retention.ms", value="1000")],
                )
            ]
        ),
        IncrementalAlterConfigsRequest(
            resources=[
                IncrementalAlterConfigsResource(
                    resource_type=32,
                    resource_name="g",
                    configs=[
                        IncrementalAlterableConfig(
                            name="consumer.session.timeout.ms", config_operation=0, value="46000"
                        )
                    ],
                )
            ]
        ),
        JoinGroupRequest(
            group_id="g",
            session_timeout_ms=10_000,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
        ),
        ConsumerGroupHeartbeatRequest(
            group_id="g",
            member_id="m",
            rebalance_timeout_ms=1000,
            subscribed_topic_names=["there"],
            topic_partitions=[],
        ),
        ShareGroupHeartbeatRequest(group_id="s", member_id="m", subscribed_topic_names=["there"]),
        AlterShareGroupOffsetsRequest(
            group_id="s",
            topics=[AlterShareGroupOffsetsRequestTopic(topic_name="there", partitions=[moved])],
        ),
        OffsetCommitRequest(group_id="g", topics=[commit]),
        TxnOffsetCommitRequest(transactional_id="t", group_id="g", producer_id=1),
    ]


def version_of(request: Message) -> int:
    return 9 if isinstance(request, OffsetCommitRequest) else request.versions[1]


@pytest.mark.parametrize("at", range(len(changes())), ids=lambda at: f"{at}-{type(changes()[at]).__name__}")
def test_a_change_is_answered_with_a_code_while_the_store_is_away(tmp_path: Path, at: int) -> None:
    """N4: no verb that needs the store closes its connection or waits much longer than the store is given."""
    request = changes()[at]

    async def story() -> None:
        async with cluster(tmp_path, 1) as found:
            broker = found[1].broker
            await broker.topics.create("there", 1, {})
            impatient(broker)
            await found.stop_store()
            asked = Speaker(broker)
            began = asyncio.get_running_loop().time()
            answer = await asked.ask(request, response_class(request.api), version_of(request))
            assert asyncio.get_running_loop().time() - began < 3 * PATIENCE_S
            assert asked.closed == []
            found_codes = [ErrorCode(code) for code in codes(answer)]
            if not isinstance(request, TxnOffsetCommitRequest):
                assert found_codes
            assert set(found_codes) <= set(RETRIABLE), found_codes
            await found.start_store()

    asyncio.run(story())


def test_many_who_need_the_store_wait_for_it_together(tmp_path: Path) -> None:
    """N4: the tenth client in the queue does not wait ten times as long for a store that is away."""

    async def story() -> None:
        async with cluster(tmp_path, 1) as found:
            broker = found[1].broker
            impatient(broker)
            await found.stop_store()
            loop = asyncio.get_running_loop()
            began = loop.time()
            topics = [
                CreateTopicsRequest(
                    topics=[CreatableTopic(name=f"n{at}-{each}", num_partitions=1) for each in range(3)]
                )
                for at in range(10)
            ]
            created = [Speaker(broker).ask(each, CreateTopicsResponse) for each in topics]
            producers = [
                Speaker(broker).ask(InitProducerIdRequest(), InitProducerIdResponse) for _ in range(10)
            ]
            named = [
                Speaker(broker).ask(
                    InitProducerIdRequest(transactional_id=f"t{at}", transaction_timeout_ms=1000),
                    InitProducerIdResponse,
                )
                for at in range(10)
            ]
            answers = await asyncio.gather(*created, *producers, *named)
            assert loop.time() - began < 4 * PATIENCE_S
            assert all(list(codes(answer)) for answer in answers)
            await found.start_store()
            async with asyncio.timeout(5):
                while (
                    answer := await Speaker(broker).ask(InitProducerIdRequest(), InitProducerIdResponse)
                ).error_code:
                    await asyncio.sleep(0.05)
            assert answer.producer_id > 0

    asyncio.run(story())


def test_a_broker_stops_cleanly_while_the_store_is_away(tmp_path: Path) -> None:
    """N4: ids that are being reserved ahead do not make the next start recover."""

    async def story() -> None:
        async with cluster(tmp_path, 1) as found:
            broker = found[1].broker
            await broker.producer_ids.reserve()
            await found.stop_store()
            while broker.producer_ids._ahead is None:
                broker.producer_ids.take_now()
            await found.stop(1)
            assert not (tmp_path / "1" / "active").exists()
            await found.start_store()

    asyncio.run(story())


def test_transactions_are_loaded_while_the_store_is_away(tmp_path: Path) -> None:
    """N4 T2: what was decided is finished, whether or not there are ids for producers that come."""

    async def story() -> None:
        async with cluster(tmp_path, 1) as found:
            broker = found[1].broker
            asked = Speaker(broker)
            init = InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=1000)
            assert (await asked.ask(init, InitProducerIdResponse)).error_code == 0
            impatient(broker)
            await found.stop_store()
            broker.producer_ids._next = broker.producer_ids._end
            shards = broker.transactions
            shards._resign(shards.index_of("t"))
            shards._compare()
            await shards.loaded()
            assert shards.of("t").transactions.find("t") is not None
            again = await asked.ask(init, InitProducerIdResponse)
            assert (again.error_code, again.producer_epoch) == (0, 1)
            init.transactional_id = next(f"u{at}" for at in range(999) if shards.index_of(f"u{at}") == 0)
            new = await asked.ask(init, InitProducerIdResponse)
            assert new.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
            await found.start_store()

    asyncio.run(story())
