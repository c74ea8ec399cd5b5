"""A coordinator of groups comes and goes with its partition: what it knows, and what those who wait hear."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from braidmq.broker.broker import Broker
from braidmq.broker.group_coordinator import Committer, GroupCoordinator
from braidmq.group.events import Join, MemberProtocol
from braidmq.group.offsets import Committed
from braidmq.log.transactions import EndMarker, MarkerType
from braidmq.wire.errors import ApiError, ErrorCode
from braidmq.wire.records import parse_header
from unit.embedded import embedded
from unit.held_disk import HeldDisk

OUTSIDER = Committer("", None, -1, 9)
TOPIC = "__consumer_offsets"


def at(offset: int) -> Committed:
    return Committed(offset, -1, "", 0)


async def reload(broker: Broker) -> None:
    """As if the broker had lost the partition and got it back."""
    shards = broker.groups
    for index in list(shards._led):
        shards._resign(index)
    shards._compare()
    await shards.loaded()


def test_groups_are_read_again_from_their_partition(tmp_path: Path) -> None:
    """C6 N4: a coordinator that comes back knows what was committed, and no more."""

    async def story() -> None:
        async with embedded(tmp_path) as broker:
            old = await broker.groups.reach("g")
            await old.commit("g", OUTSIDER, [(("t", 0), at(5)), (("t", 1), at(6))])
            await old.delete_offsets("g", [("t", 1)])
            await reload(broker)
            new = broker.groups.of("g")
            assert new is not old
            assert new.groups.offsets("g").partitions() == [("t", 0)]
            with pytest.raises(ApiError) as refused:
                await old.commit("g", OUTSIDER, [(("t", 0), at(9))])
            assert refused.value.code is ErrorCode.NOT_COORDINATOR

    asyncio.run(story())


def test_a_broker_alone_never_says_that_its_first_coordinator_is_being_loaded(tmp_path: Path) -> None:
    """C6 N4: who asks while the topic of groups is made hears that there are none; later it is as it is."""

    async def story() -> None:
        async with embedded(tmp_path) as broker:
            making = asyncio.ensure_future(broker.groups.reach("g"))
            while not making.done():
                assert broker.groups.of("g").groups.offsets("g").partitions() == []
                await asyncio.sleep(0)
            for index in list(broker.groups._led):
                broker.groups._resign(index)
            broker.groups._compare()
            with pytest.raises(ApiError) as refused:
                broker.groups.of("g")
            assert refused.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    asyncio.run(story())


def test_a_member_that_waits_for_others_hears_that_its_coordinator_has_resigned(tmp_path: Path) -> None:
    """C2 N4: it asks for the new one instead of waiting for the end of the rebalance."""

    async def story() -> None:
        async with embedded(tmp_path, group_initial_rebalance_delay_ms=60_000) as broker:
            coordinator = await broker.groups.reach("g")
            protocols = (MemberProtocol("range", b""),)
            join = Join("", "c", "/h", 10_000, 60_000, "consumer", protocols, version=3)
            waiting = asyncio.ensure_future(coordinator.join("g", join))
            await asyncio.sleep(0)
            assert not waiting.done()
            await reload(broker)
            assert (await waiting).code is ErrorCode.NOT_COORDINATOR

    asyncio.run(story())


def test_a_commit_that_waits_for_the_disk_is_not_confirmed_by_one_who_resigns(tmp_path: Path) -> None:
    """C6 N4: whether it counts is for the next coordinator to say."""
    disk = HeldDisk()

    async def story() -> None:
        async with embedded(tmp_path, disk=disk) as broker:
            coordinator = await broker.groups.reach("g")
            await coordinator.commit("g", OUTSIDER, [(("t", 0), at(1))])
            disk.hold(TOPIC)
            waiting = asyncio.ensure_future(coordinator.commit("g", OUTSIDER, [(("t", 0), at(2))]))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            reloading = asyncio.ensure_future(reload(broker))
            with pytest.raises(ApiError) as refused:
                await waiting
            assert refused.value.code is ErrorCode.NOT_COORDINATOR
            with pytest.raises(ApiError) as loading:
                broker.groups.of("g")
            assert loading.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            disk.let_go()
            await reloading
            found = broker.groups.of("g").groups.offsets("g").find("t", 0)
            assert found is not None
            assert found.offset == 2

    asyncio.run(story())


@pytest.mark.parametrize(("outcome", "offset"), [(MarkerType.COMMIT, 7), (MarkerType.ABORT, 1)])
@pytest.mark.parametrize("reloads", [False, True])
def test_the_marker_in_the_partition_decides_offsets_whichever_broker_sent_it(
    tmp_path: Path, outcome: MarkerType, offset: int, reloads: bool
) -> None:
    """T2 N4: also when the shard was loaded between the offsets and the marker."""

    async def story() -> None:
        async with embedded(tmp_path) as broker:
            coordinator = await broker.groups.reach("g")
            await coordinator.commit("g", OUTSIDER, [(("t", 0), at(1))])
            partition = broker.partition(TOPIC, 0)
            changes = [(("t", 0), at(7))]
            batch = coordinator._partition.transactional_batch(
                [_record("g", *where, committed) for where, committed in changes], 9, 0
            )
            guard = partition.begin_verification(parse_header(batch))
            entered: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
            coordinator.commit_in_transaction("g", batch, guard, changes, entered.set_result)
            assert await entered is ErrorCode.NONE
            if reloads:
                await reload(broker)
            table = broker.groups.of("g").groups.offsets("g")
            assert table.is_undecided("t", 0)
            partition.append_marker(EndMarker(9, 0, outcome, 0), 0)
            assert table.is_undecided("t", 0), "the marker is not on disk yet"
            await partition.settled()
            assert not table.is_undecided("t", 0)
            found = table.find("t", 0)
            assert found is not None
            assert found.offset == offset

    asyncio.run(story())


def _record(group_id: str, topic: str, partition: int, committed: Committed) -> tuple[bytes, bytes | None]:
    from braidmq.group.records import offset_record

    return offset_record(group_id, topic, partition, committed)


def test_commits_for_a_recreated_topic_wait_until_the_old_one_is_forgotten(tmp_path: Path) -> None:
    """C6 N3: they are not taken for offsets of the topic that was deleted."""
    disk = HeldDisk()

    async def story() -> None:
        async with embedded(tmp_path, disk=disk) as broker:
            coordinator = await broker.groups.reach("g")
            await coordinator.commit("g", OUTSIDER, [(("t", 0), at(5))])
            disk.hold(TOPIC)
            forgetting = asyncio.ensure_future(coordinator.forget_topic("t"))
            await asyncio.sleep(0)
            again = asyncio.ensure_future(coordinator.commit("g", OUTSIDER, [(("t", 0), at(1))]))
            for _ in range(20):
                await asyncio.sleep(0)
            assert (forgetting.done(), again.done()) == (False, False)
            disk.let_go()
            await asyncio.gather(forgetting, again)
            await reload(broker)
            found = broker.groups.of("g").groups.offsets("g").find("t", 0)
            assert found is not None
            assert found.offset == 1

    asyncio.run(story())


def test_limits_are_those_of_the_broker_not_of_a_shard(tmp_path: Path) -> None:
    """C6 N4: many shards do not keep many times as much."""

    async def story() -> None:
        options = {"offsets_topic_num_partitions": 4, "group_offsets_bytes_max": 1_048_576}
        async with embedded(tmp_path, **options) as broker:
            await broker.groups.ensure()
            refused: ErrorCode | None = None
            for number in range(40):
                name = f"g{number}"
                large = [(("t", index), Committed(1, -1, "x" * 4000, 0)) for index in range(10)]
                try:
                    await broker.groups.of(name).commit(name, OUTSIDER, large)
                except ApiError as error:
                    refused = error.code
                    break
            assert refused is ErrorCode.POLICY_VIOLATION
            assert number < 26
            used = [len(shard.groups) for shard in broker.groups]
            assert len(used) == 4
            assert max(used) < number

    asyncio.run(story())


def test_a_broker_alone_has_no_groups_before_its_topic_is_there(tmp_path: Path) -> None:
    """C6: to ask for a group makes nothing."""

    async def story() -> None:
        async with embedded(tmp_path) as broker:
            assert broker.groups.find("g") is None
            code = broker.groups.of("g").heartbeat("g", "m", None, 1)
            assert code is ErrorCode.UNKNOWN_MEMBER_ID
            assert not broker.groups.exists
            assert list(broker.groups.all_groups()) == []

    asyncio.run(story())


def test_a_shard_that_cannot_write_does_not_keep_the_others_from_forgetting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C6 N4: every shard has its turn, whatever becomes of the one before it."""

    async def story() -> None:
        async with embedded(tmp_path, offsets_topic_num_partitions=3) as broker:
            await broker.groups.reach("g")
            asked: list[object] = []

            async def refuse(shard: GroupCoordinator) -> None:
                asked.append(shard)
                raise ApiError(ErrorCode.NOT_COORDINATOR, "led elsewhere")

            monkeypatch.setattr(GroupCoordinator, "expire", refuse)
            await broker.groups.expire()
            assert asked == list(broker.groups)
            assert len(asked) == 3

    asyncio.run(story())
