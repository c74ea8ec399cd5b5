"""What an audit is about, before anything is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from braidmq.spark.lake.lake import Lake
from braidmq.spark.rescue.audit_inputs import TopicReader, open_inputs
from braidmq.spark.rescue.errors import RescueError


@pytest.mark.parametrize(
    ("reached", "has"),
    [({"orders": {0: 5}, "bills": {0: 5}}, "bills, orders"), ({}, "no archived topic")],
)
def test_a_lake_without_the_topic_is_not_compared_with_it(
    bootstrap: str,
    new_topic: Callable[..., str],
    tmp_path: Path,
    reached: dict[str, dict[int, int]],
    has: str,
) -> None:
    """S6: nothing against nothing would be the same; a wrong folder, or a lake without positions, is told."""
    no_session: Any = None
    lake, topic = Lake(tmp_path / "lake"), new_topic()
    lake.append_staged(lambda _: [], onto=lake.create(), reached=reached)
    for sides in ((topic, str(lake.path)), (str(lake.path), topic)):
        with pytest.raises(RescueError, match=f"lake has no records of {topic}.*it has {has}$"):
            open_inputs(TopicReader(no_session, bootstrap), *sides)
