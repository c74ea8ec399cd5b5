"""Many clients on one thread: each is a generator that yields what it waits for.

    def client(channel):
        answer = yield Ask(channel, frame)      # sends it, and goes on with the answer
        yield Pause(0.05)                       # goes on after so many seconds

It costs a few microseconds a step, the same for either server, where a thread or a task for each client would
cost more than the server that is measured.
"""

from __future__ import annotations

import heapq
import itertools
import select
import time
from collections.abc import Callable, Generator, Iterable
from typing import NamedTuple

from .channel import Address, Channel

STALL_SECONDS_MAX = 60.0


class Ask(NamedTuple):
    channel: Channel
    frame: bytes


class Pause(NamedTuple):
    seconds: float


Client = Generator[Ask | Pause, bytes, None]


class Crowd:
    """Runs clients until told to stop, or until all have ended."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._poller = select.epoll()
        self._channels: dict[int, Channel] = {}
        self._waiting: dict[int, Client] = {}
        self._pausing: list[tuple[float, int, Client]] = []
        self._numbers = itertools.count()
        self._spoke = time.perf_counter()

    def connect(self) -> Channel:
        channel = Channel(self._address).nonblocking()
        self._channels[channel.fileno()] = channel
        self._poller.register(channel, select.EPOLLIN)
        return channel

    def start(self, clients: Iterable[Client]) -> None:
        for client in clients:
            self._step(client, None)

    def run(self, over: Callable[[], bool]) -> None:
        """Goes on until `over` says so, which is asked after every turn, or everybody has ended."""
        self._spoke = time.perf_counter()
        while (self._waiting or self._pausing) and not over():
            self.turn()

    def turn(self) -> None:
        now = time.perf_counter()
        while self._pausing and self._pausing[0][0] <= now:
            self._step(heapq.heappop(self._pausing)[2], None)
        if not (self._waiting or self._pausing):
            return
        wait = self._pausing[0][0] - time.perf_counter() if self._pausing else STALL_SECONDS_MAX
        events = self._poller.poll(max(0.0, wait))
        if events:
            self._spoke = time.perf_counter()
        elif self._waiting and time.perf_counter() - self._spoke > STALL_SECONDS_MAX:
            raise RuntimeError(f"the server answered nothing for {STALL_SECONDS_MAX:.0f} s")
        for number, event in events:
            channel = self._channels[number]
            if channel.unsent and event & select.EPOLLOUT and channel.send_more():
                self._poller.modify(number, select.EPOLLIN)
            if event & ~select.EPOLLOUT:
                for answer in channel.answers():
                    self._step(self._waiting.pop(number), answer)

    def _step(self, client: Client, answer: bytes | None) -> None:
        try:
            wanted = next(client) if answer is None else client.send(answer)
        except StopIteration:
            return
        if isinstance(wanted, Pause):
            due = time.perf_counter() + wanted.seconds
            heapq.heappush(self._pausing, (due, next(self._numbers), client))
            return
        channel, frame = wanted
        number = channel.fileno()
        self._waiting[number] = client
        if not channel.submit(frame):
            self._poller.modify(number, select.EPOLLIN | select.EPOLLOUT)

    def close(self) -> None:
        for channel in self._channels.values():
            channel.close()
        self._poller.close()
