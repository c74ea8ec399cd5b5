"""The way of a window's changes to a coordinator on another broker: rounds, retries, fences."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, cast

import pytest

from braidmq.broker import share_persister
from braidmq.broker.shards import NOBODY, Shards
from braidmq.broker.share_coordinator import ShareCoordinator, StateChange
from braidmq.broker.share_partition import SharePartition
from braidmq.broker.share_persister import SharePersister
from braidmq.broker.share_records import SharePartitionKey
from braidmq.wire.errors import ApiError, ErrorCode

HERE, THERE, ELSEWHERE = 1, 2, 3


class Map:
    """Nothing is led here; `leader` leads everything."""

    leader = THERE

    def of(self, key: str) -> ShareCoordinator:
        raise ApiError(ErrorCode.NOT_COORDINATOR, key)

    def leader_of(self, key: str) -> int:  # noqa: ARG002
        return self.leader


class Window:
    """A share partition of which only the changes matter: numbers that were noted."""

    def __init__(self, index: int) -> None:
        self.key = SharePartitionKey("g", b"t" * 16, index)
        self.coordinator_key = self.key.coordinator_key
        self.noted: list[int] = []
        self._taken = 0
        self._whole = False

    def note(self, number: int) -> Window:
        self.noted.append(number)
        return self

    def take_change(self) -> StateChange | None:
        whole, self._whole = self._whole, False
        changed = self.noted if whole else self.noted[self._taken :]
        self._taken = len(self.noted)
        return StateChange(0, 0, bytes(changed), whole) if changed else None

    def rewrite(self) -> None:
        self._whole = True


class Coordinators:
    """Other brokers; each write is answered as `answers` says, then with success."""

    def __init__(self) -> None:
        self.writes: list[tuple[int, dict[int, StateChange]]] = []
        self.kept: dict[int, list[int]] = {}
        self.answers: list[ErrorCode] = []
        self.loses_answers = False
        self.gate = asyncio.Event()
        self.gate.set()
        self.under_way = 0

    async def write(
        self, node_id: int, asked: Mapping[SharePartitionKey, StateChange]
    ) -> dict[SharePartitionKey, ApiError | None]:
        assert self.under_way == 0, "one round at a time"
        self.under_way += 1
        self.writes.append((node_id, {key.partition: change for key, change in asked.items()}))
        await self.gate.wait()
        self.under_way -= 1
        code = self.answers.pop(0) if self.answers else ErrorCode.NONE
        if code is ErrorCode.NONE or self.loses_answers:
            for key, change in asked.items():
                kept = self.kept.setdefault(key.partition, [])
                if change.is_whole:
                    kept.clear()
                kept += change.content
        error = None if code is ErrorCode.NONE else ApiError(code, "as the story says")
        return dict.fromkeys(asked, error)


def made(shards: Map, there: Coordinators) -> SharePersister:
    found = SharePersister(cast(Shards[ShareCoordinator], shards), HERE)
    found.remote = cast(Any, there)
    return found


async def saved(persister: SharePersister, *windows: Window) -> dict[int, ErrorCode]:
    refused = await persister.write(cast("list[SharePartition]", list(windows))).settled()
    return {key.partition: error.code for key, error in refused.items()}


def test_what_changes_while_a_round_is_under_way_goes_with_the_next() -> None:
    """N4 C1: one request at a time to each broker, however many members acknowledge."""

    async def story() -> None:
        there = Coordinators()
        persister = made(Map(), there)
        one, other = Window(0), Window(1)
        there.gate.clear()
        first = asyncio.ensure_future(saved(persister, one.note(1), other.note(1)))
        await asyncio.sleep(0.01)
        later = [asyncio.ensure_future(saved(persister, one.note(number))) for number in range(2, 50)]
        await asyncio.sleep(0.01)
        assert len(there.writes) == 1
        assert not first.done()
        there.gate.set()
        assert await asyncio.gather(first, *later) == [{}] * 49
        assert len(there.writes) == 2
        assert there.kept == {0: list(range(1, 50)), 1: [1]}

    asyncio.run(story())


@pytest.mark.parametrize("took_effect", [True, False])
def test_a_write_whose_outcome_is_not_known_is_followed_by_everything(took_effect: bool) -> None:
    """N4 C1: whether or not it counted, the state is right after the next one."""

    async def story() -> None:
        there = Coordinators()
        there.answers = [ErrorCode.NONE, ErrorCode.COORDINATOR_NOT_AVAILABLE]
        there.loses_answers = took_effect
        persister = made(Map(), there)
        window = Window(0)
        assert await saved(persister, window.note(1)) == {}
        assert await saved(persister, window.note(2)) == {}
        assert [change[0].is_whole for _, change in there.writes] == [False, False, True]
        assert there.kept == {0: [1, 2]}

    asyncio.run(story())


@pytest.mark.parametrize("refusal", [ErrorCode.NOT_COORDINATOR, ErrorCode.STALE_BROKER_EPOCH])
def test_changes_follow_a_coordinator_that_has_moved(refusal: ErrorCode) -> None:
    """N4 C1: NOT_COORDINATOR asks again who leads the shard; so does a broker that has registered again."""

    async def story() -> None:
        there, shards = Coordinators(), Map()
        there.answers = [refusal]
        persister = made(shards, there)
        saving = asyncio.ensure_future(saved(persister, Window(0).note(1)))
        await asyncio.sleep(0.01)
        shards.leader = ELSEWHERE
        assert await saving == {}
        assert [node_id for node_id, _ in there.writes] == [THERE, ELSEWHERE]

    asyncio.run(story())


def test_a_coordinator_that_stays_away_is_waited_for_only_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """N4 C1: who waits hears of it, and what was not written goes with the next change."""

    async def story() -> None:
        there, shards = Coordinators(), Map()
        shards.leader = NOBODY
        persister = made(shards, there)
        window = Window(0)
        assert await saved(persister, window.note(1)) == {0: ErrorCode.COORDINATOR_NOT_AVAILABLE}
        shards.leader = THERE
        assert await saved(persister, window.note(2)) == {}
        assert there.kept == {0: [1, 2]}

    monkeypatch.setattr(share_persister, "PATIENCE_S", 0.3)
    asyncio.run(story())


def test_a_fenced_write_is_not_repeated_and_drops_the_window() -> None:
    """N4 C1: another broker leads the partition, or the state was set anew."""

    async def story() -> None:
        there = Coordinators()
        persister = made(Map(), there)
        dropped: list[object] = []
        persister.on_fenced = dropped.append
        for code in (ErrorCode.FENCED_STATE_EPOCH, ErrorCode.FENCED_LEADER_EPOCH):
            there.answers = [code]
            window = Window(0)
            assert await saved(persister, window.note(1)) == {0: code}
            assert dropped.pop() is window
        assert len(there.writes) == 2

    asyncio.run(story())


def test_a_broker_that_stops_leaves_nobody_waiting() -> None:
    """N4 C1: those who wait for a round hear that it does not come."""

    async def story() -> None:
        there, shards = Coordinators(), Map()
        there.gate.clear()
        persister = made(shards, there)
        one, other = Window(0), Window(1)
        waiting = [asyncio.ensure_future(saved(persister, one.note(1)))]
        await asyncio.sleep(0.01)
        waiting.append(asyncio.ensure_future(saved(persister, other.note(1))))
        await asyncio.sleep(0)
        persister.stop()
        answers = await asyncio.wait_for(asyncio.gather(*waiting), 5)
        assert [list(one.values()) for one in answers] == [[ErrorCode.COORDINATOR_NOT_AVAILABLE]] * 2

    asyncio.run(story())
