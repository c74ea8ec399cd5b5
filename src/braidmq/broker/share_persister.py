"""Where the leader of a partition keeps its windows: at the share coordinator, on this broker or another.

The shard of `__share_group_state` that a window belongs to is often led by another broker. If it is led here,
a change is an append and nothing more, all windows of a request in one. If not, changes go to the broker that
leads it: one round at a time to each broker, and what changes meanwhile goes with the next, joined. A change
whose outcome is not known is followed by one that says everything, so it does not matter whether it counted.

Questions are repeated while a coordinator is not there, is being loaded, or has moved, for `PATIENCE_S` at
most; then they fail with COORDINATOR_NOT_AVAILABLE. What a window has not got rid of by then stays in it, and
goes with its next change.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import TypeVar

from braidmq.broker.shards import NOBODY, Shards
from braidmq.broker.share_coordinator import (
    FIRST_EPOCH,
    NewState,
    ShareCoordinator,
    StateChange,
    StateSummary,
)
from braidmq.broker.share_coordinators import LocalCoordinators, RemoteCoordinators
from braidmq.broker.share_partition import SharePartition
from braidmq.broker.share_records import SharePartitionKey, StoredWindow
from braidmq.cluster.image import Delta
from braidmq.wire.errors import ApiError, ErrorCode

log = logging.getLogger("braid.share")

PATIENCE_S = 5.0
PAUSE_S = 0.1
ROUND_PARTITIONS_MAX = 1000
ALTER_TRIES = 5

RETRIABLE = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        # This broker has registered again and does not know it yet: the next call proves who it is anew.
        ErrorCode.STALE_BROKER_EPOCH,
    }
)
FENCED = frozenset({ErrorCode.FENCED_STATE_EPOCH, ErrorCode.FENCED_LEADER_EPOCH})

Key = SharePartitionKey
A = TypeVar("A")
R = TypeVar("R")


class Saving:
    """Changes on their way to disk."""

    __slots__ = ("_local", "_remote", "refused")

    def __init__(self) -> None:
        self.refused: dict[Key, ApiError] = {}
        self._local: list[tuple[ShareCoordinator, int, list[SharePartition]]] = []
        self._remote: dict[Key, asyncio.Future[ApiError | None]] = {}

    @property
    def is_empty(self) -> bool:
        return not (self.refused or self._local or self._remote)

    def local(self, shard: ShareCoordinator, durable_at: int, parts: list[SharePartition]) -> None:
        self._local.append((shard, durable_at, parts))

    def remote(self, key: Key, outcome: asyncio.Future[ApiError | None]) -> None:
        self._remote[key] = outcome

    async def settled(self) -> dict[Key, ApiError]:
        """Those that were not written, once all the others are durable."""
        for shard, durable_at, parts in self._local:
            try:
                await shard.durable(durable_at)
            except ApiError as error:
                # Nobody knows whether it counts: the next change has to say everything.
                for part in parts:
                    part.rewrite()
                    self.refused[part.key] = error
        for key, outcome in self._remote.items():
            error_of = await asyncio.shield(outcome)
            if error_of is not None:
                self.refused[key] = error_of
        return self.refused


class _Unsaved:
    """A window with changes that wait for their round."""

    __slots__ = ("deadline_s", "outcome", "part")

    def __init__(self, part: SharePartition, outcome: asyncio.Future[ApiError | None], deadline_s: float):
        self.part = part
        self.outcome = outcome
        self.deadline_s = deadline_s


class SharePersister:
    """Reads and writes the states of windows, wherever they are kept."""

    def __init__(self, shards: Shards[ShareCoordinator], node_id: int) -> None:
        self._shards = shards
        self._node_id = node_id
        self.local = LocalCoordinators(shards)
        self.remote: RemoteCoordinators | None = None
        """Set by who knows how to reach other brokers."""
        self.on_fenced: Callable[[SharePartition], None] = lambda _: None
        self._loop = asyncio.get_running_loop()
        self._unsaved: dict[Key, _Unsaved] = {}
        self._rounds: dict[int, asyncio.Task[None]] = {}
        self._in_round: dict[Key, None] = {}
        self._due: asyncio.Handle | None = None
        self._stopped = False

    async def ensure(self) -> None:
        """Makes the topic of states if it is not there yet."""
        await self._shards.ensure()

    def stop(self) -> None:
        """Begins no more rounds; who waits for one hears so."""
        self._stopped = True
        if self._due is not None:
            self._due.cancel()
        for task in self._rounds.values():
            task.cancel()
        stopping = ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the broker is stopping")
        for unsaved in self._unsaved.values():
            _settle(unsaved.outcome, stopping)
        self._unsaved.clear()

    # -- questions ------------------------------------------------------------------------------

    async def read(self, asked: Mapping[Key, int]) -> dict[Key, StoredWindow | ApiError | None]:
        """The states, for leaders of these epochs; None where there is none yet."""
        remote = self.remote
        return await self._ask(asked, self.local.read, remote.read if remote is not None else None)

    async def initialize(self, asked: Mapping[Key, NewState]) -> dict[Key, ApiError | None]:
        remote = self.remote
        return await self._ask(asked, self.local.initialize, remote.initialize if remote else None)

    async def begin(self, starts: Mapping[Key, int]) -> dict[Key, ApiError | None]:
        """Makes states where there are none; where somebody was faster, theirs stays."""
        made = await self.initialize({key: NewState(FIRST_EPOCH, start) for key, start in starts.items()})
        return {
            key: None if error is not None and error.code is ErrorCode.FENCED_STATE_EPOCH else error
            for key, error in made.items()
        }

    async def move(self, key: Key, offset: int) -> None:
        """Lets a group begin at `offset`, whatever it has settled. ApiError if that cannot be written."""
        for _ in range(ALTER_TRIES):
            found = (await self.summarize([key]))[key]
            if isinstance(found, ApiError):
                raise found
            epoch = FIRST_EPOCH if found is None else found.state_epoch + 1
            refusal = (await self.initialize({key: NewState(epoch, offset)}))[key]
            if refusal is None:
                return
            if refusal.code is not ErrorCode.FENCED_STATE_EPOCH:
                raise refusal
        raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "others are changing the same offsets; try again")

    async def delete(self, keys: Iterable[Key]) -> dict[Key, ApiError | None]:
        remote = self.remote
        return await self._ask(dict.fromkeys(keys), self.local.delete, remote.delete if remote else None)

    async def summarize(self, keys: Iterable[Key]) -> dict[Key, StateSummary | ApiError | None]:
        remote = self.remote
        asked = dict.fromkeys(keys)
        return await self._ask(asked, self.local.summarize, remote.summarize if remote else None)

    async def of_group(self, group_id: str) -> dict[Key, StateSummary]:
        """Everything that is kept for a group. ApiError if a broker that may keep some does not answer."""
        found = await self.local.of_group(group_id)
        for node_id in self._shards.leaders():
            if node_id != self._node_id:
                if self.remote is None or node_id == NOBODY:
                    raise _nobody()
                found.update(await self.remote.of_group(node_id, group_id))
        return found

    def groups_kept_here(self) -> dict[str, None]:
        """Groups of which this broker keeps some state."""
        return {key.group_id: None for shard in self._shards for key in shard}

    # -- deleted topics -------------------------------------------------------------------------

    def follow(self, delta: Delta) -> None:
        """Forgets what is kept here for topics that were deleted, by whichever broker."""
        for topic_id in delta.deleted:
            for shard in self._shards:
                try:
                    shard.forget_topic(topic_id)
                except ApiError as error:
                    # It is tried again when the shard is loaded the next time.
                    log.error("cannot forget the delivery state of a deleted topic: %s", error)

    async def forget_topic(self, topic_id: bytes) -> None:
        """Forgets what is kept here for a topic; on disk on return."""
        for shard in self._shards:
            shard.forget_topic(topic_id)
            await shard.settled()

    async def _ask(
        self,
        asked: Mapping[Key, A],
        local: Callable[[Mapping[Key, A]], Awaitable[dict[Key, R | ApiError | None]]],
        remote: Callable[[int, Mapping[Key, A]], Awaitable[dict[Key, R | ApiError | None]]] | None,
    ) -> dict[Key, R | ApiError | None]:
        answers: dict[Key, R | ApiError | None] = {}
        left = dict(asked)
        until_s = self._loop.time() + PATIENCE_S
        while left:
            answers.update(await self._ask_once(left, local, remote))
            left = {key: what for key, what in left.items() if _is_retriable(answers[key])}
            if not left or self._stopped or self._loop.time() >= until_s:
                break
            await asyncio.sleep(PAUSE_S)
        return answers

    async def _ask_once(
        self,
        asked: Mapping[Key, A],
        local: Callable[[Mapping[Key, A]], Awaitable[dict[Key, R | ApiError | None]]],
        remote: Callable[[int, Mapping[Key, A]], Awaitable[dict[Key, R | ApiError | None]]] | None,
    ) -> dict[Key, R | ApiError | None]:
        answers: dict[Key, R | ApiError | None] = {}
        of_node: dict[int, dict[Key, A]] = {}
        for key, what in asked.items():
            of_node.setdefault(self._leader_of(key.coordinator_key), {})[key] = what
        for node_id, part in of_node.items():
            if node_id == self._node_id:
                answers.update(await local(part))
                continue
            unavailable: R | ApiError | None = _nobody()
            answers.update(dict.fromkeys(part, unavailable))
            if node_id != NOBODY and remote is not None:
                try:
                    answers.update(await remote(node_id, part))
                except ApiError as error:
                    answers.update(dict.fromkeys(part, error))
        return answers

    def _leader_of(self, coordinator_key: str) -> int:
        return self._shards.leader_of(coordinator_key)

    # -- changes --------------------------------------------------------------------------------

    def write(self, parts: Iterable[SharePartition]) -> Saving:
        """Begins to write what has changed. ApiError if the shard led here cannot be written."""
        saving = Saving()
        here: dict[ShareCoordinator, list[SharePartition]] = {}
        for part in parts:
            shard = self._here(part)
            if shard is None:
                saving.remote(part.key, self._write_later(part))
            else:
                here.setdefault(shard, []).append(part)
        for shard, changed in here.items():
            self._write_here(shard, changed, saving)
        return saving

    def _here(self, part: SharePartition) -> ShareCoordinator | None:
        """The shard of a window, if it can be written at once."""
        # Empty on a broker alone: the keys are not even hashed.
        if (self._in_round and part.key in self._in_round) or (self._unsaved and part.key in self._unsaved):
            return None  # changes before this one are still on their way
        try:
            return self._shards.of(part.coordinator_key)
        except ApiError:
            return None

    def _write_here(self, shard: ShareCoordinator, parts: list[SharePartition], saving: Saving) -> None:
        changes = {part.key: change for part in parts if (change := part.take_change()) is not None}
        if not changes:
            return
        try:
            taken = shard.write(changes)
        except ApiError:
            for part in parts:
                part.rewrite()
            raise
        saving.refused.update(taken.refused)
        if taken.durable_at is not None:
            refused = taken.refused
            written = [part for part in parts if part.key not in refused] if refused else parts
            saving.local(shard, taken.durable_at, written)
        for part in parts if taken.refused else ():
            if part.key in taken.refused:
                self._refused(part, taken.refused[part.key])

    def _write_later(self, part: SharePartition) -> asyncio.Future[ApiError | None]:
        unsaved = self._unsaved.get(part.key)
        if unsaved is None or unsaved.part is not part:
            if unsaved is not None:
                _settle(unsaved.outcome, _nobody())
            outcome: asyncio.Future[ApiError | None] = self._loop.create_future()
            unsaved = _Unsaved(part, outcome, self._loop.time() + PATIENCE_S)
            if self._stopped:
                _settle(outcome, _nobody())
                return outcome
            self._unsaved[part.key] = unsaved
            self._begin_rounds_soon(0)
        return unsaved.outcome

    def _begin_rounds_soon(self, pause_s: float) -> None:
        if self._due is not None and (pause_s > 0 or not isinstance(self._due, asyncio.TimerHandle)):
            return
        if self._due is not None:
            self._due.cancel()
        if pause_s > 0:
            self._due = self._loop.call_later(pause_s, self._begin_rounds)
        else:
            self._due = self._loop.call_soon(self._begin_rounds)

    def _begin_rounds(self) -> None:
        """Sends to every broker that owes no answer what waits for it."""
        self._due = None
        of_node: dict[int, list[_Unsaved]] = {}
        for key, unsaved in self._unsaved.items():
            if key not in self._in_round:
                node_id = self._leader_of(unsaved.part.coordinator_key)
                of_node.setdefault(node_id, []).append(unsaved)
        for node_id, waiting in of_node.items():
            if node_id == NOBODY:
                self._try_again(waiting, _nobody())
            elif node_id not in self._rounds:
                some = waiting[:ROUND_PARTITIONS_MAX]
                task = self._loop.create_task(self._round(node_id, some), name=f"share-state-{node_id}")
                self._rounds[node_id] = task
                for unsaved in some:
                    del self._unsaved[unsaved.part.key]
                    self._in_round[unsaved.part.key] = None

    async def _round(self, node_id: int, sent: list[_Unsaved]) -> None:
        refusals: Mapping[Key, ApiError | None] = {}
        failure = _nobody()
        try:
            changes = {one.part.key: change for one in sent if (change := one.part.take_change()) is not None}
            refusals = dict.fromkeys(one.part.key for one in sent)
            if changes:
                refusals = {**refusals, **dict.fromkeys(changes, failure)}
                refusals = {**refusals, **await self._send(node_id, changes)}
        except ApiError as error:
            failure = error
            refusals = dict.fromkeys((one.part.key for one in sent), error)
        except Exception:
            log.exception("cannot write delivery state to broker %d", node_id)
            refusals = dict.fromkeys((one.part.key for one in sent), failure)
        finally:
            del self._rounds[node_id]
            for one in sent:
                self._in_round.pop(one.part.key, None)
            self._end_round(sent, refusals)

    async def _send(self, node_id: int, changes: Mapping[Key, StateChange]) -> dict[Key, ApiError | None]:
        if node_id == self._node_id:
            return await self.local.write(changes)
        if self.remote is None:
            raise _nobody()
        return await self.remote.write(node_id, changes)

    def _end_round(self, sent: list[_Unsaved], refusals: Mapping[Key, ApiError | None]) -> None:
        again = []
        for one in sent:
            refusal = refusals.get(one.part.key, _nobody())
            if _is_retriable(refusal) and not self._stopped:
                one.part.rewrite()
                again.append(one)
                continue
            if refusal is not None:
                self._refused(one.part, refusal)
            _settle(one.outcome, refusal)
        if again:
            self._try_again(again, _nobody())
        elif self._unsaved and not self._stopped:
            self._begin_rounds_soon(0)

    def _try_again(self, waiting: list[_Unsaved], refusal: ApiError) -> None:
        now_s = self._loop.time()
        for one in waiting:
            newer = self._unsaved.get(one.part.key)
            if now_s >= one.deadline_s:
                if newer is one:
                    del self._unsaved[one.part.key]
                _settle(one.outcome, refusal)
            elif newer is not None and newer is not one:
                # Somebody waits for later changes of the same window: whatever comes of those is the answer.
                newer.outcome.add_done_callback(partial(_follow, one.outcome))
            else:
                self._unsaved[one.part.key] = one
        if self._unsaved:
            self._begin_rounds_soon(PAUSE_S)

    def _refused(self, part: SharePartition, refusal: ApiError) -> None:
        if refusal.code in FENCED:
            self.on_fenced(part)
        else:
            part.rewrite()


def _nobody() -> ApiError:
    return ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the share coordinator does not answer")


def _is_retriable(answer: object) -> bool:
    return isinstance(answer, ApiError) and answer.code in RETRIABLE


def _settle(outcome: asyncio.Future[ApiError | None], refusal: ApiError | None) -> None:
    if not outcome.done():
        outcome.set_result(refusal)


def _follow(outcome: asyncio.Future[ApiError | None], done: asyncio.Future[ApiError | None]) -> None:
    _settle(outcome, _nobody() if done.cancelled() else done.result())
