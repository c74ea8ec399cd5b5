"""Columns as in CREATE TABLE, read without Spark: their names and types, and what is wrong with them.

Spark reads the same text later and decides; this catches common typing errors early.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from braidmq.spark.pipelines.mistakes import closest

_COLUMN = re.compile(r"\s*(`[^`]+`|\w+)\s*[\s:]\s*(\w.*)", re.DOTALL)
_QUOTED = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"")
_TYPE = re.compile(r"\s*(\w+)\s*(?:<(.*)>)?", re.DOTALL)
_WHOLE_TYPE = re.compile(r"\w+(?:\s*<.*>|\s*\([\d\s,]*\))?", re.DOTALL)
_NESTED = ("array", "map", "struct")
TYPES = (
    *("boolean", "tinyint", "byte", "smallint", "short", "int", "integer", "bigint", "long"),
    *("float", "real", "double", "decimal", "dec", "numeric", "string", "char", "character", "varchar"),
    *("binary", "date", "time", "timestamp", "timestamp_ntz", "timestamp_ltz", "interval", "variant", "void"),
    *_NESTED,
)
_OTHERS = {"text": "STRING", "datetime": "TIMESTAMP", "bool": "BOOLEAN", "str": "STRING", "number": "DOUBLE"}
_OTHERS |= {"uuid": "STRING", "json": "STRING", "bytes": "BINARY", "list": "ARRAY<…>", "object": "STRUCT<…>"}
"""Names of types in other systems."""
_AFTER_TYPES = ("not", "comment", "default", "generated")
"""What follows a type, and comes first if the type is missing."""


def columns(ddl: str) -> dict[str, str]:
    """The types by column; only for a text without `mistakes`."""
    found = {}
    for part in _parts(ddl):
        column = _COLUMN.match(part)
        kind = _WHOLE_TYPE.match(column[2]) if column else None
        if column and kind:
            found[column[1].strip("`")] = kind[0].lower()
    return found


def mistakes(ddl: str) -> Iterator[str]:
    """Brackets that do not match, columns without a type, types that do not exist."""
    plain = _QUOTED.sub("''", ddl)
    if any(plain.count(opening) != plain.count(closing) for opening, closing in ("<>", "()")):
        yield "the brackets do not match"
        return
    seen: set[str] = set()
    for part in _parts(ddl):
        column = _COLUMN.match(part)
        if column is None:
            wrong = f"{part.strip()!r} is not a column; write: name TYPE"
            yield wrong if part.strip() else "there is a comma too many"
            continue
        name = column[1].strip("`")
        if name.lower() in seen:
            yield f"column {name} is defined twice"
        seen.add(name.lower())
        yield from (f"column {name}: {wrong}" for wrong in _wrong_types(column[2]))


def _wrong_types(text: str) -> Iterator[str]:
    kind = _TYPE.match(text)
    name = kind[1] if kind else text
    if name.lower() in _AFTER_TYPES:
        yield f"there is no type before {name}; write: name TYPE {name}"
    elif name.lower() not in TYPES:
        meant = _OTHERS.get(name.lower()) or (closest(name, TYPES) or "").upper()
        hint = f"did you mean {meant}?" if meant else f"there are: {', '.join(TYPES).upper()}"
        yield f"there is no type {name}; {hint}"
    elif kind and kind[2] is not None:
        for part in _parts(kind[2]):
            inner = _COLUMN.match(part) if name.lower() == "struct" else None
            yield from _wrong_types(inner[2] if inner else part)


def _parts(text: str) -> list[str]:
    """The parts between commas, except commas in brackets and quotes."""
    parts, depth, begin = [], 0, 0
    hidden = _QUOTED.sub(lambda found: "'" * len(found[0]), text)
    for at, letter in enumerate(hidden):
        depth += (letter in "<(") - (letter in ">)")
        if letter == "," and depth == 0:
            parts.append(text[begin:at])
            begin = at + 1
    return [*parts, text[begin:]]
