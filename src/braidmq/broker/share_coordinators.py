"""Share coordinators as they are asked, by whoever leads partitions: those of this broker, those of others.

Both answer key by key, because the keys of one question may belong to several shards, and some of them may
have moved. What they say of a key is its answer or an ApiError.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol, TypeVar

from braidmq.broker.shards import Shards
from braidmq.broker.share_coordinator import NewState, ShareCoordinator, StateChange, StateSummary
from braidmq.broker.share_records import SharePartitionKey, StoredWindow
from braidmq.wire.errors import ApiError, ErrorCode

Key = SharePartitionKey
A = TypeVar("A")
R = TypeVar("R")


class RemoteCoordinators(Protocol):
    """Share coordinators on other brokers. ApiError, retriable, if one does not answer."""

    async def initialize(self, node_id: int, asked: Mapping[Key, NewState]) -> dict[Key, ApiError | None]: ...

    async def read(
        self, node_id: int, asked: Mapping[Key, int]
    ) -> dict[Key, StoredWindow | ApiError | None]: ...

    async def write(self, node_id: int, asked: Mapping[Key, StateChange]) -> dict[Key, ApiError | None]: ...

    async def delete(self, node_id: int, asked: Mapping[Key, None]) -> dict[Key, ApiError | None]: ...

    async def summarize(
        self, node_id: int, asked: Mapping[Key, None]
    ) -> dict[Key, StateSummary | ApiError | None]: ...

    async def of_group(self, node_id: int, group_id: str) -> dict[Key, StateSummary]: ...


class LocalCoordinators:
    """The shards led here, asked as a remote broker is."""

    def __init__(self, shards: Shards[ShareCoordinator]) -> None:
        self._shards = shards

    async def initialize(self, asked: Mapping[Key, NewState]) -> dict[Key, ApiError | None]:
        async def made(shard: ShareCoordinator, part: Mapping[Key, NewState]) -> dict[Key, ApiError | None]:
            taken = shard.initialize(part)
            if taken.durable_at is not None:
                await shard.durable(taken.durable_at)
            return {key: taken.refused.get(key) for key in part}

        return await self._each(asked, made)

    async def read(self, asked: Mapping[Key, int]) -> dict[Key, StoredWindow | ApiError | None]:
        return await self._each(asked, ShareCoordinator.read)

    async def write(self, asked: Mapping[Key, StateChange]) -> dict[Key, ApiError | None]:
        async def written(
            shard: ShareCoordinator, part: Mapping[Key, StateChange]
        ) -> dict[Key, ApiError | None]:
            taken = shard.write(part)
            if taken.durable_at is not None:
                await shard.durable(taken.durable_at)
            return {key: taken.refused.get(key) for key in part}

        return await self._each(asked, written)

    async def delete(self, asked: Mapping[Key, None]) -> dict[Key, ApiError | None]:
        async def deleted(shard: ShareCoordinator, part: Mapping[Key, None]) -> dict[Key, ApiError | None]:
            shard.delete(part)
            await shard.settled()
            return dict.fromkeys(part)

        return await self._each(asked, deleted)

    async def summarize(self, asked: Mapping[Key, None]) -> dict[Key, StateSummary | ApiError | None]:
        return await self._each(asked, ShareCoordinator.summarize)

    async def of_group(self, group_id: str) -> dict[Key, StateSummary]:
        """What is kept here for a group. ApiError while that is not known."""
        if self._shards.is_loading:
            raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "delivery states are being loaded")
        found: dict[Key, StateSummary] = {}
        for shard in self._shards:
            for key, summary in (await shard.summarize(shard.of_group(group_id))).items():
                if summary is not None:
                    found[key] = summary
        return found

    async def _each(
        self,
        asked: Mapping[Key, A],
        ask: Callable[[ShareCoordinator, Mapping[Key, A]], Awaitable[Mapping[Key, R | ApiError | None]]],
    ) -> dict[Key, R | ApiError | None]:
        """Asks every shard for its keys; an error of one is that of its keys."""
        answers: dict[Key, R | ApiError | None] = {}
        of_shard: dict[ShareCoordinator, dict[Key, A]] = {}
        for key, what in asked.items():
            try:
                of_shard.setdefault(self._shards.of(key.coordinator_key), {})[key] = what
            except ApiError as error:
                answers[key] = error
        for shard, part in of_shard.items():
            try:
                answers.update(await ask(shard, part))
            except ApiError as error:
                answers.update(dict.fromkeys(part, error))
        return answers
