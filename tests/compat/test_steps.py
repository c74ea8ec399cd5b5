"""kill -9 of the broker in the middle of each step of a group and of a transaction, with stock clients.

A proxy sees the requests go by and kills the broker when the wanted one comes: before it arrives, or when it
has been carried out and the answer is on its way. `scripts/test` takes the steps in which most could go
wrong, `scripts/compat` goes through all steps, all clients and both moments.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from tests.chaos.load import ONE_BROKER
from tests.chaos.proxy import Moment, Proxy
from tests.compat.conftest import FOREIGN_SERVER, SHORT_SESSIONS
from tests.compat.group_members import MEMBERS, MemberProcess
from tests.compat.test_groups import (
    PARTITIONS,
    WAIT_S,
    check,
    committed,
    ends,
    sending,
    shared,
    until,
    until_all_is_read,
)
from tests.compat.test_transactions import position
from tests.compat.transaction_members import COMMITTED, ConfluentProducer, read

from braidmq.testing import BrokerProcess, broker
from braidmq.wire.api import Api

ALL = os.environ.get("BRAID_COMPAT_STEPS") == "all"
CLIENTS = list(MEMBERS) if ALL else ["confluent", "server-assigned"]
MOMENTS = list(Moment) if ALL else [Moment.AFTER]
JOINING = {Api.JOIN_GROUP, Api.SYNC_GROUP, Api.OFFSET_FETCH}
CLASSIC = (
    Api.JOIN_GROUP,
    Api.SYNC_GROUP,
    Api.HEARTBEAT,
    Api.OFFSET_COMMIT,
    Api.OFFSET_FETCH,
    Api.LEAVE_GROUP,
)
SERVER_ASSIGNED = (Api.CONSUMER_GROUP_HEARTBEAT, Api.OFFSET_COMMIT, Api.OFFSET_FETCH)
TRANSACTION = (
    Api.ADD_PARTITIONS_TO_TXN,
    Api.PRODUCE,
    Api.ADD_OFFSETS_TO_TXN,
    Api.TXN_OFFSET_COMMIT,
    Api.END_TXN,
)

pytestmark = [
    pytest.mark.skipif(FOREIGN_SERVER in os.environ, reason="the broker is ours to kill"),
    pytest.mark.filterwarnings("ignore"),  # the clients' own
]


class Stage:
    """A broker behind a proxy, that dies when told and is started again."""

    def __init__(self, server: BrokerProcess, proxy: Proxy) -> None:
        self.server, self.proxy, self.bootstrap = server, proxy, proxy.address
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        admin.create_topics([NewTopic("topic", PARTITIONS, 1)])["topic"].result(WAIT_S)

    def strike(self, api: Api, moment: Moment, provoke: Callable[[], object] = lambda: None) -> None:
        struck = self.proxy.arm(api, moment, self.server.kill)
        provoke()
        assert struck.wait(WAIT_S), f"nobody sent {api.name}"
        self.server.start()


@pytest.fixture
def stage() -> Iterator[Stage]:
    proxy = Proxy()
    try:
        with broker(advertise=proxy.address, **SHORT_SESSIONS) as server:
            proxy.lead_to(server.bootstrap)
            yield Stage(server, proxy)
    finally:
        proxy.close()


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("client", CLIENTS)
def test_a_group_survives_the_death_of_the_broker_in_each_of_its_steps(
    client: str, stage: Stage, tmp_path: Path
) -> None:
    """C4 C6 L6: join, sync, heartbeat, commit, fetch of positions, leave; what was confirmed stays."""
    left: list[MemberProcess] = []
    names = count()

    def join() -> MemberProcess:
        member = MemberProcess(client, stage.bootstrap, "group", "topic", tmp_path / str(next(names)))
        stack.callback(member.kill)
        return member

    with sending(stage.bootstrap, "topic") as sender, ExitStack() as stack:
        first = join()
        until_all_is_read(stage.bootstrap, "group", first)
        second = join()
        until(lambda: shared([first, second]), "two members share", first, second)
        for api in SERVER_ASSIGNED if client == "server-assigned" else CLASSIC:
            for moment in MOMENTS:
                with _guest(stage, api, moment, join, [first, second]) as guest:
                    left.append(guest)
        sender.stop()
        end = ends(stage.bootstrap, "topic")
        until(lambda: committed(stage.bootstrap, "group") == end, "the end is committed", first, second)
        first.leave()
        second.leave()
    check(stage.bootstrap, "group", "topic", [first, second, *left])


@contextmanager
def _guest(
    stage: Stage, api: Api, moment: Moment, join: Callable[[], MemberProcess], hosts: list[MemberProcess]
) -> Iterator[MemberProcess]:
    """A third member comes and goes, and in one step of this, or meanwhile, the broker dies."""
    guests: list[MemberProcess] = []
    what = f"{api.name} {moment}"
    if api in JOINING:
        stage.strike(api, moment, lambda: guests.append(join()))
    else:
        guests.append(join())
    (guest,) = guests
    until(lambda: shared([*hosts, guest]), f"three share, {what}", *hosts, guest)
    if api is Api.LEAVE_GROUP:
        leaving = threading.Thread(target=guest.leave)
        stage.strike(api, moment, leaving.start)
        leaving.join(WAIT_S)
    elif api not in JOINING:
        stage.strike(api, moment)
        until(lambda: shared([*hosts, guest]), f"three share again, {what}", *hosts, guest)
    guest.leave()
    until(lambda: shared(hosts), f"two share, {what}", *hosts)
    yield guest


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("fate", ["commit", "abort"] if ALL else ["commit"])
def test_a_transaction_survives_the_death_of_the_broker_in_each_of_its_steps(fate: str, stage: Stage) -> None:
    """T2 L6: the client tries again, and what it meant to happen happens, once."""
    producer = ConfluentProducer(stage.bootstrap, "id", **ONE_BROKER)
    kept: list[bytes] = []
    number = 0
    for api in TRANSACTION:
        for moment in MOMENTS:
            number += 1
            value = f"{api.name} {moment}".encode()
            working = threading.Thread(target=_transact, args=(producer, value, number, fate))
            stage.strike(api, moment, working.start)
            working.join(WAIT_S)
            assert not working.is_alive(), f"{value!r} does not come to an end"
            kept += [value] if fate == "commit" else []
            for partition in (0, 1):
                assert read("confluent", stage.bootstrap, "topic", partition, COMMITTED) == kept
            expected = number if fate == "commit" else None
            until(lambda: position(stage.bootstrap, "group", "topic") == expected, f"position {expected}")  # noqa: B023
    producer.close()


def _transact(producer: ConfluentProducer, value: bytes, number: int, fate: str) -> None:
    producer.begin()
    for partition in (0, 1):
        producer.send("topic", partition, value)
    producer.flush()
    producer.send_offset("group", "topic", 0, number)
    producer.commit() if fate == "commit" else producer.abort()


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_producer_gets_its_id_though_the_broker_dies_meanwhile(moment: Moment, stage: Stage) -> None:
    """T2 L6: InitProducerId is tried again, and the transaction of the one before is aborted all the same."""
    before = ConfluentProducer(stage.bootstrap, "id", **ONE_BROKER)
    before.begin()
    before.send("topic", 0, b"before")
    before.flush()
    made: list[ConfluentProducer] = []

    def make() -> None:
        made.append(ConfluentProducer(stage.bootstrap, "id", **ONE_BROKER))

    making = threading.Thread(target=make)
    stage.strike(Api.INIT_PRODUCER_ID, moment, making.start)
    making.join(WAIT_S)
    made[0].begin()
    made[0].send("topic", 0, b"after")
    made[0].commit()
    assert read("confluent", stage.bootstrap, "topic", 0, COMMITTED) == [b"after"]
    made[0].close()
