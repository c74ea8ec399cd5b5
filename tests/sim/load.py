"""What clients do to brokers: everything at once, on machines of their own, until they are told to end.

Topic `orders` takes records of plain and idempotent producers, and is read along. A copier makes one record
of `copies` of each, in transactions that hold its position, and aborts some. A walker commits positions of a
group of its own. A maker creates and deletes topics. All of them tell the judge what they were told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from tests.history.exactly_once import Place
from tests.sim.client import Client, Found, Lost, Page, Refused
from tests.sim.copier import COPIER, Copier, content_of, good, order, stamp
from tests.sim.group_load import READERS, GroupMember, ShareMember, lived
from tests.sim.invariants import PARTITIONS, Judge
from tests.sim.loop import VirtualLoop

from braidmq.wire.errors import ErrorCode
from braidmq.wire.messages.metadata import MetadataRequest, MetadataResponse
from braidmq.wire.messages.producers import InitProducerIdRequest, InitProducerIdResponse
from braidmq.wire.messages.topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from braidmq.wire.records import build_batch

RETRY_S = 0.1
WALKER = "walker"


class Load:
    """All clients of a broker or a cluster."""

    def __init__(self, loop: VirtualLoop, connect: Callable[[str], Client], judge: Judge) -> None:
        self._loop = loop
        self._connect = connect
        self._judge = judge
        self._chance = loop.chance
        self._tasks: list[asyncio.Task[None]] = []
        self._clients: list[Client] = []
        self.ending = False
        """Producers make nothing new; the copier goes on."""
        self.ended = False

    @property
    def machines(self) -> list[str]:
        return [client.machine for client in self._clients]

    def start(self) -> None:
        self.start_plain()
        self._add("copier", self._copy)
        self._add("auditor", self._read_copies)
        self._add("walker", self._walk)
        for number in range(2):
            self._add(f"member-{number}", self._be_member)
            self._add(f"sharer-{number}", self._be_sharer)

    def start_plain(self) -> None:
        """Those who need no coordinator."""
        for sender in range(3):
            self._add(f"idempotent-{sender}", lambda one, sender=sender: self._idempotent(one, sender))
        self._add("plain", lambda one: self._plain(one, 3))
        self._add("reader", self._read_along)
        self._add("maker", self._make)

    def _add(self, role: str, act: Callable[[Client], Coroutine[Any, Any, None]]) -> None:
        client = self._connect(role)
        self._clients.append(client)
        context = self._loop.strand(client.machine)
        self._tasks.append(self._loop.create_task(act(client), context=context))

    async def end(self) -> None:
        """Everybody ends; what a client met that it could not explain is raised here."""
        self.ended = True
        await asyncio.gather(*self._tasks)
        for client in self._clients:
            client.close()

    async def _retried(self, client: Client, what: str, act: Callable[[], Awaitable[Any]]) -> Any:
        """The outcome of `act`, tried again until it has one; None if the load ends before that."""
        while not self.ended:
            try:
                return await act()
            except Lost:
                pass
            except Refused as refusal:
                client.forget()
                self._judge.refused(what, refusal.code)
            await asyncio.sleep(RETRY_S * self._chance.uniform(0.5, 1.5))
        return None

    # -- producers ------------------------------------------------------------------------------

    async def _ready(self, client: Client) -> None:
        for topic in ("orders", "copies"):
            await self._retried(client, f"creating {topic}", lambda topic=topic: created(client, topic))

    async def _idempotent(self, client: Client, sender: int) -> None:
        await self._ready(client)
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)

        async def init() -> InitProducerIdResponse:
            answer = await client.call(request, InitProducerIdResponse, 4)
            return good(answer)

        given = await self._retried(client, "a producer id", init)
        if given is None:
            return
        self._judge.given_producer_id(given.producer_id, client.machine)
        index, number, sequence = sender % PARTITIONS, 0, 0
        while not self.ending:
            count = self._chance.randint(1, 3)
            batch = self._batch(
                sender, number, count, base_sequence=sequence, producer_id=given.producer_id,
                producer_epoch=given.producer_epoch,
            )  # fmt: skip
            base = await self._retried(
                client,
                f"a batch of {client.machine}",
                lambda batch=batch: client.produce("orders", index, batch),
            )
            if base is None:
                return
            self._acked(sender, number, count, index, base)
            number, sequence = number + count, sequence + count
            await asyncio.sleep(self._chance.uniform(0.01, 0.25))

    async def _plain(self, client: Client, sender: int) -> None:
        await self._ready(client)
        number = 0
        while not self.ending:
            count, index = self._chance.randint(1, 3), self._chance.randrange(PARTITIONS)
            batch = self._batch(sender, number, count)
            try:
                base = await client.produce("orders", index, batch)
                self._acked(sender, number, count, index, base)
            except Lost:
                # The old connection may still bring its batch, after those of the next: order is promised
                # within a connection only. So it goes on as another sender.
                sender, number = sender + 1, -count
            except Refused as refusal:
                client.forget()
                self._judge.refused("a plain batch", refusal.code)
            number += count
            await asyncio.sleep(self._chance.uniform(0.02, 0.3))

    def _batch(self, sender: int, number: int, count: int, **rest: int) -> bytes:
        rows = []
        for each in range(number, number + count):
            self._judge.orders.sent(sender, each)
            value = b"%d,%d" % (sender, each)
            rows.append((None, value + b"," + b"." * self._chance.randint(0, 300), [], 1_700_000_000_000))
        return bytes(build_batch(rows, **rest))

    def _acked(self, sender: int, number: int, count: int, index: int, base: int) -> None:
        self._judge.acked += 1
        for each in range(count):
            self._judge.orders.acked(sender, number + each, index, base + each)

    # -- readers --------------------------------------------------------------------------------

    async def _fetched(self, client: Client, topic: str, index: int, offset: int, committed: bool) -> Page:
        try:
            return await client.fetch(topic, index, offset, committed)
        except Lost:
            pass
        except Refused as refusal:
            client.forget()
            if refusal.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                self._judge.refused(f"a fetch of {topic}-{index} from {offset}", refusal.code)
        await asyncio.sleep(RETRY_S)
        return Page([], offset, -1)

    async def _read_along(self, client: Client) -> None:
        offsets = [0] * PARTITIONS
        while not self.ended:
            for index in range(PARTITIONS):
                page = await self._fetched(client, "orders", index, offsets[index], committed=False)
                for found in page.records:
                    self._judge.orders.polled("reader", index, found.offset, *order(found))
                offsets[index] = page.next_offset

    async def _read_copies(self, client: Client) -> None:
        offsets = [0] * PARTITIONS
        while not self.ended:
            for index in range(PARTITIONS):
                page = await self._fetched(client, "copies", index, offsets[index], committed=True)
                for found in page.records:
                    self._judge.copies.polled(index, found.offset, stamp(found))
                offsets[index] = page.next_offset

    # -- transactions ---------------------------------------------------------------------------

    async def _copy(self, client: Client) -> None:
        await self._ready(client)
        life = 0
        while not self.ended:
            life += 1
            try:
                await Copier(client, self._judge, life, self._chance).work(
                    lambda: self.ended, lambda: self.ending
                )
            except Lost:
                pass
            except Refused as refusal:
                client.forget()
                if refusal.code not in (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_TXN_STATE):
                    self._judge.refused("the copier", refusal.code)
            await asyncio.sleep(RETRY_S)

    # -- groups ---------------------------------------------------------------------------------

    async def _be_member(self, client: Client) -> None:
        member = GroupMember(self._loop, client, self._judge, lambda: self.ended)
        await lived(member.live, "a member", self._judge, lambda: self.ended, member.begin_anew)

    async def _be_sharer(self, client: Client) -> None:
        member = ShareMember(self._loop, client, self._judge, PARTITIONS, lambda: self.ended)
        await lived(member.live, "a sharer", self._judge, lambda: self.ended, member.begin_anew)

    # -- positions and topics -------------------------------------------------------------------

    async def _walk(self, client: Client) -> None:
        await self._ready(client)
        offset = 0
        while not self.ending:
            offset += 1
            try:
                self._judge.committing(WALKER, offset)
                await client.commit(WALKER, "orders", 0, offset)
                self._judge.committed(WALKER, offset)
                if self._chance.random() < 0.3:
                    self._judge.position_of(WALKER, await client.committed(WALKER, "orders", 0))
            except Lost:
                await asyncio.sleep(RETRY_S)
            except Refused as refusal:
                client.forget()
                self._judge.refused("a position", refusal.code)
            await asyncio.sleep(self._chance.uniform(0.05, 0.4))

    async def _make(self, client: Client) -> None:
        known = self._judge.topics
        number = 0
        while not self.ending:
            await asyncio.sleep(self._chance.uniform(0.2, 1.5))
            there = [name for name, state in known.items() if state]
            try:
                if there and self._chance.random() < 0.4:
                    name = self._chance.choice(there)
                    known[name] = None
                    await deleted(client, name)
                    known[name] = False
                else:
                    number += 1
                    name = f"made-{number}"
                    known[name] = None
                    await client.create(name, 1)
                    known[name] = True
                    await client.produce(name, 0, bytes(build_batch([(None, b"first", [], 1)])))
            except Lost:
                pass
            except Refused as refusal:
                client.forget()
                if refusal.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    self._judge.refused("a change of topics", refusal.code)

    # -- the end --------------------------------------------------------------------------------

    @property
    def _readers(self) -> tuple[str, ...]:
        """Groups that read all of `orders`."""
        return COPIER, READERS

    async def drained(self, within_s: float) -> bool:
        """Whether everybody who reads `orders` has come to its end, in time."""
        client = self._connect("judge")
        until_s = self._loop.time() + within_s
        while self._loop.time() < until_s:
            try:
                left = 0
                for index in range(PARTITIONS):
                    page = await client.fetch("orders", index, 0, committed=False, wait_ms=0)
                    for group in self._readers:
                        left += page.high_watermark - await client.committed(group, "orders", index)
                    left += sum(
                        not self._judge.shares[index].is_settled(offset)
                        and not self._judge.is_given_up(index, offset)
                        for offset in range(page.high_watermark)
                    )
                if left <= 0:
                    client.close()
                    return True
            except (Lost, Refused):
                client.forget()
            await asyncio.sleep(RETRY_S)
        return False

    async def contents(self) -> dict[tuple[str, int], list[Found]]:
        """All there is to read. No fault is left, so nothing may fail."""
        client = self._connect("judge")
        found = {
            (topic, index): await _everything(client, topic, index, committed=topic == "copies")
            for topic in ("orders", "copies")
            for index in range(PARTITIONS)
        }
        client.close()
        return found

    async def tell_all(self, contents: dict[tuple[str, int], list[Found]]) -> None:
        """Tells the judge of everything there is."""
        client = self._connect("judge")
        judge = self._judge
        self._tell_orders(contents)
        judge.copies.source(
            (Place(index, found.offset), content_of(found))
            for index in range(PARTITIONS)
            for found in contents["orders", index]
        )
        for index in range(PARTITIONS):
            for found in contents["copies", index]:
                judge.copies.read(index, found.offset, stamp(found))
            judge.copies.position(index, await client.committed(COPIER, "orders", index))
        ends = {index: len(contents["orders", index]) for index in range(PARTITIONS)}
        judge.group.conclude(
            ends, {index: await client.committed(READERS, "orders", index) for index in range(PARTITIONS)}
        )
        judge.conclude_shares(ends)
        judge.position_of(WALKER, await client.committed(WALKER, "orders", 0))
        await self._tell_topics(client)
        client.close()

    def _tell_orders(self, contents: dict[tuple[str, int], list[Found]]) -> None:
        for index in range(PARTITIONS):
            for found in contents["orders", index]:
                self._judge.orders.read(index, found.offset, *order(found))

    async def _tell_topics(self, client: Client) -> None:
        answer = await client.call(MetadataRequest(topics=None), MetadataResponse, 9)
        self._judge.found_topics({topic.name for topic in answer.topics})


async def created(client: Client, topic: str) -> bool:
    try:
        await client.create(topic, PARTITIONS)
    except Refused as refusal:
        if refusal.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
            raise
    return True


async def deleted(client: Client, topic: str) -> None:
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name=topic, topic_id=bytes(16))], timeout_ms=1000)
    answer = await client.call(request, DeleteTopicsResponse, 6)
    if answer.responses[0].error_code:
        raise Refused(answer.responses[0].error_code)


async def _everything(client: Client, topic: str, index: int, committed: bool) -> list[Found]:
    found: list[Found] = []
    offset = 0
    while True:
        page = await client.fetch(topic, index, offset, committed, wait_ms=0)
        found += page.records
        if page.next_offset == offset:
            return found
        offset = page.next_offset
