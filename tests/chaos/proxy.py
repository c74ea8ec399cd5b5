"""A TCP proxy before a broker that strikes at one chosen request, so that it dies in the middle of a step.

Clients are told the proxy's address, so everything passes through it. It knows just enough of the protocol to
see which verb a frame is about: api key and correlation id of a request, correlation id of an answer. Armed
with a verb and a moment, it lets the next such request not reach the broker, or its answer not reach the
client, and calls what it was armed with, once.
"""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum

from braidmq.wire.api import Api

REQUEST = struct.Struct(">hhi")
ANSWER = struct.Struct(">i")
SIZE = struct.Struct(">i")


class Moment(StrEnum):
    BEFORE = "before the request arrives"
    AFTER = "before the answer arrives"


@dataclass(slots=True)
class Strike:
    api: Api
    moment: Moment
    call: Callable[[], None]
    done: threading.Event


class Proxy:
    """`address` stays while brokers behind it come and go. Runs on a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._target: tuple[str, int] | None = None
        self._strike: Strike | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._ready.wait()

    def lead_to(self, bootstrap: str) -> None:
        host, _, port = bootstrap.rpartition(":")
        self._target = (host, int(port))

    def arm(self, api: Api, moment: Moment, call: Callable[[], None]) -> threading.Event:
        """The next request of this kind is the last one of this broker. The event is set when it was."""
        done = threading.Event()
        self._strike = Strike(api, moment, call, done)
        return done

    def disarm(self) -> None:
        self._strike = None

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.address = "{}:{}".format(*server.sockets[0].getsockname())
        self._ready.set()
        self._loop.run_forever()
        server.close()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*asyncio.all_tasks(self._loop), return_exceptions=True))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked: dict[int, int] = {}
        try:
            assert self._target is not None
            far_reader, far_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.close()
            return
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._carry_requests(reader, far_writer, asked))
                both.create_task(self._carry_answers(far_reader, writer, asked))
        except* (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            for each in (writer, far_writer):
                with suppress(OSError):
                    each.close()

    async def _carry_requests(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: dict[int, int]
    ) -> None:
        while True:
            frame = await _frame(reader)
            api, _, correlation = REQUEST.unpack_from(frame, SIZE.size)
            asked[correlation] = api
            self._hit(api, Moment.BEFORE)
            writer.write(frame)
            await writer.drain()

    async def _carry_answers(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: dict[int, int]
    ) -> None:
        while True:
            frame = await _frame(reader)
            (correlation,) = ANSWER.unpack_from(frame, SIZE.size)
            self._hit(asked.pop(correlation, -1), Moment.AFTER)
            writer.write(frame)
            await writer.drain()

    def _hit(self, api: int, moment: Moment) -> None:
        strike = self._strike
        if strike is not None and strike.api == api and strike.moment is moment:
            self._strike = None
            strike.call()
            strike.done.set()
            raise ConnectionResetError("struck")


async def _frame(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readexactly(SIZE.size)
    return head + await reader.readexactly(SIZE.unpack(head)[0])
