"""A client of a cluster: it asks any broker who leads what, goes there, and asks again when that was wrong.

One connection to each broker, made when it is needed. What it has learned it forgets after a loss, after a
refusal, and now and then, as clients do.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

from tests.sim.client import Client, Kind, Lost, Refused, check
from tests.sim.loop import VirtualLoop
from tests.sim.network import SimNetwork

from braidmq.wire.errors import ErrorCode
from braidmq.wire.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from braidmq.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from braidmq.wire.schema import Message

KNOWN_S = 3.0

R = TypeVar("R", bound=Message)


class ClusterClient(Client):
    """Speaks to every broker; what belongs to none in particular goes to one that it has chosen."""

    def __init__(self, loop: VirtualLoop, network: SimNetwork, machine: str, brokers: Sequence[str]) -> None:
        super().__init__(loop, network, machine, brokers[0])
        self._chance: random.Random = loop.chance
        self._brokers = list(brokers)
        self._connections = {name: Client(loop, network, machine, name) for name in brokers}
        self._leaders: dict[tuple[str, int], str] = {}
        self._coordinators: dict[tuple[Kind, str], str] = {}
        self._known_until_s = 0.0
        self._home = loop.chance.choice(self._brokers)

    async def call(self, request: Message, answer: type[R], version: int) -> R:
        """Asks the broker of its choice; another one the next time if that does not answer."""
        try:
            return await self._connections[self._home].call(request, answer, version)
        except Lost:
            self.forget()
            raise

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()

    def forget(self) -> None:
        self._leaders.clear()
        self._coordinators.clear()
        self._home = self._chance.choice(self._brokers)

    def wander(self) -> None:
        """Chooses another broker."""
        self._home = self._chance.choice(self._brokers)

    def _age(self) -> None:
        if self._loop.time() >= self._known_until_s:
            self.forget()
            self._known_until_s = self._loop.time() + KNOWN_S

    async def to_leader(self, topic: str, index: int) -> Client:
        self._age()
        found = self._leaders.get((topic, index))
        if found is None:
            await self._learn(topic)
            found = self._leaders.get((topic, index))
        if found is None:
            raise Refused(ErrorCode.LEADER_NOT_AVAILABLE)
        return _Route(self, self._connections[found])

    async def _learn(self, topic: str) -> None:
        wanted = [MetadataRequestTopic(name=topic, topic_id=bytes(16))]
        request = MetadataRequest(topics=wanted, allow_auto_topic_creation=False)
        answer = await self.call(request, MetadataResponse, 12)
        hosts = {broker.node_id: broker.host for broker in answer.brokers}
        check(answer.topics[0].error_code)
        for part in answer.topics[0].partitions:
            if part.error_code == 0 and part.leader_id in hosts:
                self._leaders[topic, part.partition_index] = hosts[part.leader_id]

    async def to_coordinator(self, kind: Kind, key: str) -> Client:
        self._age()
        found = self._coordinators.get((kind, key))
        if found is None:
            request = FindCoordinatorRequest(key_type=int(kind), coordinator_keys=[key])
            answer = await self.call(request, FindCoordinatorResponse, 4)
            check(answer.coordinators[0].error_code)
            found = self._coordinators[kind, key] = answer.coordinators[0].host
        return _Route(self, self._connections[found])


class _Route(Client):
    """One of its connections, which forgets the way when it leads nowhere."""

    def __init__(self, owner: ClusterClient, connection: Client) -> None:
        self.machine = owner.machine
        self.broker = connection.broker
        self._owner = owner
        self._connection = connection

    async def call(self, request: Message, answer: type[R], version: int) -> R:
        try:
            return await self._connection.call(request, answer, version)
        except Lost:
            self._owner.forget()
            raise

    def close(self) -> None:
        self._connection.close()
