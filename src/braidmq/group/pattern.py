"""Regular expressions for subscriptions, matched in time proportional to the length of the name.

A pattern comes from a client and is tried on every topic. Python's own engine backtracks, and a pattern of
ten characters can keep it busy for hours; so this one steps through the name once, with the set of all places
in the pattern at which it could be (Thompson, 1968), as RE2 does, whose syntax Kafka's protocol promises.
There are literals, `.`, classes, groups, `|`, `* + ? {m,n}`, `^ $`, `\\d \\w \\s` and their opposites, and a
leading `(?i)`; what needs backtracking (references, look-around) is refused. The whole name has to match.
"""

from __future__ import annotations

from typing import NamedTuple, NoReturn

from braidmq.wire.errors import ApiError, ErrorCode

PATTERN_CHARACTERS_MAX = 1_000
REPEAT_MAX = 1_000
STATES_MAX = 2_000
"""Places in a pattern once its repetitions are written out."""
DEPTH_MAX = 50


class CharacterSet(NamedTuple):
    """Characters by ranges, or all others."""

    ranges: tuple[tuple[str, str], ...]
    negated: bool = False

    def holds(self, character: str, fold: bool) -> bool:
        """Whether the character is one of them; with `fold`, in either case."""
        found = any(low <= character <= high for low, high in self.ranges)
        if fold and not found:
            other = character.swapcase()
            found = any(low <= other <= high for low, high in self.ranges)
        return found != self.negated


ANY = CharacterSet((), negated=True)
DIGITS = (("0", "9"),)
WORDS = (("0", "9"), ("A", "Z"), ("_", "_"), ("a", "z"))
SPACES = ((" ", " "), ("\t", "\n"), ("\f", "\r"))
CLASSES = {"d": DIGITS, "w": WORDS, "s": SPACES}
CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


class Sequence(NamedTuple):
    parts: list[Node]


class Choice(NamedTuple):
    options: list[Node]


class Repeat(NamedTuple):
    part: Node
    low: int
    high: int | None


class Anchor(NamedTuple):
    at_end: bool


Node = CharacterSet | Sequence | Choice | Repeat | Anchor


class Step(NamedTuple):
    """One place in the pattern: what has to come here, and which places follow."""

    expects: CharacterSet | Anchor | None
    follows: list[int]


class Pattern:
    """A pattern ready to be tried. ApiError INVALID_REGULAR_EXPRESSION if it is none."""

    def __init__(self, text: str) -> None:
        self.text = text
        if len(text) > PATTERN_CHARACTERS_MAX:
            _refuse(text[:40] + "…", f"it has more than {PATTERN_CHARACTERS_MAX} characters")
        self._fold = text.startswith("(?i)")
        parser = _Parser(text, len("(?i)") if self._fold else 0)
        self._steps: list[Step] = [Step(None, [])]
        self._begin = self._build(parser.whole(), 0)

    def matches(self, name: str) -> bool:
        """Whether the whole name is what the pattern describes."""
        places = self._reach([self._begin], at_start=True, at_end=not name)
        for number, character in enumerate(name, 1):
            onward: list[int] = []
            for place in places:
                expects = self._steps[place].expects
                if isinstance(expects, CharacterSet) and expects.holds(character, self._fold):
                    onward += self._steps[place].follows
            if not onward:
                return False
            places = self._reach(onward, at_start=False, at_end=number == len(name))
        return 0 in places

    def _reach(self, begin: list[int], at_start: bool, at_end: bool) -> set[int]:
        """All places that can be come to without another character."""
        reached: set[int] = set()
        ahead = list(begin)
        while ahead:
            place = ahead.pop()
            if place in reached:
                continue
            reached.add(place)
            expects, follows = self._steps[place]
            if expects is None or (isinstance(expects, Anchor) and (at_end if expects.at_end else at_start)):
                ahead += follows
        return reached

    def _build(self, node: Node, onward: int) -> int:
        """Writes the node down in front of what follows it; returns where it begins."""
        if isinstance(node, Sequence):
            for part in reversed(node.parts):
                onward = self._build(part, onward)
            return onward
        if isinstance(node, Choice):
            return self._step(None, [self._build(option, onward) for option in node.options])
        if isinstance(node, Repeat):
            return self._build_repeat(node, onward)
        return self._step(node, [onward])

    def _build_repeat(self, node: Repeat, onward: int) -> int:
        if node.high is None:
            loop = self._step(None, [onward])
            self._steps[loop].follows.append(self._build(node.part, loop))
            onward = loop
        else:
            end = onward
            for _ in range(node.high - node.low):
                onward = self._step(None, [self._build(node.part, onward), end])
        for _ in range(node.low):
            onward = self._build(node.part, onward)
        return onward

    def _step(self, expects: CharacterSet | Anchor | None, follows: list[int]) -> int:
        if len(self._steps) >= STATES_MAX:
            _refuse(self.text[:40], "its repetitions are too many")
        self._steps.append(Step(expects, follows))
        return len(self._steps) - 1


class _Parser:
    """Reads a pattern from left to right."""

    def __init__(self, text: str, at: int) -> None:
        self._text = text
        self._at = at
        self._depth = 0

    def whole(self) -> Node:
        node = self._choice()
        if self._at < len(self._text):
            self._refuse("there is a ')' too many")
        return node

    def _choice(self) -> Node:
        options = [self._sequence()]
        while self._take("|"):
            options.append(self._sequence())
        return options[0] if len(options) == 1 else Choice(options)

    def _sequence(self) -> Node:
        parts: list[Node] = []
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            parts.append(self._repeated(self._atom()))
        return Sequence(parts)

    def _repeated(self, node: Node) -> Node:
        bounds = self._bounds()
        if bounds is None:
            return node
        if isinstance(node, Anchor):
            self._refuse("an anchor cannot be repeated")
        self._take("?")  # how greedy it is makes no difference where the whole has to match
        if self._at < len(self._text) and self._text[self._at] in "*+?":
            self._refuse("a repetition of a repetition needs a group")
        return Repeat(node, *bounds)

    def _bounds(self) -> tuple[int, int | None] | None:
        for sign, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._take(sign):
                return bounds
        end = self._text.find("}", self._at)
        if not self._text.startswith("{", self._at) or end < 0:
            return None
        low, comma, high = self._text[self._at + 1 : end].partition(",")
        if not (low.isascii() and low.isdigit() and (high == "" or (high.isascii() and high.isdigit()))):
            return None  # as in RE2, a brace that is no repetition is a brace
        self._at = end + 1
        least = int(low)
        most = int(high) if high else (None if comma else least)
        if max(least, most or 0) > REPEAT_MAX or (most is not None and most < least):
            self._refuse(f"{{{low}{comma}{high}}} is no repetition")
        return least, most

    def _atom(self) -> Node:
        character = self._next()
        if character == "(":
            return self._group()
        if character == "[":
            return self._class()
        if character == ".":
            return ANY
        if character in "^$":
            return Anchor(at_end=character == "$")
        if character in "*+?":
            self._refuse("there is nothing to repeat")
        if character == "\\":
            return self._escape()
        return CharacterSet(((character, character),))

    def _group(self) -> Node:
        if self._take("?") and not self._take(":"):
            self._refuse("of the groups with '?' only (?:…) is known, and (?i) at the beginning")
        self._depth += 1
        if self._depth > DEPTH_MAX:
            self._refuse("groups are nested too deeply")
        node = self._choice()
        if not self._take(")"):
            self._refuse("a group is not closed")
        self._depth -= 1
        return node

    def _escape(self) -> CharacterSet:
        character = self._next()
        if character.lower() in CLASSES:
            return CharacterSet(CLASSES[character.lower()], negated=character.isupper())
        if character in CONTROLS:
            return CharacterSet(((CONTROLS[character],) * 2,))
        if character.isalnum():
            self._refuse(f"\\{character} is not known")
        return CharacterSet(((character, character),))

    def _class(self) -> CharacterSet:
        negated = self._take("^")
        ranges: list[tuple[str, str]] = []
        while not (ranges and self._take("]")):
            low = self._class_member()
            if low.negated or len(low.ranges) != 1 or not self._is_range():
                if low.negated:
                    self._refuse("a class cannot hold an opposite")
                ranges += low.ranges
                continue
            self._at += 1
            high = self._class_member()
            first, last = low.ranges[0][0], high.ranges[0][1]
            if high.negated or len(high.ranges) != 1 or last < first:
                self._refuse("a range in a class goes from lower to higher")
            ranges.append((first, last))
        return CharacterSet(tuple(ranges), negated)

    def _is_range(self) -> bool:
        return self._text.startswith("-", self._at) and not self._text.startswith("-]", self._at)

    def _class_member(self) -> CharacterSet:
        character = self._next()
        return self._escape() if character == "\\" else CharacterSet(((character, character),))

    def _next(self) -> str:
        if self._at >= len(self._text):
            self._refuse("it ends too early")
        self._at += 1
        return self._text[self._at - 1]

    def _take(self, character: str) -> bool:
        taken = self._text.startswith(character, self._at)
        self._at += taken
        return taken

    def _refuse(self, why: str) -> NoReturn:
        _refuse(self._text, f"{why}, at character {self._at}")


def _refuse(text: str, why: str) -> NoReturn:
    raise ApiError(ErrorCode.INVALID_REGULAR_EXPRESSION, f"{text!r} is no pattern for topics: {why}")
