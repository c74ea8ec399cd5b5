"""Errors whose message is the whole story: what happened, where, and what to do.

Spark sends what a Python worker raises to the driver together with its traceback, a page through files of
Spark and of ours. For a `UserError`, and for errors of the client and the broker, Spark is asked to leave the
traceback out. Everything else keeps it: it is a defect, or comes from the user's own code.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

from braidmq.client.errors import ClientError
from braidmq.wire.errors import ApiError

WITHOUT_TRACEBACK = "SPARK_HIDE_TRACEBACK"
"""Spark's worker reads this variable when it reports an exception, which is the last thing it does."""

SHOWN_LETTERS = 400
_FOR_PROGRAMS = re.compile(r"\s*SQLSTATE: \w+|;\s*line \d+,? pos \d+")
_PYTHON_ERROR = re.compile(
    r"^\s*(?:[a-z_][\w.]*\.)?([A-Z]\w+(?:Error|Exception|Exit|Warning)?): (.+)$", re.MULTILINE
)
_TOLD = re.compile(r"\bbraidmq(?:\.\w+)*\.[A-Z]\w*: (.+)")
"""One of our errors that came without a traceback."""
_BRIDGED = re.compile(r"An error occurred while calling \S+\s*: (.+)")
"""How py4j begins the message of an exception from Java."""
_WORDS_OF_SPARK = re.compile(r"^\[[A-Z_.]+\]\s*|\bSQLSTATE: \w+")


class UserError(Exception):
    """The message says what was wrong, where, and what to do; no traceback is needed."""


USER_ERRORS = (UserError, ClientError, ApiError)


@contextmanager
def without_traceback() -> Iterator[None]:
    """For code that Spark calls in a process of its own; such a process ends with the first failure."""
    try:
        yield
    except USER_ERRORS:
        os.environ[WITHOUT_TRACEBACK] = "1"
        raise


def first_line(error: Exception) -> str:
    """Spark's message without the plan, the SQLSTATE and the position in the SQL text."""
    text = str(error).strip().split("\n\n")[0].split(";\n")[0]
    return " ".join(_FOR_PROGRAMS.sub("", text).split())


def sentence(message: str) -> str:
    """One sentence: the innermost Python error if there is one, else the first line of Spark's message."""
    inner = message.rpartition("Traceback (most recent call last)")[2] if "Traceback" in message else ""
    if not inner and (told := _TOLD.search(message)):
        line = told[1]
    elif not inner and (bridged := _BRIDGED.search(message)):
        line = bridged[1]
    elif found := _PYTHON_ERROR.findall(inner):
        kind, text = found[0]
        line = (
            text
            if not kind.endswith(("Error", "Exception")) or kind.startswith("Pipeline")
            else f"{kind}: {text}"
        )
    else:
        line = next((each for each in message.splitlines() if each.strip()), "no reason given")
    line = " ".join(_WORDS_OF_SPARK.sub("", line).split())
    return line if len(line) <= SHOWN_LETTERS else line[: SHOWN_LETTERS - 1] + "…"
