"""What clients do to a cluster beside what they do to a broker: what only several brokers can get wrong.

Racers create and delete one and the same topic through different brokers. A grower adds partitions to one.
Collectors take producer ids from all brokers. Members of a classic group read `orders`, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tests.sim.classic_group import CLASSICS, ClassicMember
from tests.sim.client import Client, Found, Lost, Refused
from tests.sim.cluster_judge import ClusterJudge
from tests.sim.copier import good
from tests.sim.group_load import lived
from tests.sim.invariants import PARTITIONS
from tests.sim.load import Load, deleted
from tests.sim.loop import VirtualLoop
from tests.sim.routes import ClusterClient

from braidmq.wire.errors import ErrorCode
from braidmq.wire.messages.metadata import MetadataRequest, MetadataResponse
from braidmq.wire.messages.producers import InitProducerIdRequest, InitProducerIdResponse
from braidmq.wire.messages.topics import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)

RACED = "raced"
GROWING = "growing"
GROWN_MAX = 12
RACE_CODES = (
    ErrorCode.TOPIC_ALREADY_EXISTS,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.INVALID_PARTITIONS,
)


class ClusterLoad(Load):
    """All clients of a cluster."""

    def __init__(
        self,
        loop: VirtualLoop,
        connect: Callable[[str], ClusterClient],
        judge: ClusterJudge,
        coordinated: bool = True,
    ) -> None:
        super().__init__(loop, connect, judge)
        self._cluster = judge
        self._coordinated = coordinated
        """Whether there are groups and transactions, too."""

    def start(self) -> None:
        if self._coordinated:
            super().start()
            for number in range(2):
                self._add(f"classic-{number}", self._be_classic)
        else:
            self.start_plain()
        for number in range(2):
            self._add(f"racer-{number}", self._race)
            self._add(f"collector-{number}", self._collect)
        self._add("grower", self._grow)

    async def _race(self, client: Client) -> None:
        """Whoever comes first; only the judge of the store can tell what is right."""
        while not self.ending:
            client.forget()
            try:
                if self._chance.random() < 0.6:
                    await client.create(RACED, 1)
                else:
                    await deleted(client, RACED)
                self._judge.acked += 1
            except Lost:
                pass
            except Refused as refusal:
                if refusal.code not in RACE_CODES:
                    self._judge.refused("a race for a topic", refusal.code)
            await asyncio.sleep(self._chance.uniform(0.0, 0.4))

    async def _collect(self, client: Client) -> None:
        """Takes ids that nobody else may have."""
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
        number = 0
        while not self.ending:
            client.forget()
            number += 1
            try:
                given = good(await client.call(request, InitProducerIdResponse, 4))
                self._judge.given_producer_id(given.producer_id, f"{client.machine} as number {number}")
            except Lost:
                pass
            except Refused as refusal:
                self._judge.refused("a producer id", refusal.code)
            await asyncio.sleep(self._chance.choice((0.0, 0.05, 0.2)))

    async def _be_classic(self, client: Client) -> None:
        member = ClassicMember(self._loop, client, self._cluster.classic, lambda: self.ended)
        await lived(member.live, "a classic member", self._judge, lambda: self.ended, member.begin_anew)

    async def _grow(self, client: Client) -> None:
        count = confirmed = 1
        await self._retried(client, f"creating {GROWING}", lambda: self._create_growing(client))
        self._cluster.counts[GROWING] = (1, 1)
        while not self.ending and confirmed < GROWN_MAX:
            await asyncio.sleep(self._chance.uniform(0.3, 1.5))
            client.forget()
            count += 1
            self._cluster.counts[GROWING] = (confirmed, count)
            topic = CreatePartitionsTopic(name=GROWING, count=count, assignments=None)
            request = CreatePartitionsRequest(topics=[topic], timeout_ms=1000)
            try:
                answer = await client.call(request, CreatePartitionsResponse, 2)
                if answer.results[0].error_code:
                    raise Refused(answer.results[0].error_code)
                confirmed = count
                self._cluster.counts[GROWING] = (confirmed, count)
            except Lost:
                pass
            except Refused as refusal:
                self._judge.refused("more partitions", refusal.code)

    async def _create_growing(self, client: Client) -> bool:
        try:
            await client.create(GROWING, 1)
        except Refused as refusal:
            if refusal.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise
        return True

    # -- the end --------------------------------------------------------------------------------

    @property
    def _readers(self) -> tuple[str, ...]:
        return (*super()._readers, CLASSICS)

    async def drained(self, within_s: float) -> bool:
        return not self._coordinated or await super().drained(within_s)

    async def tell_all(self, contents: dict[tuple[str, int], list[Found]]) -> None:
        client = self._connect("judge")
        if self._coordinated:
            await super().tell_all(contents)
            ends = {index: len(contents["orders", index]) for index in range(PARTITIONS)}
            positions = {at: await client.committed(CLASSICS, "orders", at) for at in range(PARTITIONS)}
            self._cluster.conclude_classic(ends, positions)
        else:
            self._tell_orders(contents)
            await self._tell_topics(client)
        answer = await client.call(MetadataRequest(topics=None), MetadataResponse, 9)
        self._cluster.found_counts({topic.name: len(topic.partitions) for topic in answer.topics})
        client.close()
