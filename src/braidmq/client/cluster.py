"""Who leads what: the brokers and partitions as the cluster last described them, and a connection to each.

Routes are cached and never trusted: a broker that no longer leads a partition says so, the caller calls
`forget` and tries again. Those who run for long call `renew` between requests, which asks anew for routes of
more than 30 seconds, and sooner for partitions without a leader.

Bootstrap addresses, those of brokers or of name servers, are tried in turn, beginning with any; later the
brokers themselves are asked first.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from types import TracebackType
from typing import NamedTuple, Self, TypeVar

from braidmq.address import Address, parse_addresses
from braidmq.client.connection import CLIENT_ID, TIMEOUT_S, UNPROTECTED, Connection
from braidmq.client.errors import ClientError, TimedOut, Unreachable
from braidmq.client.security import Security
from braidmq.platform.clock import SystemClock
from braidmq.platform.randomness import random_below
from braidmq.wire.errors import ApiError, ErrorCode
from braidmq.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from braidmq.wire.schema import Message

RETRY_BACKOFF_S = 0.02
RETRY_BACKOFF_MAX_S = 1.0
METADATA_VERSION_MAX = 12
ROUTES_S_MAX = 30.0
LEADERLESS_S_MAX = 0.5
"""How old routes may be when `renew` is called; the latter if a partition has no leader."""

R = TypeVar("R", bound=Message)


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


LeaderGroup = tuple[Connection, list[TopicPartition]]


def topic_error(code: ErrorCode, topic: str) -> ApiError:
    """What a broker's answer about a topic means; metadata answers carry a code and no words."""
    if code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return ApiError(code, f"there is no topic {topic!r}")
    return ApiError(code, f"topic {topic}: {code.name.lower().replace('_', ' ')}")


class Cluster:
    """The brokers behind a bootstrap list. Belongs to one thread."""

    def __init__(
        self,
        bootstrap: str,
        *,
        client_id: str = CLIENT_ID,
        timeout_s: float = TIMEOUT_S,
        security: Security = UNPROTECTED,
        creates_topics: bool = True,
    ) -> None:
        """`creates_topics`: one that is asked for and missing is made, where the cluster allows that."""
        self.clock = SystemClock()
        self.timeout_s = timeout_s
        self.cluster_id = ""
        self.controller_id = -1
        self.brokers: dict[int, Address] = {}
        self._client_id = client_id
        self._security = security
        self._creates_topics = creates_topics
        self._bootstrap = list(parse_addresses(bootstrap))
        self._turn = random_below(len(self._bootstrap))
        """Where among several addresses to begin: with any at first, with the next one after a failure."""
        self._connections: dict[Address, Connection] = {}
        self._leaders: dict[TopicPartition, int] = {}
        self._leaderless: dict[TopicPartition, None] = {}
        self._partition_counts: dict[str, int] = {}
        self._routes_at = self.clock.monotonic()

    def partition_count(self, topic: str) -> int:
        """How many partitions a topic has; asks once."""
        if topic not in self._partition_counts:
            for attempt in self.attempts():
                answer = self.refresh([topic], create=self._creates_topics)
                code = ErrorCode(answer.topics[0].error_code)
                if code is ErrorCode.NONE:
                    break
                attempt.failed(topic_error(code, topic), retriable=code.retriable)
        return self._partition_counts[topic]

    def leader(self, at: TopicPartition) -> Connection:
        """A connection to the broker that leads a partition."""
        if at not in self._leaders:
            self.partition_count(at.topic)
        if at in self._leaderless:
            raise ApiError(ErrorCode.LEADER_NOT_AVAILABLE, f"{at} has no leader: its broker is not running")
        if at not in self._leaders:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{at} does not exist")
        return self.connection(self._leaders[at])

    def knows(self, at: TopicPartition) -> bool:
        """Whether `leader` can answer without asking the cluster."""
        return at in self._leaders

    def is_leaderless(self, at: TopicPartition) -> bool:
        """Whether the cluster has said that no broker leads a partition at the moment."""
        return at in self._leaderless

    def by_leader(self, partitions: Iterable[TopicPartition]) -> list[LeaderGroup]:
        """Partitions grouped by the connection their requests go to."""
        groups: dict[int, LeaderGroup] = {}
        for at in partitions:
            connection = self.leader(at)
            groups.setdefault(id(connection), (connection, []))[1].append(at)
        return list(groups.values())

    def connection(self, node_id: int) -> Connection:
        if node_id not in self.brokers:
            raise ApiError(ErrorCode.LEADER_NOT_AVAILABLE, f"broker {node_id} is not in the cluster")
        return self.connection_to(self.brokers[node_id])

    def any_connection(self) -> Connection:
        """A connection to some broker: a known one, else one of the bootstrap addresses.

        Of several, one to which there is a connection; else in turn.
        """
        reasons = []
        for address in self._in_turn():
            try:
                return self.connection_to(address)
            except (Unreachable, TimedOut) as error:
                reasons.append(error)
                # Next time begin with another: this one may be down for long.
                self._turn += 1
        raise reasons[0]

    def call(self, request: Message, answer: type[R], newest: int | None = None) -> R:
        """Asks any broker; a lost connection is made again, within `timeout_s`.

        Where no broker has ever answered, the first refusal is final: the address is probably wrong.
        """
        for attempt in self.attempts():
            try:
                if not self.brokers and not isinstance(request, MetadataRequest):
                    # The address may be a name server's, which tells who is there and little more.
                    self.refresh([])
                return self.any_connection().call(request, answer, newest)
            except Unreachable as error:
                if not self.brokers and not isinstance(request, MetadataRequest):
                    # A name server closes the connection on what only brokers do, and knows where they are.
                    with suppress(Unreachable, TimedOut):
                        self.refresh([])
                attempt.failed(error, retriable=bool(self.brokers))
        raise AssertionError("attempts end by raising")

    def refresh(self, topics: Sequence[str] | None, create: bool = False) -> MetadataResponse:
        """Asks for the brokers and for these topics (None: all), and remembers both."""
        answer = self.call(_about(topics, create), MetadataResponse, METADATA_VERSION_MAX)
        self._learn(answer)
        return answer

    @property
    def is_outdated(self) -> bool:
        """Whether `renew` would ask."""
        age_s = self.clock.monotonic() - self._routes_at
        age_s_max = LEADERLESS_S_MAX if self._leaderless else ROUTES_S_MAX
        return bool(self._partition_counts) and age_s >= age_s_max

    def renew(self) -> None:
        """Asks again for routes that are old; what cannot be learned now stays as it was.

        Call it where no answers are awaited on any connection.
        """
        if not self.is_outdated:
            return
        self._routes_at = self.clock.monotonic()
        with contextlib.suppress(ClientError):
            about = _about(list(self._partition_counts), create=False)
            self._learn(self.any_connection().call(about, MetadataResponse, METADATA_VERSION_MAX))

    def assume(self, at: TopicPartition, node_id: int, address: Address) -> None:
        """Takes somebody's word for who leads a partition; where it is wrong, the broker says so."""
        self.brokers.setdefault(node_id, address)
        self._leaders.setdefault(at, node_id)
        self._leaderless.pop(at, None)

    def leader_of(self, at: TopicPartition) -> tuple[int, Address] | None:
        """Who leads a partition as far as is known, for `assume` elsewhere."""
        node_id = self._leaders.get(at, -1)
        return (node_id, self.brokers[node_id]) if node_id in self.brokers else None

    def forget(self, topic: str) -> None:
        """A route proved wrong: ask again before the next use."""
        self._partition_counts.pop(topic, None)
        for known in (self._leaders, self._leaderless):
            for at in [at for at in known if at.topic == topic]:
                del known[at]

    def attempts(self, timeout_s: float | None = None) -> Iterator[Attempt]:
        """Tries of one thing, with growing pauses between them, until the time is up."""
        deadline = self.clock.monotonic() + (self.timeout_s if timeout_s is None else timeout_s)
        pause_s = RETRY_BACKOFF_S
        while True:
            attempt = Attempt()
            yield attempt
            if attempt.error is None:
                return
            if not attempt.retriable or self.clock.monotonic() + pause_s > deadline:
                raise attempt.error
            self.clock.sleep(pause_s)
            pause_s = min(pause_s * 2, RETRY_BACKOFF_MAX_S)

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _in_turn(self) -> list[Address]:
        """Where to ask, the best first."""
        brokers = _rotated(list(self.brokers.values()), self._turn)
        # Stable: among those that are connected, and among those that are not, it goes in turn.
        brokers.sort(key=lambda address: not self._is_connected(address))
        return list(dict.fromkeys([*brokers, *_rotated(self._bootstrap, self._turn)]))

    def _is_connected(self, address: Address) -> bool:
        known = self._connections.get(address)
        return known is not None and not known.closed

    def _learn(self, answer: MetadataResponse) -> None:
        self.brokers = {broker.node_id: Address(broker.host, broker.port) for broker in answer.brokers}
        self.cluster_id = answer.cluster_id or ""
        self.controller_id = answer.controller_id
        for topic in answer.topics:
            self._remember(topic)
        self._routes_at = self.clock.monotonic()

    def _remember(self, topic: MetadataResponseTopic) -> None:
        name = topic.name or ""
        self.forget(name)
        if topic.error_code != ErrorCode.NONE:
            return
        self._partition_counts[name] = len(topic.partitions)
        for partition in topic.partitions:
            at = TopicPartition(name, partition.partition_index)
            if partition.leader_id >= 0:
                self._leaders[at] = partition.leader_id
            else:
                self._leaderless[at] = None

    def connection_to(self, address: Address) -> Connection:
        """The connection to an address, made where there is none."""
        known = self._connections.get(address)
        if known is None or known.closed:
            known = Connection(
                address, client_id=self._client_id, timeout_s=self.timeout_s, security=self._security
            )
            self._connections[address] = known
        return known


class Attempt:
    """One try; the caller reports a failure, otherwise the loop ends."""

    __slots__ = ("error", "retriable")

    def __init__(self) -> None:
        self.error: ApiError | ClientError | None = None
        self.retriable = False

    def failed(self, error: ApiError | ClientError, retriable: bool) -> None:
        self.error = error
        self.retriable = retriable


def _about(topics: Sequence[str] | None, create: bool) -> MetadataRequest:
    wanted = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
    return MetadataRequest(topics=wanted, allow_auto_topic_creation=create)


def _rotated(addresses: list[Address], by: int) -> list[Address]:
    start = by % len(addresses) if addresses else 0
    return addresses[start:] + addresses[:start]
