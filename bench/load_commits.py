"""Offset commits: consumers in groups that commit again and again, each with one request in flight.

Members have joined as the classic protocol wants it, each commits the positions of its own partitions, and a
commit counts when it is answered without an error. A consumer that works record by record does this.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

from . import wire_groups as wire
from .coordinators import await_group_coordinators
from .crowd import Ask, Client, Crowd
from .members import ClassicMember, Hall, Kind
from .metric import (
    COMMIT_P99,
    COMMIT_RATE,
    CPU_PER_MILLION_BEATS,
    CPU_PER_MILLION_COMMITS,
    GROUPS_JOINED,
    GROUPS_RATE,
    P99,
    RSS_LOADED,
    Figures,
    latencies,
)
from .server import Durability, Server
from .topics import create, fresh_topic, wait_writable

GROUPS = 8
MEMBERS = 8
PARTITIONS = 32
PAUSE_AFTER = 100
WARMUP_SECONDS = 1.5
"""Of what is measured: the JVM compiles the verbs of groups only when it sees them."""
_numbers = itertools.count(1)


class Committer(ClassicMember):
    """Commits as fast as it is answered; where wanted, with a heartbeat between commits."""

    def __init__(self, hall: Hall, crowd: Crowd, with_heartbeats: bool = False) -> None:
        super().__init__(hall, crowd, Kind.EAGER)
        self._with_heartbeats = with_heartbeats
        self.ready = False
        self.working: Callable[[], bool] = lambda: False
        self.samples_s: list[float] = []
        self.heartbeats = 0

    def joining(self) -> Client:
        yield from self._rebalance()
        self.ready = True

    def committing(self) -> Client:
        hall = self._hall
        beat = wire.heartbeat_frame(hall.group, self._generation, self.member_id)
        offset = 0
        while self.working():
            offset += 1
            offsets = dict.fromkeys(self.reading, offset)
            frame = wire.commit_frame(hall.group, self._generation, self.member_id, hall.topic, offsets)
            begun = time.perf_counter()
            wire.expect(wire.commit_error((yield Ask(self._coordinator, frame))), "a commit")
            self.samples_s.append(time.perf_counter() - begun)
            if self._with_heartbeats:
                wire.expect(wire.heartbeat_error((yield Ask(self._coordinator, beat))), "a heartbeat")
                self.heartbeats += 1


def commits(server: Server, seconds: float) -> Figures:
    """Commits per second of 64 consumers in 8 groups, 4 partitions in each commit."""
    with fresh_topic(server, PARTITIONS, Durability.CACHED) as topic:
        crowd = Crowd(server.address)
        try:
            members, _ = _joined(server, crowd, topic, PARTITIONS, GROUPS, MEMBERS)
            _commit(crowd, members, WARMUP_SECONDS)
            for member in members:
                member.samples_s.clear()
            cpu_before = server.cpu_seconds()
            elapsed = _commit(crowd, members, seconds)
            cpu = server.cpu_seconds() - cpu_before
        finally:
            crowd.close()
    samples_s = [sample for member in members for sample in member.samples_s]
    return {
        COMMIT_RATE: len(samples_s) / elapsed,
        COMMIT_P99: latencies(samples_s)[P99],
        CPU_PER_MILLION_COMMITS: cpu / (len(samples_s) / 1e6),
    }


def many_groups(server: Server, groups: int, seconds: float) -> Figures:
    """A member, its heartbeats and its commits in each of many groups; a server of its own, left stopped."""
    server.start()
    create(server, ["read"], 1, server.topic_config(Durability.CACHED))
    wait_writable(server, "read", 1)
    commits(server, seconds)
    crowd = Crowd(server.address)
    try:
        members, joined = _joined(server, crowd, "read", 1, groups, 1, with_heartbeats=True)
        cpu_before = server.cpu_seconds()
        elapsed = _commit(crowd, members, seconds)
        cpu = server.cpu_seconds() - cpu_before
        rss = server.rss_mb()
    finally:
        crowd.close()
    server.stop()
    done = sum(len(member.samples_s) + member.heartbeats for member in members)
    return {
        GROUPS_JOINED: joined,
        GROUPS_RATE: done / elapsed,
        CPU_PER_MILLION_BEATS: cpu / (done / 1e6),
        RSS_LOADED: rss,
    }


def _joined(
    server: Server,
    crowd: Crowd,
    topic: str,
    partitions: int,
    groups: int,
    members_each: int,
    with_heartbeats: bool = False,
) -> tuple[list[Committer], float]:
    """Members of new groups, and the seconds until all of them had joined."""
    run = next(_numbers)
    names = [f"commits{run:03d}-{number:05d}" for number in range(groups)]
    await_group_coordinators(server, names)
    members = []
    for name in names:
        hall = Hall(name, topic, b"", partitions)
        members += [Committer(hall, crowd, with_heartbeats) for _ in range(members_each)]
        if len(members) % PAUSE_AFTER == 0:
            time.sleep(0.01)  # Kafka's listen backlog is 50
    started = time.perf_counter()
    crowd.start(member.joining() for member in members)
    crowd.run(lambda: False)
    seconds = time.perf_counter() - started
    if not all(member.ready for member in members):
        raise RuntimeError("not every member could join")
    return members, seconds


def _commit(crowd: Crowd, members: list[Committer], seconds: float) -> float:
    """Lets all of them commit for a while; the seconds until the last was answered."""
    started = time.perf_counter()
    deadline = started + seconds
    for member in members:
        member.working = lambda: time.perf_counter() < deadline
    crowd.start(member.committing() for member in members)
    crowd.run(lambda: False)
    return time.perf_counter() - started
