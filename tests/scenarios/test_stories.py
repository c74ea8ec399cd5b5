"""The stories under tests/scenarios, each played and compared with what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from scenarios.playing import played

STORIES = sorted(Path(__file__).parent.glob("*.txt"))


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_a_story_goes_as_it_is_told(path: Path) -> None:
    """C4 T2: groups that form, change and end; transactions that commit, abort, are fenced and recovered."""
    assert played(path) == path.read_text(encoding="utf-8")
