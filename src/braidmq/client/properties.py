r"""Java's `.properties` files, in which Kafka's tools take their settings (`--command-config`).

A line is a name and a value, parted by `=`, `:` or white space; `#` and `!` begin a comment; a backslash at
the end of a line continues on the next, elsewhere it takes the special meaning from what follows, or gives
one to it (`\t`, `\n`, `\u00e9`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_ENTRY = re.compile(r"((?:[^\\=:\s]|\\.)*)\s*[=:]?\s*(.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_NAMED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse_properties(text: str) -> dict[str, str]:
    """Values by name; of two with the same name the later one."""
    found = {}
    for line in _whole_lines(text):
        entry = _ENTRY.fullmatch(line)
        assert entry is not None
        found[_plain(entry[1])] = _plain(entry[2])
    return found


def _whole_lines(text: str) -> Iterator[str]:
    """Lines with their continuations, without comments, empty lines, and white space in front."""
    begun = ""
    for line in text.splitlines():
        part = line.lstrip()
        if not begun and (not part or part[0] in "#!"):
            continue
        backslashes = len(part) - len(part.rstrip("\\"))
        if backslashes % 2:
            begun += part[:-1]
            continue
        yield begun + part
        begun = ""
    if begun:
        yield begun


def _plain(text: str) -> str:
    return _ESCAPE.sub(lambda found: _meant(found[1]), text)


def _meant(escaped: str) -> str:
    return chr(int(escaped[1:], 16)) if len(escaped) > 1 else _NAMED.get(escaped, escaped)
