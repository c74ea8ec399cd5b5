"""Errors in a pipeline, with file, line and, if one is close, the right name.

All mistakes of a file are collected and shown together, each as `file:line: what; what to do`, before Spark
starts: a session takes seconds, and a typing error should not.
"""

from __future__ import annotations

import difflib
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from braidmq.spark.errors import UserError

MISTAKES_MAX = 50
"""Otherwise a file that is no pipeline at all would fill the screen."""


class PipelineError(UserError):
    """A pipeline cannot be loaded, started or continued; the text says why and what to do."""


class NotInstalled(PipelineError):
    """Spark, or the Java it runs on, is missing."""


@dataclass(frozen=True, slots=True)
class Location:
    """File and line of a part, and the lines of its keys."""

    file: str
    line: int
    keys: Mapping[str, int] = field(default_factory=dict, compare=False, repr=False)

    def of(self, key: str) -> Location:
        """The location of a key; that of the whole part if the key is not written."""
        return Location(self.file, self.keys.get(key, self.line))

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Mistake:
    location: Location
    text: str

    def __str__(self) -> str:
        return f"{self.location}: {self.text}"


class PipelineMistakes(PipelineError):
    """Everything that is wrong with a pipeline's file."""

    @classmethod
    def at(cls, location: Location, text: str) -> PipelineMistakes:
        return cls([Mistake(location, text)])

    def __init__(self, mistakes: Iterable[Mistake]) -> None:
        self.mistakes = tuple(sorted(mistakes, key=lambda mistake: mistake.location.line))
        super().__init__("\n".join(map(str, self.mistakes)))


@dataclass(slots=True)
class Notebook:
    """Collects mistakes while a pipeline is read."""

    file: str
    mistakes: list[Mistake] = field(default_factory=list)

    def note(self, line: int, text: str) -> None:
        if len(self.mistakes) < MISTAKES_MAX:
            self.mistakes.append(Mistake(Location(self.file, line), text))

    def raise_if_any(self) -> None:
        if self.mistakes:
            raise PipelineMistakes(self.mistakes)


def where_it_failed(error: Exception, file: str) -> str:
    """An exception of the user's code, with the innermost line of their file."""
    frames = traceback.extract_tb(error.__traceback__)
    theirs = Path(file).resolve()
    lines = (frame.lineno for frame in reversed(frames) if Path(frame.filename).resolve() == theirs)
    line = next(lines, None)
    return f"{Location(file, line) if line else file}: {type(error).__name__}: {error}"


def closest(name: str, known: Iterable[str]) -> str | None:
    """The known name that was most probably meant."""
    found = difflib.get_close_matches(name.lower(), {each.lower(): each for each in known}, 1, 0.6)
    return next((each for each in known if found and each.lower() == found[0]), None)


def suggestion(name: str, known: Iterable[str]) -> str:
    """`; did you mean x?` if a name is close, else the list of names."""
    names = list(known)
    meant = closest(name, names)
    if meant is not None:
        return f"; did you mean {meant}?"
    return f"; there are: {', '.join(names)}" if names else ""
