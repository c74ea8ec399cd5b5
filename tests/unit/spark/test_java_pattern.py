"""Patterns as Java writes them, against names of topics."""

from __future__ import annotations

import re

import pytest

from braidmq.spark.java.pattern import CLASSES, NotInPython, compile_java


@pytest.mark.parametrize(
    ("pattern", "found", "passed_over"),
    [
        ("other", ["other", "Aother", "others"], ["Other", "othe"]),
        ("^other$", ["other"], ["Aother", "others"]),
        ("orders-.*|bills", ["orders-1", "old-bills"], ["orders"]),
        (r"^\p{Upper}+$", ["ORDERS"], ["orders", "Orders"]),
        (r"^\P{Upper}+$", ["orders-1"], ["Orders"]),
        (r"^\p{Lower}\p{Digit}$", ["a1"], ["A1", "ab"]),
        (r"^[\p{Alpha}_]+$", ["a_B"], ["a-b", "a1"]),
        (r"^[^\p{Punct}]+$", ["orders"], ["or.ders"]),
        (r"^[\P{Lower}]+$", ["ORDERS-1"], ["oRDERS"]),
        (r"^\pL+$", ["orders"], ["orders1"]),
        (r"^\p{IsAlphabetic}+$", ["orders"], ["orders1"]),
        (r"^\p{general_category=Lu}$", ["A"], ["a"]),
        (r"^\p{javaLowerCase}+$", ["orders"], ["Orders"]),
        (r"^\Qa.b\E.$", ["a.bc"], ["axbc"]),
        (r"^\Qa.b", ["a.bc"], ["axb"]),
        (r"^[\Q.-\E]$", [".", "-"], ["a"]),
        (r"^(?<letter>.)\k<letter>$", ["aa"], ["ab"]),
        (r"^(.)\1$", ["aa"], ["ab"]),
        (r"^orders\z", ["orders"], ["orders1"]),
        (r"^orders\Z", ["orders"], ["orders1"]),
        (r"^[a-c[x-z]]$", ["b", "y"], ["m"]),
        (r"^[a-c[x-z]1]$", ["b", "y", "1"], ["m"]),
        (r"^\x{41}\x42\u0043\0104\cA?$", ["ABCD"], ["abcd"]),
        (r"(?i)^ORDERS$", ["orders", "Orders"], ["order"]),
        (r"(?iu)^ORDERS$", ["orders"], ["order"]),
        (r"^(?i:O)rders$", ["orders", "Orders"], ["ORDERS"]),
        (r"^(?:a|b)(?=c)c(?!d)(?<=c)", ["acx", "bc"], ["acd"]),
        (r"^a*+b$", ["aab"], ["aac"]),
        (r"^(?>a|ab)c$", ["ac"], ["abc"]),
        (r"^\d\D\w\W\s?\h?$", ["1ab-"], ["aab-"]),
        (r"^a\.b\-c\_d$", ["a.b-c_d"], ["axb-c_d"]),
    ],
)
def test_a_pattern_finds_what_it_finds_in_java(
    pattern: str, found: list[str], passed_over: list[str]
) -> None:
    """S1: anywhere in the name."""
    search = compile_java(pattern).search
    assert [name for name in [*found, *passed_over] if search(name)] == found


@pytest.mark.parametrize(
    ("pattern", "named"),
    [
        (r"\p{InGreek}", r"\p{InGreek}"),
        (r"[a-z&&[^b]]", "&& in a class"),
        (r"[a[^b]]", "a negated class within a class"),
        (r"a(?i)b", "(?i) in the middle; write it at the beginning"),
        (r"\Gx", r"\G"),
        (r"\X", r"\X"),
    ],
)
def test_what_python_cannot_say_is_named(pattern: str, named: str) -> None:
    """S1: never taken for something else."""
    with pytest.raises(NotInPython, match=re.escape(named)):
        compile_java(pattern)


@pytest.mark.parametrize("pattern", ["(", "[a", "a\\", "*", r"(?<a>x)(?<a>y)"])
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    """S1: before a broker is asked."""
    with pytest.raises(ValueError, match=r"\w"):
        compile_java(pattern)


def test_every_class_is_what_it_says() -> None:
    """S1: by name, and all the others by the other letter."""
    for name, characters in CLASSES.items():
        for letter in map(chr, range(128)):
            assert bool(compile_java(rf"^\p{{{name}}}\z").search(letter)) == (letter in characters), name
            assert bool(compile_java(rf"^\P{{{name}}}\z").search(letter)) != (letter in characters), name
