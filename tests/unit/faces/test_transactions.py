"""Transactions through a session of the Kafka face, by the old protocol and by the one of KIP-890."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from braidmq.wire.errors import ErrorCode
from braidmq.wire.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from braidmq.wire.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from braidmq.wire.messages.producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    TopicRequest,
)
from braidmq.wire.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from braidmq.wire.records import parse_header, records
from unit.faces.spoken import Speaker, speaker
from unit.faces.txn_client import NEW, OLD, READ_COMMITTED, Client, fetched, offset_of, settled


def run(tmp_path: Path, story: Callable[[Speaker], Awaitable[None]], **options: object) -> None:
    async def told() -> None:
        async with speaker(tmp_path, **options) as one:
            if one.broker.topics.find("t") is None:
                await one.broker.topics.create("t", 3, {})
            await story(one)

    asyncio.run(told())


both_protocols = pytest.mark.parametrize("protocol", [OLD, NEW])


@both_protocols
def test_a_transaction_shows_at_read_committed_once_it_has_committed(tmp_path: Path, protocol: int) -> None:
    """T2: the last stable offset holds readers back, over all partitions, until the markers are written."""

    async def story(one: Speaker) -> None:
        client = Client(one, protocol=protocol)
        assert await client.init() is ErrorCode.NONE
        for partition in (0, 1):
            assert (await client.write(partition, 2)).error_code == 0
        held = await fetched(one)
        assert (held.high_watermark, held.last_stable_offset, held.records) == (2, 0, b"")
        assert (await fetched(one, isolation=0)).records
        assert await client.end(commit=True) is ErrorCode.NONE
        await settled(one)
        for partition in (0, 1):
            found = await fetched(one, partition)
            assert (found.last_stable_offset, found.aborted_transactions) == (3, [])
            assert len(list(records(bytes(found.records or b"")[: parse_header(found.records).size]))) == 2

    run(tmp_path, story)


@both_protocols
def test_an_aborted_transaction_is_named_to_those_who_must_pass_over_it(
    tmp_path: Path, protocol: int
) -> None:
    """T2: aborted transactions by producer and first offset, only to readers at read_committed."""

    async def story(one: Speaker) -> None:
        client = Client(one, protocol=protocol)
        await client.init()
        await client.write()
        producer_id = client.producer_id
        assert await client.end(commit=False) is ErrorCode.NONE
        await settled(one)
        assert (await client.write()).error_code == 0
        await client.end(commit=True)
        await settled(one)
        found = await fetched(one)
        assert [(each.producer_id, each.first_offset) for each in found.aborted_transactions or ()] == [
            (producer_id, 0)
        ]
        assert not (await fetched(one, isolation=0)).aborted_transactions

    run(tmp_path, story)


def test_batches_sent_while_the_coordinator_is_asked_keep_their_order(tmp_path: Path) -> None:
    """T2 P4: the first waits for its partition to be added; those behind it may not overtake it."""

    async def story(one: Speaker) -> None:
        client = Client(one)
        await client.init()
        answers = await asyncio.gather(
            client.produce(), client.produce(), client.produce(1), client.produce(), client.produce(2)
        )
        assert [answer.error_code for answer in answers] == [0] * 5
        assert [answers[number].base_offset for number in (0, 1, 3)] == [0, 1, 2]
        # The next transaction begins while the markers of this one are being written.
        assert await client.end(commit=True) is ErrorCode.NONE
        answers = await asyncio.gather(client.produce(), client.produce())
        assert [answer.base_offset for answer in answers] == [4, 5]
        assert [answer.error_code for answer in answers] == [0, 0]

    run(tmp_path, story)


@pytest.mark.parametrize(("protocol", "code"), [(OLD, ErrorCode.INVALID_TXN_STATE), (NEW, ErrorCode.NONE)])
def test_a_batch_outside_of_any_transaction_is_refused_where_the_client_announces_partitions(
    tmp_path: Path, protocol: int, code: ErrorCode
) -> None:
    """T2: and begins one where the broker does that (KIP-890)."""

    async def story(one: Speaker) -> None:
        client = Client(one, protocol=protocol)
        await client.init()
        assert (await client.produce()).error_code == code

    run(tmp_path, story)


@both_protocols
def test_a_second_producer_fences_the_first_and_aborts_what_it_left_open(
    tmp_path: Path, protocol: int
) -> None:
    """T2: nothing of the first is accepted any more, and nothing it wrote shows."""

    async def story(one: Speaker) -> None:
        first, second = Client(one, protocol=protocol), Client(one, protocol=protocol)
        await first.init()
        await first.write()
        assert await second.init() is ErrorCode.NONE
        assert (second.producer_id, second.epoch) > (first.producer_id, first.epoch)
        assert (await first.produce()).error_code == ErrorCode.INVALID_PRODUCER_EPOCH
        assert await first.end(commit=True) is ErrorCode.PRODUCER_FENCED
        assert (await second.write()).error_code == 0
        assert await second.end(commit=True) is ErrorCode.NONE
        await settled(one)
        assert len((await fetched(one)).aborted_transactions or ()) == 1

    run(tmp_path, story)


def test_a_late_batch_of_the_transaction_before_is_refused(tmp_path: Path) -> None:
    """T2: with the new protocol every end raises the epoch, so a zombie's write finds no transaction."""

    async def story(one: Speaker) -> None:
        client = Client(one)
        await client.init()
        late = Client(one)
        late.producer_id, late.epoch, late.sequences = client.producer_id, client.epoch, {0: 1}
        await client.produce()
        await client.end(commit=True)
        await settled(one)
        assert client.epoch == late.epoch + 1
        assert (await late.produce()).error_code == ErrorCode.INVALID_PRODUCER_EPOCH
        assert await late.end(commit=True) is ErrorCode.NONE, "the same end, sent again"

    run(tmp_path, story)


@both_protocols
@pytest.mark.parametrize("commit", [True, False])
def test_offsets_in_a_transaction_count_when_it_commits(tmp_path: Path, protocol: int, commit: bool) -> None:
    """T2 C6: until then they are unstable, and after a restart they are what they were."""

    async def story(one: Speaker) -> None:
        client = Client(one, protocol=protocol)
        await client.init()
        assert await client.commit_offset(42) is ErrorCode.NONE
        assert (await offset_of(one)).committed_offset == -1
        assert (await offset_of(one, stable=True)).error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT
        assert await client.end(commit) is ErrorCode.NONE
        await settled(one)
        found = await offset_of(one, stable=True)
        assert (found.error_code, found.committed_offset) == (0, 42 if commit else -1)

    async def afterwards(one: Speaker) -> None:
        assert (await offset_of(one, stable=True)).committed_offset == (42 if commit else -1)

    run(tmp_path, story)
    run(tmp_path, afterwards)


def test_offsets_of_a_producer_that_lost_its_place_are_refused(tmp_path: Path) -> None:
    """T2 C6: a zombie cannot move the group."""

    async def story(one: Speaker) -> None:
        first, second = Client(one), Client(one)
        await first.init()
        await second.init()
        assert await first.commit_offset(1) is ErrorCode.INVALID_PRODUCER_EPOCH
        assert (await offset_of(one, stable=True)).error_code == 0

    run(tmp_path, story)


def test_a_transaction_stays_open_over_a_restart_and_can_be_committed(tmp_path: Path) -> None:
    """T2: the coordinator and the partitions find it again."""
    kept: list[Client] = []

    async def before(one: Speaker) -> None:
        client = Client(one)
        await client.init()
        assert (await client.produce()).error_code == 0
        assert await client.commit_offset(7) is ErrorCode.NONE
        kept.append(client)

    async def after(one: Speaker) -> None:
        client = kept[0]
        client.one = one
        assert (await fetched(one)).last_stable_offset == 0
        assert (await client.produce()).error_code == 0
        assert await client.end(commit=True) is ErrorCode.NONE
        await settled(one)
        assert (await fetched(one)).last_stable_offset == 3
        assert (await offset_of(one, stable=True)).committed_offset == 7

    run(tmp_path, before)
    run(tmp_path, after)


def test_what_was_decided_is_finished_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T2: the broker dies between the decision and the markers."""

    async def before(one: Speaker) -> None:
        client = Client(one)
        await client.init()
        await client.produce()
        await client.commit_offset(7)
        monkeypatch.setattr(one.broker.markers, "write", lambda *_: None)
        assert await client.end(commit=True) is ErrorCode.NONE
        assert (await fetched(one)).last_stable_offset == 0

    async def after(one: Speaker) -> None:
        await settled(one)
        assert (await fetched(one)).last_stable_offset == 2
        assert (await offset_of(one, stable=True)).committed_offset == 7

    run(tmp_path, before)
    run(tmp_path, after)


def test_a_marker_that_cannot_be_written_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T2: the transaction is decided; sooner or later every partition hears of it."""

    async def story(one: Speaker) -> None:
        client = Client(one)
        await client.init()
        await client.produce()
        markers = one.broker.markers
        write = markers.write
        refused: list[object] = []

        def refuse_once(place: object, _: object, __: object, then: Callable[[ErrorCode], None]) -> None:
            refused.append(place)
            monkeypatch.setattr(markers, "write", write)
            then(ErrorCode.KAFKA_STORAGE_ERROR)

        monkeypatch.setattr(markers, "write", refuse_once)
        assert await client.end(commit=True) is ErrorCode.NONE
        await settled(one)
        assert refused == [("t", 0)]
        assert (await fetched(one)).last_stable_offset == 2

    run(tmp_path, story)


def test_a_transaction_that_takes_too_long_is_aborted(tmp_path: Path) -> None:
    """T2: by its own time-out; its producer may go on with the next epoch."""

    async def story(one: Speaker) -> None:
        client = Client(one)
        await client.init(timeout_ms=50)
        await client.produce()
        for _ in range(200):
            if (await fetched(one)).last_stable_offset == 2:
                break
            await asyncio.sleep(0.01)
        assert len((await fetched(one)).aborted_transactions or ()) == 1
        assert (await client.produce()).error_code == ErrorCode.INVALID_PRODUCER_EPOCH

    run(tmp_path, story)


def test_a_deleted_topic_does_not_hold_its_transactions(tmp_path: Path) -> None:
    """T2: a partition that is gone counts as ended."""

    async def story(one: Speaker) -> None:
        client = Client(one)
        await client.init()
        await client.produce()
        await one.broker.delete_topic("t")
        assert await client.end(commit=True) is ErrorCode.NONE
        await settled(one)

    run(tmp_path, story)


def test_the_next_transaction_waits_for_the_one_before_to_be_finished(tmp_path: Path) -> None:
    """T2: a client that goes on at once need not ask again while the markers are written."""

    async def story(one: Speaker) -> None:
        client = Client(one, protocol=OLD)
        await client.init()
        await client.write()
        for _ in range(5):
            ended, added = await asyncio.gather(client.end(commit=True), client.add_once(0))
            assert (ended, added) == (ErrorCode.NONE, {0: ErrorCode.NONE})
            await client.produce()
        assert await client.end(commit=True) is ErrorCode.NONE
        await settled(one)
        assert (await fetched(one)).last_stable_offset == 12

    run(tmp_path, story)


def test_adding_a_partition_that_does_not_exist_adds_none(tmp_path: Path) -> None:
    """T2: the others are told that nothing was attempted; the broker's own topics are not for clients."""

    async def story(one: Speaker) -> None:
        client = Client(one)
        await client.init()
        assert await client.add(0, 9) == {
            0: ErrorCode.OPERATION_NOT_ATTEMPTED,
            9: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }
        assert await client.add(0, topic="__transaction_state") == {0: ErrorCode.TOPIC_AUTHORIZATION_FAILED}
        unknown = Client(one, "nobody")
        assert await unknown.add(0) == {0: ErrorCode.INVALID_PRODUCER_ID_MAPPING}

    run(tmp_path, story)


def test_brokers_add_and_verify_for_several_transactions_at_once(tmp_path: Path) -> None:
    """T2: AddPartitionsToTxn from version 4 on."""

    async def story(one: Speaker) -> None:
        client = Client(one)
        await client.init()

        async def ask(verify: bool, *partitions: int) -> list[int]:
            transaction = AddPartitionsToTxnTransaction(
                transactional_id="x",
                producer_id=client.producer_id,
                producer_epoch=client.epoch,
                verify_only=verify,
                topics=[AddPartitionsToTxnTopic(name="t", partitions=list(partitions))],
            )
            answer = await one.ask(
                AddPartitionsToTxnRequest(transactions=[transaction]), AddPartitionsToTxnResponse
            )
            found = answer.results_by_transaction[0].topic_results[0].results_by_partition
            return [each.partition_error_code for each in found]

        assert await ask(True, 0) == [ErrorCode.TRANSACTION_ABORTABLE]
        assert await ask(False, 0) == [0]
        assert await ask(True, 0, 1) == [0, ErrorCode.TRANSACTION_ABORTABLE]

    run(tmp_path, story)


def test_transactions_are_listed_and_described(tmp_path: Path) -> None:
    """T2 O1: by state, producer, pattern; with partitions and where they are open."""

    async def story(one: Speaker) -> None:
        client, idle = Client(one, "orders-1"), Client(one, "idle")
        await client.init(timeout_ms=30_000)
        await idle.init()
        await client.produce(1)

        async def listed(**wanted: object) -> list[tuple[str, str]]:
            answer = await one.ask(ListTransactionsRequest(**wanted), ListTransactionsResponse)
            assert answer.error_code == 0
            return sorted(
                (each.transactional_id, each.transaction_state) for each in answer.transaction_states
            )

        assert await listed() == [("idle", "Empty"), ("orders-1", "Ongoing")]
        assert await listed(state_filters=["Ongoing"]) == [("orders-1", "Ongoing")]
        assert await listed(producer_id_filters=[idle.producer_id]) == [("idle", "Empty")]
        assert await listed(transactional_id_pattern="orders-.*") == [("orders-1", "Ongoing")]
        assert await listed(duration_filter=60_000) == []
        bad = await one.ask(ListTransactionsRequest(transactional_id_pattern="("), ListTransactionsResponse)
        assert bad.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
        odd = await one.ask(ListTransactionsRequest(state_filters=["Odd"]), ListTransactionsResponse)
        assert odd.unknown_state_filters == ["Odd"]

        answer = await one.ask(
            DescribeTransactionsRequest(transactional_ids=["orders-1", "nobody"]),
            DescribeTransactionsResponse,
        )
        found, missing = answer.transaction_states
        assert (found.transaction_state, found.transaction_timeout_ms) == ("Ongoing", 30_000)
        assert (found.producer_id, found.producer_epoch) == (client.producer_id, client.epoch)
        assert [(each.topic, each.partitions) for each in found.topics] == [("t", [1])]
        assert missing.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND

        producers = await one.ask(
            DescribeProducersRequest(topics=[TopicRequest(name="t", partition_indexes=[1])]),
            DescribeProducersResponse,
        )
        active = producers.topics[0].partitions[0].active_producers[0]
        assert (active.producer_id, active.current_txn_start_offset) == (client.producer_id, 0)

    run(tmp_path, story)


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"timeout_ms": 100_000_000}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ({"producer_id": 5}, ErrorCode.INVALID_REQUEST),
    ],
)
def test_what_is_not_allowed_is_refused_by_name(
    tmp_path: Path, asked: dict[str, object], code: ErrorCode
) -> None:
    """T2: time-outs past the maximum, half an identity."""

    async def story(one: Speaker) -> None:
        assert await Client(one).init(**asked) is code  # type: ignore[arg-type]

    run(tmp_path, story)


def test_transactional_ids_are_bounded(tmp_path: Path) -> None:
    """T2: a flood of them is refused, those that are there go on."""

    async def story(one: Speaker) -> None:
        first = Client(one, "a")
        assert await first.init() is ErrorCode.NONE
        assert await Client(one, "b").init() is ErrorCode.POLICY_VIOLATION
        assert await Client(one, "b" * 2000).init() is ErrorCode.INVALID_REQUEST
        assert await first.init() is ErrorCode.NONE

    run(tmp_path, story, transactional_ids_max=1)


def test_the_end_of_what_is_committed_is_told_by_list_offsets(tmp_path: Path) -> None:
    """T2: latest at read_committed is the last stable offset; by time nothing past it is found."""

    async def story(one: Speaker) -> None:
        client = Client(one)
        await client.init()
        await client.produce(count=3)

        async def ask(timestamp: int, isolation: int) -> int:
            part = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
            request = ListOffsetsRequest(
                isolation_level=isolation, topics=[ListOffsetsTopic(name="t", partitions=[part])]
            )
            answer = await one.ask(request, ListOffsetsResponse)
            return answer.topics[0].partitions[0].offset

        assert [await ask(-1, 0), await ask(-1, READ_COMMITTED)] == [3, 0]
        assert [await ask(0, 0), await ask(0, READ_COMMITTED)] == [0, -1]

    run(tmp_path, story)


def test_the_coordinator_of_a_transactional_id_is_found(tmp_path: Path) -> None:
    """T2: FindCoordinator with key type 1; an empty id has none."""

    async def story(one: Speaker) -> None:
        answer = await one.ask(
            FindCoordinatorRequest(key_type=1, coordinator_keys=["x", ""]), FindCoordinatorResponse
        )
        assert [each.error_code for each in answer.coordinators] == [0, ErrorCode.INVALID_REQUEST]

    run(tmp_path, story)
