"""A server-assigned group under heartbeats in any order: no partition has two readers, and all find one."""

from __future__ import annotations

from itertools import count

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from braidmq.group.assignors import Partitions
from braidmq.group.consumer_group import Beat, ConsumerGroup, ConsumerGroupState
from braidmq.group.consumer_member import Heartbeat
from braidmq.group.consumer_records import ConsumerLoader, changed_records
from braidmq.group.settings import GroupSettings
from braidmq.wire.errors import ApiError
from unit.group.catalogs import FakeCatalog

CLIENTS = st.integers(0, 4)
NONE: Partitions = frozenset()
SESSION_MS = 45_000


class Client:
    """A consumer that reads what it was told to read, until it is told or decides otherwise."""

    def __init__(self, number: int, incarnation: int) -> None:
        self.member_id = f"m{number}.{incarnation}"
        self.instance = f"static-{number}" if number >= 3 else None
        self.forget()

    def forget(self) -> None:
        self.epoch = 0
        self.topics: frozenset[str] = frozenset()
        self.says_all = True
        self.owned: Partitions = NONE
        self.target: Partitions = NONE

    def settle(self) -> None:
        """Finishes what it was doing with partitions it has to give up, and begins with new ones."""
        self.owned = self.target


class ConsumerGroupModel(RuleBasedStateMachine):
    """Five clients, two of them static; answers are lost, members vanish, topics grow, brokers restart."""

    @initialize()
    def begin(self) -> None:
        self.now_ms = 0
        self.incarnations = count()
        self.catalog = FakeCatalog(a=3, b=2)
        self.loader = ConsumerLoader()
        self.group = self.new_group()
        self.clients = [Client(number, next(self.incarnations)) for number in range(5)]

    def new_group(self) -> ConsumerGroup:
        return ConsumerGroup("g", GroupSettings(), lambda: "unused", self.now_ms)

    @rule(number=CLIENTS, both=st.booleans(), lost=st.booleans())
    def heartbeat(self, number: int, both: bool, lost: bool) -> None:
        client = self.clients[number]
        if client.epoch == 0:
            client.topics = frozenset({"a", "b"} if both else {"a"})
        # A client that got no answer says everything again, because it may have missed an assignment.
        full = client.epoch == 0 or client.says_all
        request = Heartbeat(
            client.member_id,
            client.epoch,
            instance_id=client.instance,
            rebalance_timeout_ms=30_000 if full else -1,
            topics=client.topics if full else None,
            owned=client.owned,
        )
        self.send(client, request, lost)

    def send(self, client: Client, request: Heartbeat, lost: bool = False) -> None:
        try:
            answer = self.group.heartbeat(request, self.catalog, self.now_ms)
        except ApiError:
            client.forget()
            return
        self.store()
        client.says_all = lost
        if not lost:
            self.take(client, answer)

    def take(self, client: Client, answer: Beat) -> None:
        if answer.member_epoch < 0:
            client.forget()
            return
        assert answer.member_epoch >= client.epoch
        client.epoch = answer.member_epoch
        if answer.assignment is not None:
            client.target = answer.assignment
            client.owned |= client.target

    @rule(number=CLIENTS)
    def settle(self, number: int) -> None:
        self.clients[number].settle()

    @rule(number=CLIENTS, for_a_while=st.booleans())
    def leave(self, number: int, for_a_while: bool) -> None:
        client = self.clients[number]
        epoch = -2 if for_a_while and client.instance else -1
        if client.epoch:
            self.send(client, Heartbeat(client.member_id, epoch, instance_id=client.instance))
        self.clients[number] = Client(number, next(self.incarnations))

    @rule(number=CLIENTS)
    def crash(self, number: int) -> None:
        self.clients[number] = Client(number, next(self.incarnations))

    @rule(topic=st.sampled_from("ab"), partitions=st.integers(1, 3))
    def grow(self, topic: str, partitions: int) -> None:
        self.catalog.put(topic, self.catalog.topics[topic].partitions + partitions)

    @rule(passed_ms=st.integers(1, 20_000))
    def wait(self, passed_ms: int) -> None:
        self.now_ms += passed_ms
        for gone in self.group.tick(self.now_ms):
            assert gone not in self.group.members
        self.store()

    @rule()
    def restart_broker(self) -> None:
        self.group = self.new_group()
        if (stored := self.loader.groups().get("g")) is not None:
            self.group.restore(stored, self.now_ms)

    def store(self) -> None:
        for record in changed_records(self.group, self.group.take_changes()):
            self.loader.take(*record)

    @invariant()
    def no_partition_belongs_to_two(self) -> None:
        held = [one for member in self.group.members.values() for one in member.assigned | member.revoking]
        assert len(held) == len(set(held))

    @invariant()
    def what_a_client_reads_is_its_own_in_the_group(self) -> None:
        for client in self.clients:
            member = self.group.members.get(client.member_id)
            if member is not None and member.epoch == client.epoch > 0:
                assert client.target <= member.assigned | member.revoking

    @invariant()
    def epochs_are_in_order(self) -> None:
        assert self.group.target_epoch <= self.group.epoch
        assert all(one.epoch <= self.group.target_epoch for one in self.group.members.values())

    def teardown(self) -> None:
        """When changes stop and those who vanished are dropped, everything is read by somebody."""
        if not hasattr(self, "group"):
            return
        for _ in range(24):
            self.now_ms += 5_000
            self.wait(1)
            for number, client in enumerate(self.clients):
                client.settle()
                self.heartbeat(number, both=True, lost=False)
        assert self.group.state is ConsumerGroupState.STABLE
        read = [partition for client in self.clients for partition in client.owned]
        assert len(read) == len(set(read))
        readable = {one for member in self.group.members.values() for one in member.topics}
        assert len(read) == sum(self.catalog.topics[name].partitions for name in readable)


ConsumerGroupModel.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


class TestAServerAssignedGroupKeepsItsPromisesInAnyOrderOfHeartbeats(
    ConsumerGroupModel.TestCase  # type: ignore[misc]
):
    """C4: see the invariants above."""
