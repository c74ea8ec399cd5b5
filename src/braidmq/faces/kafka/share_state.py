"""Delivery state of share groups between brokers (KIP-932): the verbs 83 to 87, served and asked.

Only brokers of the cluster may call them. A broker answers for the shards of `__share_group_state` that it
leads; for a key of another it says NOT_COORDINATOR.

A write holds the batches that have changed. A leader that is not sure what the coordinator has sends all of
them, and with them how many offsets are settled: where Braid reads that count, the batches take the place of
what was written before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from braidmq.broker.share_coordinator import NewState, StateChange, StateSummary
from braidmq.broker.share_records import SharePartitionKey, StoredWindow
from braidmq.delivery import window_codec
from braidmq.delivery.status import SETTLED, DeliveryLimits, DeliveryState
from braidmq.delivery.window import DeliveryWindow
from braidmq.delivery.window_codec import BadState, StoredRun
from braidmq.faces.kafka.peer_proof import require_peer
from braidmq.faces.kafka.request_context import RequestContext
from braidmq.net.peer import Peers, PeerUnavailable
from braidmq.wire.errors import ApiError, ErrorCode
from braidmq.wire.messages import share_state as wire
from braidmq.wire.schema import Message

if TYPE_CHECKING:
    from braidmq.faces.kafka.face import KafkaFace

Key = SharePartitionKey
V = TypeVar("V")
T = TypeVar("T", bound=Message)
P = TypeVar("P", bound=Message)
_NO_STATE = -1
_CHANGED_ONLY = -1
_UNLIMITED = DeliveryLimits(in_flight_max=2**31 - 1, deliveries_max=2**31 - 1)
_STATES = {int(state): state for state in DeliveryState}


# -- served -------------------------------------------------------------------------------------


async def initialize_share_group_state(
    face: KafkaFace, request: wire.InitializeShareGroupStateRequest, context: RequestContext
) -> wire.InitializeShareGroupStateResponse:
    asked = {key: NewState(each.state_epoch, each.start_offset) for key, each in _partitions(request)}
    refused = _refused(face, context, asked)
    if refused is None:
        refused = await face.broker.share_persister.local.initialize(asked)
    return wire.InitializeShareGroupStateResponse(results=_results(refused))


async def read_share_group_state(
    face: KafkaFace, request: wire.ReadShareGroupStateRequest, context: RequestContext
) -> wire.ReadShareGroupStateResponse:
    asked = {key: each.leader_epoch for key, each in _partitions(request)}
    found: Mapping[Key, StoredWindow | ApiError | None] | None = _refused(face, context, asked)
    if found is None:
        found = await face.broker.share_persister.local.read(asked)
    return wire.ReadShareGroupStateResponse(
        results=_topics(wire.ReadStateTopicResult, {key: _state(key, one) for key, one in found.items()})
    )


async def write_share_group_state(
    face: KafkaFace, request: wire.WriteShareGroupStateRequest, context: RequestContext
) -> wire.WriteShareGroupStateResponse:
    named = _partitions(request)
    refused = _refused(face, context, [key for key, _ in named])
    if refused is not None:
        return wire.WriteShareGroupStateResponse(results=_results(refused))
    asked: dict[Key, StateChange] = {}
    refused = {}
    for key, each in named:
        try:
            content = window_codec.encode(each.start_offset, _runs(each.start_offset, each.state_batches))
        except BadState as error:
            refused[key] = ApiError(ErrorCode.INVALID_REQUEST, str(error))
        else:
            asked[key] = StateChange(
                each.state_epoch, each.leader_epoch, content, is_whole=each.delivery_complete_count >= 0
            )
    refused.update(await face.broker.share_persister.local.write(asked))
    return wire.WriteShareGroupStateResponse(results=_results(refused))


async def delete_share_group_state(
    face: KafkaFace, request: wire.DeleteShareGroupStateRequest, context: RequestContext
) -> wire.DeleteShareGroupStateResponse:
    asked = dict.fromkeys(key for key, _ in _partitions(request))
    refused = _refused(face, context, asked)
    if refused is None:
        refused = await face.broker.share_persister.local.delete(asked)
    return wire.DeleteShareGroupStateResponse(results=_results(refused))


async def read_share_group_state_summary(
    face: KafkaFace, request: wire.ReadShareGroupStateSummaryRequest, context: RequestContext
) -> wire.ReadShareGroupStateSummaryResponse:
    """Where a group is on the partitions named; without any, on all of which the state is kept here."""
    asked = dict.fromkeys(key for key, _ in _partitions(request))
    local = face.broker.share_persister.local
    # Nothing would mean that nothing is kept here.
    whole = SharePartitionKey(request.group_id, bytes(16), -1)
    found: Mapping[Key, StateSummary | ApiError | None] | None = _refused(face, context, asked or (whole,))
    if found is None:
        try:
            found = await local.summarize(asked) if asked else await local.of_group(request.group_id)
        except ApiError as error:
            found = dict.fromkeys(asked or (whole,), error)
    return wire.ReadShareGroupStateSummaryResponse(
        results=_topics(wire.StateSummaryTopic, {key: _summary(key, one) for key, one in found.items()})
    )


def _partitions(request: Any) -> list[tuple[Key, Any]]:
    """What is asked for, key by key."""
    return [
        (SharePartitionKey(request.group_id, topic.topic_id, each.partition), each)
        for topic in request.topics
        for each in topic.partitions
    ]


def _refused(
    face: KafkaFace, context: RequestContext, asked: Iterable[Key]
) -> dict[Key, ApiError | None] | None:
    """The answer to somebody who is no broker of the cluster; None for those who are."""
    try:
        require_peer(face, context)
    except ApiError as error:
        return dict.fromkeys(asked, error)
    return None


def _runs(start_offset: int, batches: Iterable[wire.StateBatch]) -> list[StoredRun]:
    runs = []
    reached = start_offset
    for batch in batches:
        state = _STATES.get(batch.delivery_state)
        if state is None or state is DeliveryState.ACQUIRED or batch.delivery_count < 0:
            raise BadState(f"a state batch has state {batch.delivery_state}")
        if not reached <= batch.first_offset <= batch.last_offset:
            raise BadState(f"a state batch begins at {batch.first_offset}, before {reached}")
        reached = batch.last_offset + 1
        runs.append(StoredRun(batch.first_offset, batch.last_offset, state, batch.delivery_count))
    return runs


def _batches(runs: Iterable[StoredRun]) -> list[wire.StateBatch]:
    return [
        wire.StateBatch(
            first_offset=first, last_offset=last, delivery_state=int(state), delivery_count=deliveries
        )
        for first, last, state, deliveries in runs
    ]


def _results(refused: Mapping[Key, ApiError | None]) -> list[wire.StateTopicResult]:
    return _topics(
        wire.StateTopicResult,
        {
            key: wire.StatePartitionResult(partition=key.partition, **_error(error))
            for key, error in refused.items()
        },
    )


def _state(key: Key, found: StoredWindow | ApiError | None) -> wire.ReadStatePartitionResult:
    if isinstance(found, ApiError):
        return wire.ReadStatePartitionResult(partition=key.partition, start_offset=_NO_STATE, **_error(found))
    if found is None:
        return wire.ReadStatePartitionResult(partition=key.partition, start_offset=_NO_STATE)
    try:
        window = DeliveryWindow.restore(found.snapshot, found.deltas, _UNLIMITED, 0)
    except BadState as error:
        return _state(key, ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, f"the state cannot be read: {error}"))
    start_offset, runs = window_codec.decode(window.snapshot())
    return wire.ReadStatePartitionResult(
        partition=key.partition,
        state_epoch=found.state_epoch,
        start_offset=start_offset,
        state_batches=_batches(runs),
    )


def _summary(key: Key, found: StateSummary | ApiError | None) -> wire.StateSummary:
    if isinstance(found, StateSummary):
        return wire.StateSummary(
            partition=key.partition,
            state_epoch=found.state_epoch,
            leader_epoch=found.leader_epoch,
            start_offset=found.start_offset,
            delivery_complete_count=found.settled,
        )
    return wire.StateSummary(partition=key.partition, start_offset=_NO_STATE, **_error(found))


def _error(error: ApiError | None) -> dict[str, Any]:
    return {} if error is None else {"error_code": int(error.code), "error_message": error.message}


def _topics(topic_class: type[T], parts: Mapping[Key, Message]) -> list[T]:
    """Answers or questions of one group, topic by topic."""
    of_topic: dict[bytes, list[Message]] = {}
    for key, part in parts.items():
        of_topic.setdefault(key.topic_id, []).append(part)
    return [topic_class(topic_id=topic_id, partitions=each) for topic_id, each in of_topic.items()]


# -- asked --------------------------------------------------------------------------------------


class PeerCoordinators:
    """Share coordinators on other brokers, asked over `Peers`: a request for each group."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers

    async def initialize(self, node_id: int, asked: Mapping[Key, NewState]) -> dict[Key, ApiError | None]:
        return await self._ask(
            node_id,
            asked,
            lambda group_id, part: wire.InitializeShareGroupStateRequest(
                group_id=group_id,
                topics=_topics(
                    wire.InitializeStateTopic,
                    {
                        key: wire.InitializeStatePartition(
                            partition=key.partition,
                            state_epoch=new.state_epoch,
                            start_offset=new.start_offset,
                        )
                        for key, new in part.items()
                    },
                ),
            ),
            _outcome,
        )

    async def read(self, node_id: int, asked: Mapping[Key, int]) -> dict[Key, StoredWindow | ApiError | None]:
        found = await self._ask(
            node_id,
            asked,
            lambda group_id, part: wire.ReadShareGroupStateRequest(
                group_id=group_id,
                topics=_topics(
                    wire.ReadStateTopic,
                    {
                        key: wire.ReadStatePartition(partition=key.partition, leader_epoch=epoch)
                        for key, epoch in part.items()
                    },
                ),
            ),
            _stored,
        )
        for key, one in found.items():
            if isinstance(one, StoredWindow):
                one.leader_epoch = asked[key]
        return found

    async def write(self, node_id: int, asked: Mapping[Key, StateChange]) -> dict[Key, ApiError | None]:
        return await self._ask(
            node_id,
            asked,
            lambda group_id, part: wire.WriteShareGroupStateRequest(
                group_id=group_id,
                topics=_topics(
                    wire.WriteStateTopic, {key: _written(key, change) for key, change in part.items()}
                ),
            ),
            _outcome,
        )

    async def delete(self, node_id: int, asked: Mapping[Key, None]) -> dict[Key, ApiError | None]:
        return await self._ask(
            node_id,
            asked,
            lambda group_id, part: wire.DeleteShareGroupStateRequest(
                group_id=group_id,
                topics=_topics(
                    wire.DeleteStateTopic,
                    {key: wire.DeleteStatePartition(partition=key.partition) for key in part},
                ),
            ),
            _outcome,
        )

    async def summarize(
        self, node_id: int, asked: Mapping[Key, None]
    ) -> dict[Key, StateSummary | ApiError | None]:
        return await self._ask(
            node_id,
            asked,
            lambda group_id, part: wire.ReadShareGroupStateSummaryRequest(
                group_id=group_id,
                topics=_topics(
                    wire.ReadStateTopic,
                    {key: wire.ReadStatePartition(partition=key.partition, leader_epoch=-1) for key in part},
                ),
            ),
            _summed_up,
        )

    async def of_group(self, node_id: int, group_id: str) -> dict[Key, StateSummary]:
        answer = await self._call(node_id, wire.ReadShareGroupStateSummaryRequest(group_id=group_id))
        found: dict[Key, StateSummary] = {}
        for key, part in _answered(group_id, answer):
            summary = _summed_up(part)
            if isinstance(summary, ApiError):
                raise summary
            if summary is not None:
                found[key] = summary
        return found

    async def _ask(
        self,
        node_id: int,
        asked: Mapping[Key, V],
        question: Callable[[str, Mapping[Key, V]], Message],
        read: Callable[[Any], Any],
    ) -> dict[Key, Any]:
        of_group: dict[str, dict[Key, V]] = {}
        for key, what in asked.items():
            of_group.setdefault(key.group_id, {})[key] = what
        answers: dict[Key, Any] = {}
        for group_id, part in of_group.items():
            missing = ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the answer says nothing about it")
            answers.update(dict.fromkeys(part, missing))
            try:
                answer = await self._call(node_id, question(group_id, part))
            except ApiError as error:
                answers.update(dict.fromkeys(part, error))
                continue
            answers.update((key, read(one)) for key, one in _answered(group_id, answer) if key in part)
        return answers

    async def _call(self, node_id: int, request: Message) -> Message:
        try:
            return await self._peers.call(node_id, request)
        except PeerUnavailable as error:
            raise ApiError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE, f"broker {node_id} does not answer: {error}"
            ) from None


def _answered(group_id: str, answer: Any) -> list[tuple[Key, Any]]:
    return [
        (SharePartitionKey(group_id, topic.topic_id, part.partition), part)
        for topic in answer.results
        for part in topic.partitions
    ]


def _outcome(part: Any) -> ApiError | None:
    if part.error_code == ErrorCode.NONE:
        return None
    return ApiError(_code(part.error_code), part.error_message or "")


def _stored(part: wire.ReadStatePartitionResult) -> StoredWindow | ApiError | None:
    if part.error_code != ErrorCode.NONE:
        return _outcome(part)
    if part.start_offset == _NO_STATE:
        return None
    try:
        content = window_codec.encode(part.start_offset, _runs(part.start_offset, part.state_batches))
    except BadState as error:
        return ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, f"the share coordinator answered nonsense: {error}")
    return StoredWindow(part.state_epoch, 0, content)


def _summed_up(part: wire.StateSummary) -> StateSummary | ApiError | None:
    if part.error_code != ErrorCode.NONE:
        return _outcome(part)
    if part.start_offset == _NO_STATE:
        return None
    return StateSummary(
        part.state_epoch, part.leader_epoch, part.start_offset, max(0, part.delivery_complete_count)
    )


def _written(key: Key, change: StateChange) -> wire.WriteStatePartition:
    start_offset, runs = window_codec.decode(change.content)
    return wire.WriteStatePartition(
        partition=key.partition,
        state_epoch=change.state_epoch,
        leader_epoch=change.leader_epoch,
        start_offset=start_offset,
        delivery_complete_count=sum(run.last - run.first + 1 for run in runs if run.state in SETTLED)
        if change.is_whole
        else _CHANGED_ONLY,
        state_batches=_batches(runs),
    )


def _code(number: int) -> ErrorCode:
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR
