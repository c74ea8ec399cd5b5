"""Handlers that wait, run without tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from braidmq.faces.kafka.handler_run import HandlerRun


class Outcome:
    def __init__(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self.answers: list[object] = []
        self.errors: list[Exception] = []
        HandlerRun(coroutine, self.answers.append, self.errors.append).step()


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_a_handler_that_does_not_wait_has_answered_at_once() -> None:
    """W2: nobody pays for waiting that does not happen."""

    async def handler() -> str:
        return "done"

    assert Outcome(handler()).answers == ["done"]


def test_a_handler_goes_on_when_what_it_waits_for_is_there() -> None:
    """W2: futures, events, locks and turns of the loop can be waited for."""

    async def run() -> None:
        ready: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        event, lock = asyncio.Event(), asyncio.Lock()

        async def handler() -> int:
            number = await ready
            await asyncio.sleep(0)
            await event.wait()
            async with lock:
                return number

        await lock.acquire()
        outcome = Outcome(handler())
        ready.set_result(7)
        await turns()
        event.set()
        await turns()
        assert outcome.answers == []
        lock.release()
        await turns()
        assert outcome.answers == [7]

    asyncio.run(run())


def test_what_goes_wrong_while_a_handler_waits_is_told() -> None:
    """W2: an error before or after the first wait reaches whoever answers the client."""

    async def run() -> None:
        ready: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        async def late() -> int:
            return await ready

        async def early() -> int:
            raise ValueError("at once")

        assert [str(error) for error in Outcome(early()).errors] == ["at once"]
        outcome = Outcome(late())
        ready.set_exception(ValueError("later"))
        await turns()
        assert [str(error) for error in outcome.errors] == ["later"]
        assert outcome.answers == []

    asyncio.run(run())


def test_an_answer_that_cannot_be_sent_has_failed() -> None:
    """W2: without this a client would wait for ever for an answer that nobody gives."""

    async def run() -> None:
        ready: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        errors: list[Exception] = []

        async def handler() -> int:
            return await ready

        def answered(_: object) -> None:
            raise ValueError("it cannot be encoded")

        HandlerRun(handler(), answered, errors.append).step()
        ready.set_result(1)
        await turns()
        assert [str(error) for error in errors] == ["it cannot be encoded"]

    asyncio.run(run())
