"""Loggers of the broker, read and changed by clients (KIP-412)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from braidmq.wire.errors import ErrorCode
from braidmq.wire.messages.configs import AlterConfigsRequest, AlterConfigsResource, AlterConfigsResponse
from unit.faces.options_client import APPEND, LOGGER, change, described, refused, set_options
from unit.faces.spoken import Speaker, speaker

FROM_LOGGER = 6


@pytest.fixture(autouse=True)
def _levels() -> Iterator[None]:
    """Leaves the loggers of the test process as they were."""
    loggers = [logging.getLogger(), *(logging.getLogger(name) for name in ("braid", "braid.net"))]
    before = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, before, strict=True):
        logger.setLevel(level)


def tell(data: Path, story: Callable[[Speaker], Awaitable[None]]) -> None:
    async def told() -> None:
        async with speaker(data) as one:
            await story(one)

    asyncio.run(told())


def test_a_logger_has_the_level_it_is_given_and_else_that_further_up(tmp_path: Path) -> None:
    """O1: levels of the process itself, by Kafka's names for them."""

    async def story(one: Speaker) -> None:
        async def level(name: str) -> str | None:
            return (await described(one, LOGGER, "1"))[name].value

        await set_options(one, LOGGER, "1", {"root": "WARN"})
        assert (await level("root"), await level("braid.net")) == ("WARN", "WARN")
        await set_options(one, LOGGER, "1", {"braid": "DEBUG", "braid.net": "ERROR"})
        assert logging.getLogger("braid").isEnabledFor(logging.DEBUG)
        assert not logging.getLogger("braid.net").isEnabledFor(logging.WARNING)
        assert (await level("braid.net"), await level("braid.broker")) == ("ERROR", "DEBUG")
        await set_options(one, LOGGER, "1", {"braid.net": None})
        assert await level("braid.net") == "DEBUG"
        entry = (await described(one, LOGGER, "1", ["braid"]))["braid"]
        assert (entry.config_source, entry.read_only) == (FROM_LOGGER, False)

    tell(tmp_path, story)


def test_loggers_and_levels_that_do_not_exist_are_refused(tmp_path: Path) -> None:
    """O1: nothing is changed, and the root keeps a level."""

    async def story(one: Speaker) -> None:
        await set_options(one, LOGGER, "1", {"root": "INFO"})
        assert await refused(one, LOGGER, "1", {"braid.nobody": "INFO"}) is ErrorCode.INVALID_CONFIG
        assert await refused(one, LOGGER, "1", {"urllib3": "INFO"}) is ErrorCode.INVALID_CONFIG
        assert await refused(one, LOGGER, "1", {"root": "LOUD"}) is ErrorCode.INVALID_CONFIG
        assert await refused(one, LOGGER, "1", {"root": None}) is ErrorCode.INVALID_REQUEST
        assert await refused(one, LOGGER, "7", {"root": "INFO"}) is ErrorCode.INVALID_REQUEST
        assert (await change(one, LOGGER, "1", {"root": "INFO"}, APPEND)).error_code
        whole = AlterConfigsResource(resource_type=LOGGER, resource_name="1", configs=[])
        answer = await one.ask(AlterConfigsRequest(resources=[whole]), AlterConfigsResponse)
        assert answer.responses[0].error_code == ErrorCode.INVALID_REQUEST
        checked = await change(one, LOGGER, "1", {"root": "ERROR"}, validate_only=True)
        assert checked.error_code == 0
        assert logging.getLogger().level == logging.INFO

    tell(tmp_path, story)
