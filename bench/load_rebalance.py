"""The eleventh consumer joins ten: how long until everybody reads its share, and what is not read meanwhile.

A producer writes at a steady rate to all partitions and the members read it. The time runs from the
newcomer's first request until all partitions are read again and it has its share. Records written to a
partition while nobody reads it are held back; lost meanwhile is how many of them there are in a second of it.
Nothing is lost for good, it is read later.
"""

from __future__ import annotations

import itertools
import statistics
import time

from .coordinators import await_group_coordinators
from .crowd import Ask, Client, Crowd, Pause
from .members import Hall, Kind, Member, make
from .metric import HELD_BACK, LOST_MEANWHILE, REBALANCE, Figures
from .server import Durability, Server
from .topics import fresh_topic, topic_id
from .wire import produce_error, produce_frame, record_batch
from .wire_groups import expect

MEMBERS = 10
PARTITIONS = 44
TICK_SECONDS = 0.01
VALUE_BYTES = 100
SETTLE_SECONDS = 0.1
SECONDS_MAX = 60.0
_numbers = itertools.count(1)


def rebalance(server: Server, kind: Kind, times: int) -> Figures:
    """The median of so many joins."""
    with fresh_topic(server, PARTITIONS, Durability.CACHED) as topic:
        group = f"rebalance{next(_numbers):04d}"
        await_group_coordinators(server, [group])
        hall = Hall(group, topic, topic_id(server, topic), PARTITIONS)
        crowd = Crowd(server.address)
        try:
            return _Run(hall, crowd, kind).go(times)
        finally:
            crowd.close()


class _Run:
    def __init__(self, hall: Hall, crowd: Crowd, kind: Kind) -> None:
        self._hall = hall
        self._crowd = crowd
        self._kind = kind
        self._stopped = False

    def go(self, times: int) -> Figures:
        self._crowd.start([self._producing()])
        for _ in range(MEMBERS):
            make(self._hall, self._crowd, self._kind)
        self._until_settled(MEMBERS)
        found = [self._one_more()]
        for _ in range(times - 1):
            self._leave(self._hall.members[-1])
            found.append(self._one_more())
        # The first one warms up, where there are several.
        found = found[1:] or found
        if self._hall.records < PARTITIONS:
            raise RuntimeError("the members read next to nothing")
        self._stopped = True
        for member in self._hall.members:
            member.leaving = True
        self._crowd.run(lambda: all(member.gone for member in self._hall.members))
        return {
            REBALANCE: statistics.median(seconds for seconds, _ in found) * 1000,
            LOST_MEANWHILE: statistics.median(held / seconds for seconds, held in found),
            HELD_BACK: statistics.median(held for _, held in found),
        }

    def _one_more(self) -> tuple[float, float]:
        """Seconds until one more has joined, and records held back meanwhile."""
        before = self._hall.unread_seconds()
        started = time.perf_counter()
        make(self._hall, self._crowd, self._kind)
        self._until_settled(MEMBERS + 1)
        seconds = time.perf_counter() - started
        held = (self._hall.unread_seconds() - before) / TICK_SECONDS
        self._pass(SETTLE_SECONDS)
        return seconds, held

    def _leave(self, member: Member) -> None:
        member.leaving = True
        self._crowd.run(lambda: member.gone)
        self._hall.members.remove(member)
        self._until_settled(MEMBERS)
        self._pass(SETTLE_SECONDS)

    def _until_settled(self, members: int) -> None:
        deadline = time.perf_counter() + SECONDS_MAX
        self._crowd.run(lambda: self._hall.settled(members) or time.perf_counter() > deadline)
        if not self._hall.settled(members):
            raise RuntimeError(f"{members} members did not settle within {SECONDS_MAX:.0f} s")

    def _pass(self, seconds: float) -> None:
        end = time.perf_counter() + seconds
        self._crowd.run(lambda: time.perf_counter() > end)

    def _producing(self) -> Client:
        """A record for every partition every 10 ms."""
        channel = self._crowd.connect()
        batch = record_batch(b"x" * VALUE_BYTES, 1)
        frame = produce_frame(
            self._hall.topic, [(partition, batch) for partition in range(PARTITIONS)], acks=1
        )
        due = time.perf_counter()
        while not self._stopped:
            expect(produce_error((yield Ask(channel, frame))), "a batch")
            due += TICK_SECONDS
            yield Pause(max(0.0, due - time.perf_counter()))
