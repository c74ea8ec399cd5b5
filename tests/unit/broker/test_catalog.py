"""Topics as groups see them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from braidmq.wire.errors import ApiError, ErrorCode
from unit.embedded import embedded


def test_topics_are_found_by_pattern_and_followed_as_they_change(tmp_path: Path) -> None:
    """C4: a subscription by pattern sees topics come, grow and go."""

    async def run() -> None:
        async with embedded(tmp_path) as broker:
            catalog = broker.catalog
            for name in ("orders.eu", "orders.us", "clicks"):
                await broker.topics.create(name, 1, {})
            assert catalog.matching("orders\\..*") == {"orders.eu", "orders.us"}
            assert catalog.matching("orders") == frozenset()
            before = catalog.version
            await broker.topics.grow("clicks", 3)
            assert catalog.version != before
            assert catalog.topics["clicks"].partitions == 3
            await broker.delete_topic("orders.us")
            assert catalog.matching("orders\\..*") == {"orders.eu"}

    asyncio.run(run())


@pytest.mark.parametrize("pattern", ["(", "a{5000}", "(?=x)", "\\1", "x" * 2000])
def test_patterns_that_cannot_be_matched_in_linear_time_are_refused(tmp_path: Path, pattern: str) -> None:
    """W5: a client's pattern never keeps the broker busy."""

    async def run() -> None:
        async with embedded(tmp_path) as broker:
            with pytest.raises(ApiError) as caught:
                broker.catalog.matching(pattern)
            assert caught.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION

    asyncio.run(run())
