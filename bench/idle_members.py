"""The members of many groups: `python -m bench.idle_members HOST PORT COUNT TOPIC TOPIC_ID`.

Each has a connection of its own, joins (group.protocol=consumer), and from then on only says that it is
there, as often as the server wants it. It is a process of its own so that it takes its turns while the
server is measured. It ends when its input does, and fails if the server has refused, fenced or forgotten a
member.
"""

from __future__ import annotations

import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from .channel import Address
from .coordinators import await_group_coordinators
from .crowd import Ask, Client, Crowd, Pause
from .server import Server
from .wire_groups import beat, consumer_heartbeat_frame, expect

MEMBERS_EACH = 100
PAUSE_EVERY = 200
PAUSE_SECONDS = 0.01
LOOK_SECONDS = 0.1


def group_names(members: int) -> list[str]:
    return [f"idle{number:04d}" for number in range(members // MEMBERS_EACH)]


@contextmanager
def joined(server: Server, count: int, topic: str, topic_id: bytes) -> Iterator[float]:
    """While inside, so many members heartbeat; the seconds it took until all had joined."""
    await_group_coordinators(server, group_names(count))
    host, port = server.address
    command = [sys.executable, "-m", "bench.idle_members", host, str(port), str(count), topic, topic_id.hex()]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as members:
        assert members.stdout is not None
        assert members.stdin is not None
        said = members.stdout.readline().split()
        if said[:1] != [b"joined"]:
            raise RuntimeError(f"{count} members could not join")
        yield float(said[1])
        members.stdin.close()
        if members.wait():
            raise RuntimeError("the server has lost some of the members")


class _House:
    """All the members, how many of them are settled, and whether it is time to go."""

    def __init__(self, address: Address, topic: str, topic_id: bytes) -> None:
        self.crowd = Crowd(address)
        self._topic, self._topic_id = topic, topic_id
        self.settled = 0
        self.over = False

    def member(self, group: str, member_id: str) -> Client:
        channel = self.crowd.connect()
        nothing = (self._topic_id, frozenset[int]())
        joining = consumer_heartbeat_frame(group, member_id, 0, self._topic, nothing)
        told = beat((yield Ask(channel, joining)))
        self.settled += 1
        owned: frozenset[int] = frozenset()
        while True:
            expect(told.code, f"a heartbeat of {member_id}")
            if told.assigned is not None and told.assigned != owned:
                owned = told.assigned
                frame = consumer_heartbeat_frame(group, member_id, told.epoch, None, (self._topic_id, owned))
            else:
                yield Pause(told.interval_s)
                frame = consumer_heartbeat_frame(group, member_id, told.epoch)
            told = beat((yield Ask(channel, frame)))

    def watching(self) -> Client:
        """Notices the end of the input."""
        while not self.over:
            yield Pause(LOOK_SECONDS)
            self.over = bool(select.select([sys.stdin], [], [], 0)[0])


def main() -> int:
    host, port, count, topic, topic_id = sys.argv[1:]
    house = _House((host, int(port)), topic, bytes.fromhex(topic_id))
    started = time.perf_counter()
    number = 0
    for place in range(MEMBERS_EACH):
        for group in group_names(int(count)):
            house.crowd.start([house.member(group, f"{group}-{place:03d}")])
            number += 1
            if number % PAUSE_EVERY == 0:
                # Kafka's listen backlog is 50; and those who have joined must not wait for the others.
                end = time.perf_counter() + PAUSE_SECONDS
                house.crowd.run(lambda end=end: time.perf_counter() > end)
    house.crowd.run(lambda: house.settled == number)
    print(f"joined {time.perf_counter() - started:.3f}", flush=True)
    house.crowd.start([house.watching()])
    house.crowd.run(lambda: house.over)
    return 0


if __name__ == "__main__":
    sys.exit(main())
