"""Regular expressions of Java, as Spark's Kafka source takes them, for Python's `re`.

Both languages agree on nearly everything that a pattern of topic names needs. What they write differently is
translated here: classes by name (`\\p{Upper}`), quoting (`\\Q…\\E`), names of groups, some escapes, classes
within classes. Topic names are ASCII, so a class means its ASCII part. What Python does not have is an error
that names it: a pattern with another meaning would silently read other topics.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterator

ASCII = "".join(map(chr, range(128)))
_LETTERS, _DIGITS, _PUNCTUATION = string.ascii_letters, string.digits, string.punctuation
_CLASSES = {
    string.ascii_lowercase: "Lower Ll IsLowercase javaLowerCase",
    string.ascii_uppercase: "Upper Lu IsUppercase javaUpperCase",
    ASCII: "ASCII L1 InBASIC_LATIN InBasicLatin",
    _LETTERS: "Alpha L LC IsAlphabetic Alphabetic IsLetter IsLatin javaLetter javaAlphabetic",
    _DIGITS: "Digit N Nd IsDigit javaDigit",
    _LETTERS + _DIGITS: "Alnum javaLetterOrDigit",
    _PUNCTUATION: "Punct",
    "!\"#%&'()*,-./:;?@[\\]_{}": "P IsPunctuation",
    "-": "Pd",
    "_": "Pc",
    "$+<=>^`|~": "S",
    _LETTERS + _DIGITS + _PUNCTUATION: "Graph",
    _LETTERS + _DIGITS + _PUNCTUATION + " ": "Print",
    " \t": "Blank",
    " \t\n\v\f\r": "Space IsWhite_Space javaWhitespace",
    string.hexdigits: "XDigit IsHex_Digit",
    "".join(map(chr, (*range(32), 127))): "Cntrl Cc IsControl",
}
CLASSES = {name: characters for characters, names in _CLASSES.items() for name in names.split()}
ESCAPES = {"h": " \t", "v": "\n\v\f\r", "e": "\x1b", "a": "\a", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
"""What a letter after a backslash means; `H` and `V` mean all other characters."""
AS_IN_PYTHON = frozenset("AbBdDsSwW")
WITHOUT_EFFECT = frozenset("duU")
"""Flags about lines and Unicode, which make no difference to names of topics."""


class NotInPython(ValueError):
    """A feature of Java's patterns that Python's do not have; the message names it."""


def compile_java(pattern: str) -> re.Pattern[str]:
    """For `search`. ValueError (or `re.error`) if it is no pattern, or has no equivalent in Python."""
    try:
        return re.compile("".join(_Translation(pattern).whole()), re.ASCII)
    except re.error as error:
        raise ValueError(str(error)) from None


class _Translation:
    def __init__(self, pattern: str) -> None:
        self._text = pattern
        self._at = 0

    def whole(self) -> Iterator[str]:
        yield self._first_flags()
        while self._at < len(self._text):
            letter = self._next()
            if letter == "\\":
                yield self._escape()
            elif letter == "[":
                yield self._class()
            elif letter == "(" and self._text.startswith("?", self._at):
                yield self._special_group()
            else:
                yield letter

    def _next(self) -> str:
        if self._at >= len(self._text):
            raise ValueError("it ends in the middle of something")
        self._at += 1
        return self._text[self._at - 1]

    def _found(self, what: str) -> re.Match[str] | None:
        """Skips the given text, if it comes next."""
        found = re.compile(what, re.DOTALL).match(self._text, self._at)
        if found is not None:
            self._at = found.end()
        return found

    def _first_flags(self) -> str:
        found = self._found(r"\(\?([a-zA-Z]+)\)")
        kept = _known_flags(found[1] if found else None)
        return f"(?{kept})" if kept else ""

    def _special_group(self) -> str:
        if name := self._found(r"\?<([a-zA-Z][a-zA-Z0-9]*)>"):
            return f"(?P<{name[1]}>"
        if flags := self._found(r"\?([a-zA-Z]*)(-[a-zA-Z]+)?\)"):
            raise NotInPython(f"({flags[0]} in the middle; write it at the beginning")
        if flags := self._found(r"\?([a-zA-Z]+)?(?:-([a-zA-Z]+))?:"):
            on, off = map(_known_flags, flags.groups())
            return f"(?{on}-{off}:" if off else f"(?{on}:"
        return "("

    def _escape(self) -> str:
        """What follows a backslash, outside of a class."""
        if name := self._found(r"k<([a-zA-Z][a-zA-Z0-9]*)>"):
            return f"(?P={name[1]})"
        if self._found("R"):
            return r"(?:\r\n|[\n\x0b\f\r])"
        if self._found("z"):
            return r"\Z"
        if self._found("Z"):
            return r"(?=\n?\Z)"
        if found := self._found("[1-9AbB]"):
            return f"\\{found[0]}"
        characters, is_class = self._characters()
        return f"[{characters}]" if is_class else characters

    def _characters(self) -> tuple[str, bool]:
        """The same for one character or a set of them; also returns whether it is a set."""
        if quoted := self._found(r"Q(.*?)(?:\\E|$)"):
            return re.escape(quoted[1]), False
        if named := self._found(r"([pP])(?:\{(?:\w+=)?(\w+)\}|(\w))"):
            name = named[2] or named[3]
            if name not in CLASSES:
                raise NotInPython(f"\\{named[0]}")
            return _set(CLASSES[name], named[1] == "P"), True
        if code := self._found(r"x\{([0-9a-fA-F]+)\}|x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})"):
            return re.escape(chr(int(code[1] or code[2] or code[3], 16))), False
        if code := self._found(r"0([0-3]?[0-7]{1,2})"):
            return re.escape(chr(int(code[1], 8))), False
        if control := self._found(r"c(.)"):
            return re.escape(chr(ord(control[1]) ^ 64)), False
        letter = self._next()
        if letter in "hvHV":
            return _set(ESCAPES[letter.lower()], letter.isupper()), True
        if letter in ESCAPES:
            return re.escape(ESCAPES[letter]), False
        if letter in AS_IN_PYTHON:
            return f"\\{letter}", False
        if letter.isalnum():
            raise NotInPython(f"\\{letter}")
        return re.escape(letter), False

    def _class(self) -> str:
        """What follows a bracket; classes within it are part of it."""
        parts = ["[^" if self._found(r"\^") else "["]
        depth = 1
        while depth:
            if self._found("&&"):
                raise NotInPython("&& in a class")
            if self._found(r"\[\^"):
                raise NotInPython("a negated class within a class")
            letter = self._next()
            if letter == "\\":
                parts.append(self._characters()[0])
            elif letter == "[":
                depth += 1
            elif letter == "]":
                depth -= 1
            else:
                parts.append(letter if letter.isalnum() or letter == "-" else re.escape(letter))
        return "".join([*parts, "]"])


def _known_flags(written: str | None) -> str:
    return "".join(flag for flag in written or "" if flag not in WITHOUT_EFFECT)


def _set(characters: str, is_negated: bool) -> str:
    """The characters of a class, to be put between brackets."""
    chosen = [each for each in ASCII if (each in characters) is not is_negated]
    return "".join(map(re.escape, chosen)) or re.escape(chr(0x10FFFF))
