"""Which tables a SQL text reads, found without Spark's parser.

Enough to draw the graph and to catch a misspelt table before Spark starts: the words after FROM and JOIN and
the commas between them, less comments, texts, the query's own WITH names and functions that use FROM inside.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_NOISE = re.compile(r"--[^\n]*|/\*.*?\*/|'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)
_FROM_INSIDE = re.compile(r"\b(?:extract|trim|substring|substr|overlay|position)\s*\([^()]*\)", re.IGNORECASE)
_WORD = re.compile(r"`[^`]+`|[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*|[(),]")
_WITH_NAME = re.compile(r"(?:\bwith\s+(recursive\s+)?|,\s*)(\w+)\s+as\s*\(", re.IGNORECASE)
_ENDS_FROM = {"where", "group", "having", "order", "limit", "window", "union", "intersect", "except"}
_ENDS_FROM |= {"on", "using", "select", "lateral", "distribute", "sort"}
_JOINS = {"join", "inner", "left", "right", "full", "outer", "cross", "semi", "anti", "natural"}
_STATEFUL = re.compile(
    r"\bgroup\s+by\b|\bdistinct\b|\b(?:count|sum|avg|min|max|first|last|collect_list|collect_set)\s*\(",
    re.IGNORECASE,
)


def tables(sql: str) -> tuple[str, ...]:
    """The names of the tables a query reads, in the order in which they first appear."""
    text = _FROM_INSIDE.sub(" ", _NOISE.sub(" ", sql))
    own = list(_own(text))
    found = dict.fromkeys(
        name
        for at, name in _read(text)
        if not any(name.lower() == each and at > begin for each, begin in own)
    )
    return tuple(found)


def _own(text: str) -> Iterator[tuple[str, int]]:
    """WITH names and where each begins to apply: within its own query the name means another table."""
    for found in _WITH_NAME.finditer(text):
        at, depth = found.end(), 1
        while depth and at < len(text):
            depth += {"(": 1, ")": -1}.get(text[at], 0)
            at += 1
        yield found[2].lower(), found.start() if found[1] else at


def _read(text: str) -> Iterator[tuple[int, str]]:
    """Walks the words; `expecting` a table after FROM, JOIN and the commas of a FROM list."""
    matches = list(_WORD.finditer(text))
    words = [match[0] for match in matches]
    expecting, in_from, outer = False, False, []
    for index, word in enumerate(words):
        lower = word.lower()
        if word == "(":
            outer.append((expecting, in_from))
            expecting = in_from = False
        elif word == ")":
            expecting, in_from = (False, outer.pop()[1]) if outer else (False, False)
        elif lower in ("from", "join"):
            expecting = in_from = True
        elif word == ",":
            expecting = in_from
        elif lower in _ENDS_FROM:
            expecting = in_from = False
        elif expecting and lower not in _JOINS and lower not in ("stream", "values"):
            expecting = False
            if words[index + 1 : index + 2] != ["("]:
                yield matches[index].start(), word.strip("`")


def is_stateful(sql: str, streams: int) -> bool:
    """Whether the query keeps state between batches: it aggregates, or joins two streams."""
    text = _NOISE.sub(" ", sql)
    return bool(_STATEFUL.search(text)) or (streams > 1 and re.search(r"\bjoin\b", text, re.I) is not None)


def normal(sql: str) -> str:
    """A query without comments, with normal spacing, and in one case outside of quotes."""
    parts = []
    last = 0
    for found in _NOISE.finditer(sql):
        parts.append(sql[last : found.start()].lower())
        parts.append(" " if found[0].startswith(("--", "/*")) else found[0])
        last = found.end()
    parts.append(sql[last:].lower())
    return " ".join("".join(parts).split()).removesuffix(";").strip()
