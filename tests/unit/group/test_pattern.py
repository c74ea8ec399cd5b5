"""Patterns of subscriptions: the same verdict as Python's engine, without its worst cases."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braidmq.group.catalog import Topic, TopicCatalog
from braidmq.group.pattern import Pattern
from braidmq.wire.errors import ApiError, ErrorCode

letters = st.sampled_from(["a", "b", "c", ".", "[ab]", "[^a]", "[a-b]", r"\d", r"\w", r"\.", "0"])
patterns = st.recursive(
    letters,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda two: f"({two[0]}|{two[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{0,2}", "{1,}", "*?"])).map(
            lambda two: f"(?:{two[0]}){two[1]}"
        ),
        inner.map(lambda one: f"(^{one}|{one}$)"),
    ),
    max_leaves=8,
)


@settings(max_examples=300, deadline=None)
@given(patterns, st.lists(st.text("abc0.", max_size=6), min_size=1, max_size=5))
def test_patterns_match_what_python_matches(pattern: str, names: list[str]) -> None:
    """C4: the whole name, for every pattern both can read."""
    ours = Pattern(pattern)
    theirs = re.compile(pattern)
    for name in names:
        assert ours.matches(name) == (theirs.fullmatch(name) is not None), (pattern, name)


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        ("orders.*", "orders-eu", "my-orders"),
        (r"(?i)Orders\.(EU|us)", "oRDERS.eu", "orders.uk"),
        (r"(?i)\D[^a]", "xb", "xA"),
        ("^metrics-[0-9]{2,3}$", "metrics-007", "metrics-7"),
        ("[-a]+|[]b]", "-a-", "b-"),
        ("a{,2}", "a{,2}", "aa"),
        ("", "", "a"),
        ("(|a)b", "b", "c"),
    ],
)
def test_patterns_people_write(pattern: str, matching: str, other: str) -> None:
    """C4: the common ones, and corners of the syntax."""
    assert Pattern(pattern).matches(matching)
    assert not Pattern(pattern).matches(other)


@pytest.mark.parametrize(
    "pattern",
    ["(", ")", "a)", "[a", "*a", "a**", r"(a)\1", "(?=a)", "(?<n>a)", r"\q", "a{3,2}", "a{2000}", "[b-a]",
     "\\", "((a{100}){100}){100}", "(" * 60 + ")" * 60, "a" * 1001, r"[\D]", "^*"],
)  # fmt: skip
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    """C4: with Kafka's code, whatever is wrong with it, and before memory or time are spent."""
    with pytest.raises(ApiError) as refused:
        Pattern(pattern)
    assert refused.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION


@given(st.text(alphabet="ab()[]{}|*+?^$\\.,-0123", max_size=12))
def test_any_text_is_a_pattern_or_is_refused(text: str) -> None:
    """C4: clients may send anything."""
    try:
        pattern = Pattern(text)
    except ApiError:
        return
    assert pattern.matches("aab") in (True, False)


def test_patterns_that_make_others_backtrack_for_ever_are_answered() -> None:
    """C4: this one would take Python's engine longer than the test may run."""
    assert not Pattern("(a+)+b").matches("a" * 249)
    assert Pattern("(a|aa)+(a?){40}").matches("a" * 249)


def test_a_catalogue_finds_the_topics_of_a_pattern() -> None:
    """C4: those it matches as a whole, and the same ones when it is asked again."""
    catalog = TopicCatalog(1, {name: Topic(name.encode(), 1) for name in ("orders", "orders-eu", "returns")})
    for _ in range(2):
        assert catalog.matching("orders.*") == {"orders", "orders-eu"}
    with pytest.raises(ApiError):
        catalog.matching("(")
