"""A share group on one partition: how fast several consumers get through it together.

Each consumer accepts what it has got with the request for more, up to 500 records at a time, as stock share
consumers do. The partition is filled beforehand. A record counts when its acceptance was answered without an
error; one that is delivered twice ends the load.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Generator

from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from .channel import Channel
from .coordinators import await_group_coordinators
from .crowd import Ask, Client, Crowd, Pause
from .load_produce import BATCH_BYTES, partition_frames, saturate
from .metric import CPU_PER_MILLION, RECORD_RATE, Figures
from .server import Durability, Server
from .topics import fresh_topic, topic_id
from .wire_groups import beat, expect
from .wire_share import Range, share_fetch_frame, share_fetched, share_heartbeat_frame

VALUE_BYTES = 1_000
RECORDS_MAX = 500
WAIT_MS = 500
RETRY_SECONDS = 0.05
FILL_SECONDS_MAX = 120.0
FIRST_PART = 4
_numbers = itertools.count(1)


def share(server: Server, consumers: int, records: int) -> Figures:
    """Accepted records per second until all are."""
    with fresh_topic(server, 1, Durability.CACHED) as topic:
        batch = BATCH_BYTES // VALUE_BYTES
        frames = partition_frames(topic, VALUE_BYTES, batch, 1, acks=1)
        saturate(server, frames, FILL_SECONDS_MAX, records // batch)
        group = f"share{next(_numbers):04d}"
        await_group_coordinators(server, [group])
        _from_the_start(server, group)
        crowd = Crowd(server.address)
        try:
            return _measure(server, crowd, _Floor(group, topic, topic_id(server, topic), records), consumers)
        finally:
            crowd.close()


def _from_the_start(server: Server, group: str) -> None:
    admin = AdminClient({"bootstrap.servers": server.bootstrap, "log_level": 3})
    entry = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=[entry])
    for future in admin.incremental_alter_configs([resource]).values():
        future.result()


class _Floor:
    """What the consumers have in common."""

    def __init__(self, group: str, topic: str, id_: bytes, records: int) -> None:
        self.group, self.topic, self.topic_id = group, topic, id_
        self.wanted = records
        self.accepted = 0
        self.assigned = 0
        self.delivered: list[Range] = []


def _measure(server: Server, crowd: Crowd, floor: _Floor, consumers: int) -> Figures:
    """The clock runs once a first part is accepted: by then the server has made what it needs."""
    crowd.start(
        _consumer(crowd, floor, f"{floor.group}-{number:02d}", consumers) for number in range(consumers)
    )
    crowd.run(lambda: floor.accepted >= floor.wanted // FIRST_PART)
    before, cpu_before = floor.accepted, server.cpu_seconds()
    started = time.perf_counter()
    crowd.run(lambda: floor.accepted >= floor.wanted)
    seconds = time.perf_counter() - started
    _check_once(floor.delivered)
    cpu, accepted = server.cpu_seconds() - cpu_before, floor.accepted - before
    return {RECORD_RATE: accepted / seconds, CPU_PER_MILLION: cpu / (accepted / 1e6)}


def _check_once(delivered: list[Range]) -> None:
    """Nobody fails or waits for long here, so every record is to be delivered once."""
    reached = -1
    for first, last in sorted(delivered):
        if first <= reached:
            raise RuntimeError(f"offset {first} was delivered twice")
        reached = last


def _consumer(crowd: Crowd, floor: _Floor, member_id: str, consumers: int) -> Client:
    coordinator, leader = crowd.connect(), crowd.connect()
    yield from _join(coordinator, floor, member_id)
    while floor.assigned < consumers:
        yield Pause(RETRY_SECONDS)
    epoch = 0
    holding: list[Range] = []
    while floor.accepted < floor.wanted:
        frame = share_fetch_frame(
            floor.group, member_id, epoch, floor.topic_id, holding, RECORDS_MAX, WAIT_MS
        )
        answer = share_fetched((yield Ask(leader, frame)))
        expect(answer.code, "ShareFetch")
        floor.accepted += sum(last - first + 1 for first, last in holding)
        holding = answer.acquired
        floor.delivered += holding
        epoch += 1


def _join(coordinator: Channel, floor: _Floor, member_id: str) -> Generator[Ask | Pause, bytes, None]:
    topic: str | None = floor.topic
    epoch, assigned = 0, False
    while not assigned:
        frame = share_heartbeat_frame(floor.group, member_id, epoch, topic)
        found = beat((yield Ask(coordinator, frame)))
        expect(found.code, "a heartbeat")
        epoch, topic, assigned = found.epoch, None, bool(found.assigned)
        if not assigned:
            yield Pause(RETRY_SECONDS)
    floor.assigned += 1
