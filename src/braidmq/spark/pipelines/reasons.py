"""Why a value does not fit its schema, in one sentence.

Spark only says that a value is bad. Bad values are few, so they are parsed again here, slowly, to name the
field and what is wrong with it. Types are the JSON of Spark's schema, so nothing here needs Spark.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any

from braidmq.spark.pipelines.model import ValueFormat

SHOWN_LETTERS = 60
_INTEGERS = {"byte": 2**7, "short": 2**15, "integer": 2**31, "long": 2**63}
_TIMES = ("timestamp", "timestamp_ntz", "date")
_FORMATS_OF_TIME = ("timestampformat", "timestampntzformat", "dateformat")
_NOT_NUMBERS = re.compile(r"NaN|[+-]?INF|[+-]?Infinity")
"""The strings that Spark writes and reads for special floats."""
_TYPE_KEYS = ("type", "elementType", "valueType")
_DATE = re.compile(r"\d{4}-\d{1,2}(-\d{1,2})?")


def explain(
    value: bytes | None,
    format_: ValueFormat,
    schema: dict[str, Any],
    options: Mapping[str, str] | None = None,
) -> str:
    """The first mistake in a value, by the options of Spark's parser for it."""
    if value is None:
        return "there is no value"
    try:
        text = value.decode()
    except UnicodeDecodeError as error:
        return f"not UTF-8: {error.reason} at byte {error.start}"
    known = {name.lower(): option for name, option in (options or {}).items()}
    if not known.keys().isdisjoint(_FORMATS_OF_TIME):
        schema = _without_time(schema)
    wrong = _json(text, schema, known) if format_ is ValueFormat.JSON else _csv(text, schema, known)
    return wrong or "does not fit the schema"


def _json(text: str, schema: dict[str, Any], options: Mapping[str, str]) -> str | None:
    try:
        parsed = json.loads(text, parse_constant=_refused_word)
    except json.JSONDecodeError as error:
        if any(name.startswith("allow") for name in options):
            return None  # Spark may accept more than JSON.
        return f"not JSON: {error.msg} at character {error.pos}" if text.strip() else "the value is empty"
    except RecursionError:
        return "not JSON: nested too deeply"
    except ValueError as error:
        return None if any(name.startswith("allow") for name in options) else f"not JSON: {error}"
    if not isinstance(parsed, dict):
        return f"a JSON object is expected, not {_shown(parsed)}"
    return next(_struct(parsed, schema, ""), None)


def _refused_word(word: str) -> float:
    """Rejects NaN and infinities, which Python accepts and JSON does not."""
    raise ValueError(f"{word} is not a number in JSON")


def _csv(text: str, schema: dict[str, Any], options: Mapping[str, str]) -> str | None:
    fields = schema["fields"]
    cells = _cells(text, options)
    if len(cells) != len(fields):
        return f"{len(cells)} columns, expected {len(fields)}: {', '.join(field['name'] for field in fields)}"
    for field, cell in zip(fields, cells, strict=True):
        if cell in ("", options.get("nullvalue", "")):
            if not field["nullable"]:
                return f"column {field['name']} is missing"
        elif not _fits_text(cell, field["type"]):
            return f"column {field['name']}: {_shown(cell)} is not {_type_name(field['type'])}"
    return None


def _cells(text: str, options: Mapping[str, str]) -> list[str]:
    separator = options.get("sep", options.get("delimiter", ",")).replace("\\t", "\t")
    quote = options.get("quote", '"')
    if len(separator) != 1 or len(quote) != 1:
        return text.split(separator)
    return next(csv.reader([text], delimiter=separator, quotechar=quote), [])


def _without_time(schema: Any, key: str = "") -> Any:
    """The schema with strings for times, whose form only Spark knows."""
    if isinstance(schema, dict):
        return {name: _without_time(each, name) for name, each in schema.items()}
    if isinstance(schema, list):
        return [_without_time(each) for each in schema]
    return "string" if key in _TYPE_KEYS and schema in _TIMES else schema


def _struct(value: dict[str, Any], schema: dict[str, Any], path: str) -> Iterator[str]:
    for field in schema["fields"]:
        name = f"{path}{field['name']}"
        found = value.get(field["name"])
        if found is None:
            if not field["nullable"]:
                yield f"column {name} is missing"
        else:
            yield from _field(found, field["type"], name)


def _field(value: Any, kind: Any, name: str) -> Iterator[str]:
    if isinstance(kind, dict) and kind["type"] == "struct":
        if isinstance(value, dict):
            yield from _struct(value, kind, f"{name}.")
        else:
            yield f"column {name}: {_shown(value)} is not an object"
    elif isinstance(kind, dict) and kind["type"] == "array":
        if isinstance(value, list):
            for index, each in enumerate(value):
                if each is not None:
                    yield from _field(each, kind["elementType"], f"{name}[{index}]")
        else:
            yield f"column {name}: {_shown(value)} is not a list"
    elif isinstance(kind, dict) and kind["type"] == "map":
        if not isinstance(value, dict):
            yield f"column {name}: {_shown(value)} is not an object"
    elif not _fits(value, str(kind)):
        yield f"column {name}: {_shown(value)} is not {_type_name(kind)}"


def _fits(value: Any, kind: str) -> bool:
    if kind in _INTEGERS:
        return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _INTEGERS[kind]
    if kind in ("double", "float") or kind.startswith("decimal"):
        words = _NOT_NUMBERS.fullmatch if kind in ("double", "float") else lambda word: _parses(float, word)
        is_word = isinstance(value, str) and words(value)
        return bool(is_word) or (isinstance(value, int | float) and not isinstance(value, bool))
    if kind == "boolean":
        return isinstance(value, bool)
    if kind in _TIMES:
        return isinstance(value, int | float) or (isinstance(value, str) and _is_moment(value))
    return True


def _fits_text(cell: str, kind: Any) -> bool:
    if kind in _INTEGERS:
        return _parses(int, cell) and abs(int(cell)) <= _INTEGERS[kind]
    if kind in ("double", "float") or str(kind).startswith("decimal"):
        return _parses(float, cell)
    if kind == "boolean":
        return cell.lower() in ("true", "false")
    return kind not in _TIMES or _is_moment(cell)


def _parses(read: Callable[[str], object], text: str) -> bool:
    try:
        read(text)
    except ValueError:
        return False
    return True


def _is_moment(text: str) -> bool:
    return _parses(datetime.fromisoformat, text) or _DATE.fullmatch(text) is not None


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    text = repr(text) if isinstance(value, str) else text
    return text if len(text) <= SHOWN_LETTERS else text[: SHOWN_LETTERS - 1] + "…"


def _type_name(kind: Any) -> str:
    words = {"long": "BIGINT", "integer": "INT", "short": "SMALLINT", "byte": "TINYINT"}
    return words.get(str(kind), str(kind).upper())
