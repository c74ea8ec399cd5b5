"""The stories under tests/scenarios, each played and compared with what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from scenarios import server_story, story

STORIES = sorted(Path(__file__).parent.glob("*.txt"))


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_a_story_goes_as_it_is_told(path: Path) -> None:
    """C4: join, leave, crash, slow member, rejoin, static restart, two topics, new partitions."""
    told = path.read_text(encoding="utf-8")
    played = server_story.played if path.name.startswith("server_") else story.played
    assert played(told) == told
