"""One mapping of a pipeline's file, read key by key with the kind of value each must have.

Mistakes go to the notebook, and parsing continues with a default, so that one run shows all mistakes.
`finish` notes unknown keys.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any, TypeVar

from braidmq.spark.pipelines.document import Node
from braidmq.spark.pipelines.duration import Duration, parse_duration
from braidmq.spark.pipelines.mistakes import Notebook, suggestion

E = TypeVar("E", bound=StrEnum)
NUMBER_MAX = 2**53


class Section:
    """The keys of a mapping; `what` names it in messages."""

    def __init__(self, node: Node, what: str, notebook: Notebook) -> None:
        self.what = what
        self.line = node.line
        self.notebook = notebook
        self._asked: set[str] = set()
        self._entries: dict[str, Node] = {}
        if isinstance(node.value, dict):
            self._entries = node.value
        else:
            self.note(f"{what} must be a mapping of names to values", node.line)

    def __contains__(self, key: str) -> bool:
        return key in self._entries

    def note(self, text: str, line: int | None = None) -> None:
        self.notebook.note(self.line if line is None else line, text)

    @property
    def lines(self) -> dict[str, int]:
        return {key: node.line for key, node in self._entries.items()}

    def line_of(self, key: str) -> int:
        return self._entries[key].line if key in self._entries else self.line

    def node(self, key: str) -> Node | None:
        """The value of a key; a key without a value counts as missing."""
        self._asked.add(key)
        node = self._entries.get(key)
        return None if node is None or node.value is None else node

    def text(self, key: str, required: bool = False) -> str | None:
        node = self.node(key)
        if node is None:
            if required:
                self.note(f"{self.what} needs {key}", self.line_of(key))
            return None
        if isinstance(node.value, bool) or not isinstance(node.value, str | int | float):
            self.note(f"{key} must be a text", node.line)
            return None
        text = str(node.value).strip()
        if not text:
            self.note(f"{key} is empty", node.line)
            return None
        return text

    def number(self, key: str, default: int, least: int = 1, most: int = NUMBER_MAX) -> int:
        node = self.node(key)
        if node is None:
            return default
        number = _whole(node.value)
        if number is None:
            self.note(f"{key} must be a whole number, not {node.value!r}", node.line)
        elif not least <= number <= most:
            self.note(f"{key} must be from {least:,} to {most:,}, not {number:,}", node.line)
        else:
            return number
        return default

    def choice(self, key: str, choices: type[E], default: E) -> E:
        text = self.text(key)
        if text is None:
            return default
        names = [each.value for each in choices]
        if text.lower() in names:
            return choices(text.lower())
        self.note(f"{key} cannot be {text}{suggestion(text, names)}", self.line_of(key))
        return default

    def duration(self, key: str) -> Duration | None:
        text = self.text(key)
        if text is None:
            return None
        found = parse_duration(text)
        if found is None:
            self.note(
                f"{key}: {text!r} is not a duration; write for example 10 seconds, 5 minutes or 1 hour",
                self.line_of(key),
            )
        return found

    def names(self, key: str, required: bool = False) -> tuple[str, ...]:
        """One name or a list of them; `a, b` is a list too."""
        node = self.node(key)
        if node is None:
            if required:
                self.note(f"{self.what} needs {key}", self.line_of(key))
            return ()
        if isinstance(node.value, str):
            return tuple(part.strip() for part in node.value.split(",") if part.strip())
        if isinstance(node.value, list) and all(isinstance(each.value, str) for each in node.value):
            return tuple(str(each.value).strip() for each in node.value)
        self.note(f"{key} must be a name or a list of names", node.line)
        return ()

    def options(self, key: str) -> tuple[tuple[str, str], ...]:
        """A mapping of names to plain values, unstripped: a separator may be a tab."""
        node = self.node(key)
        if node is None:
            return ()
        if not isinstance(node.value, dict):
            self.note(f"{key} must be a mapping of names to values", node.line)
            return ()
        pairs = []
        for name, each in node.value.items():
            if isinstance(each.value, str | int | float):
                value = str(each.value).lower() if isinstance(each.value, bool) else str(each.value)
                pairs.append((name, value))
            elif each.value is None:
                hint = "; within { } quote a text with commas" if ")" in name else ""
                self.note(f"{key}: {name} has no value{hint}", each.line)
            else:
                self.note(f"{key}: {name} must have a plain value", each.line)
        return tuple(pairs)

    def section(self, key: str, what: str) -> Section | None:
        node = self.node(key)
        return None if node is None else Section(node, what, self.notebook)

    def sections(self, key: str, what: str) -> list[tuple[str, Section]]:
        """A mapping of names to mappings, in the order of the file."""
        node = self.node(key)
        if node is None:
            return []
        if not isinstance(node.value, dict):
            self.note(f"{key} must be a mapping: a name, then below it what it is", node.line)
            return []
        return [(name, Section(each, f"{what} {name}", self.notebook)) for name, each in node.value.items()]

    def one_of(self, kinds: dict[str, Callable[..., Any]]) -> str | None:
        """The one key of `kinds` that says what this section is."""
        given = [kind for kind in kinds if kind in self._entries]
        if len(given) == 1:
            return given[0]
        # Its kind is unknown, and so are its right keys.
        self._asked.update(self._entries)
        if given:
            self.note(f"{self.what} has both {given[0]} and {given[1]}; keep one", self.line_of(given[1]))
            return None
        near = next((key for key in self._entries if suggestion(key, kinds).startswith("; did")), None)
        if near is not None:
            self.note(f"{self.what}: unknown key {near}{suggestion(near, kinds)}", self.line_of(near))
        else:
            self.note(f"{self.what} needs one of {', '.join(kinds)}")
        return None

    def finish(self) -> None:
        for key, node in self._entries.items():
            if key not in self._asked:
                left = [name for name in sorted(self._asked) if name not in self._entries]
                self.note(f"{self.what}: unknown key {key}{suggestion(key, left)}", node.line)


def _whole(value: object) -> int | None:
    """A number, or the text of one."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    try:
        return int(value)
    except ValueError:
        return None
