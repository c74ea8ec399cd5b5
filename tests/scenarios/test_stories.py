"""The stories under tests/scenarios, each played and compared with what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from scenarios import server_story, story, streams_story, txn_story

STORIES = sorted(Path(__file__).parent.glob("*.txt"))
TELLERS = {"server": server_story.played, "streams": streams_story.played, "txn": txn_story.played}
"""By the first word of the file's name; the rest are stories of classic groups."""


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_a_story_goes_as_it_is_told(path: Path) -> None:
    """C4 T2: groups that form, change and end; transactions that commit, abort, are fenced and recovered."""
    told = path.read_text(encoding="utf-8")
    played = TELLERS.get(path.name.split("_")[0], story.played)
    assert played(told) == told
