"""What a redrive refuses by its journal, before it reads a dead letter; the rest is in tests/spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from braidmq.spark.lake.lake import Lake
from braidmq.spark.rescue.errors import RescueError
from braidmq.spark.rescue.redrive import PLAN, Redrive, redrive

NewTopic = Callable[..., str]
NO_SESSION: Any = None


@pytest.fixture
def journal(tmp_path: Path) -> Lake:
    made = Lake(tmp_path / "journal")
    made.create(PLAN)
    return made


def test_a_journal_of_dead_letters_that_were_deleted_and_made_again_is_refused(
    bootstrap: str, new_topic: NewTopic, journal: Lake
) -> None:
    """S6: a new letter at an old offset would count as sent back."""
    dead, orders = new_topic(), new_topic()
    journal.append_staged(lambda _: [], onto=journal.snapshot(), reached={}, topic_ids={dead: "0a" * 16})
    with pytest.raises(RescueError, match=f"{dead} was deleted and recreated.*another --checkpoint"):
        redrive(NO_SESSION, Redrive(bootstrap, dead, orders, journal))


def test_letters_that_are_on_their_way_elsewhere_are_not_sent_to_another_topic(
    bootstrap: str, new_topic: NewTopic, journal: Lake
) -> None:
    """S6: nor counted as sent; the run they belong to is to be finished first."""
    dead, orders = new_topic(), new_topic()
    journal.mark(f"plan/{dead}/elsewhere/1")
    again = f"braid topic redrive {dead} --to-topic elsewhere --checkpoint {journal.path}"
    said = f"sends {dead} to elsewhere is not finished.*{again}"
    with pytest.raises(RescueError, match=said):
        redrive(NO_SESSION, Redrive(bootstrap, dead, orders, journal))
