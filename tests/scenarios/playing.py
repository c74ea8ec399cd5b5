"""Plays a story file: its lines are told one after the other, and what is answered is written below each.

`python -m scenarios.playing FILE…` writes the answers into the files. Then read whether you agree.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Protocol

from scenarios import server_story, story, streams_story, txn_story


class Teller(Protocol):
    """One story: lines in, answers out."""

    def play(self, line: str) -> Iterable[str]: ...


TELLERS: dict[str, Callable[[], Teller]] = {
    "server": server_story.Story,
    "streams": streams_story.Story,
    "txn": txn_story.Story,
}
"""By the first word of the file's name; the rest are stories of classic groups."""


def played(path: Path) -> str:
    """The story of a file with the answers that really come."""
    teller = TELLERS.get(path.name.split("_")[0], story.Story)()
    return "\n".join(_lines(teller, path.read_text(encoding="utf-8"))) + "\n"


def _lines(teller: Teller, text: str) -> Iterator[str]:
    for line in text.splitlines():
        if line.lstrip().startswith("|"):
            continue
        yield line
        if line and not line.startswith("#"):
            yield from (f"      | {answer}" for answer in teller.play(line))


if __name__ == "__main__":
    for file in map(Path, sys.argv[1:]):
        file.write_text(played(file), encoding="utf-8")
