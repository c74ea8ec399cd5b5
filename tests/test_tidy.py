"""House rules that a machine can check. What a linter knows (line length, imports, types) is left to it."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE_LINES_MAX = 500
TEST_LINES_MAX = 600
FUNCTION_LINES_MAX = 70
EMPTY_NAMES = {"base", "common", "data", "helper", "helpers", "info", "manager", "misc", "util", "utils"}
PLACEHOLDERS = re.compile(r"\b(TOD[O]|FIXM[E]|XX[X]|HAC[K])\b|NotImplemented[E]rror")
PRIVATE_PLACES = re.compile(r"/roo[t]/|/hom[e]/\w|/wor[k]/|pyp[i]\.org|pythonhoste[d]")
LOG_KEEPERS = {"partition.py", "replica.py", "housekeeping.py"}
"""Of `broker/`: the partition, its door, and its upkeep."""
SYNC_CALLS = {"os.fsync", "os.fdatasync", "os.sync"}
FEATURE_ID = re.compile(r"^[A-Z]\d{1,2}$")
PROVES = re.compile(r"\bassert\b|raises|check|expect|verify|compare")
OURSELVES = {"bench", "test_tidy.py"}
"""Tests of our own tools, which are no feature of the product."""


@cache
def tracked(pattern: str) -> tuple[Path, ...]:
    """Files that are or will be in git, so that build products are left out."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", pattern]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return tuple(ROOT / name for name in listed.splitlines() if (ROOT / name).is_file())


def python_files(*folders: str) -> list[Path]:
    return [path for path in tracked("*.py") if not folders or path.relative_to(ROOT).parts[0] in folders]


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def where(path: Path, node: ast.AST | None = None) -> str:
    return f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}"


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def all_tests() -> Iterator[tuple[Path, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for path in python_files("tests"):
        for function in functions(path):
            if path.name.startswith("test_") and function.name.startswith("test_"):
                yield path, function


def assert_none(offenders: list[str]) -> None:
    assert not offenders, "\n" + "\n".join(offenders)


def test_files_have_one_idea() -> None:
    """Files stay short enough to be read top to bottom."""
    most = {"src": SOURCE_LINES_MAX, "tests": TEST_LINES_MAX}
    offenders = []
    for path in python_files("src", "tests", "bench", "fuzz", "examples"):
        name = path.relative_to(ROOT)
        if len(lines(path)) > most.get(name.parts[0], TEST_LINES_MAX):
            offenders.append(f"{where(path)}: {len(lines(path))} lines")
    assert_none(offenders)


def test_functions_fit_a_screen() -> None:
    """At most 70 lines."""
    assert_none(
        [
            f"{where(path, function)}: {function.name} has {function.end_lineno - function.lineno + 1} lines"
            for path in python_files()
            for function in functions(path)
            if (function.end_lineno or 0) - function.lineno + 1 > FUNCTION_LINES_MAX
        ]
    )


def test_names_say_what_a_thing_is() -> None:
    """No module or class is called after nothing. Message classes carry Kafka's own names."""
    offenders = [where(path) for path in python_files("src", "bench") if path.stem.lower() in EMPTY_NAMES]
    for path in python_files("src", "bench"):
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ClassDef) and "messages" not in path.parts:
                words = {word.lower() for word in re.findall(r"[A-Z][a-z]*", node.name)}
                offenders += [f"{where(path, node)}: {node.name}" for word in words & EMPTY_NAMES]
    assert_none(offenders)


def test_every_module_says_what_it_is_for() -> None:
    """A docstring at the top, and postponed annotations everywhere."""
    offenders = []
    for path in python_files("src", "tests", "bench", "fuzz", "examples"):
        if tree(path).body and ast.get_docstring(tree(path)) is None:
            offenders.append(f"{where(path)}: no docstring")
        if len(tree(path).body) > 1 and "from __future__ import annotations" not in path.read_text():
            offenders.append(f"{where(path)}: no from __future__ import annotations")
    assert_none(offenders)


@pytest.mark.parametrize(
    ("pattern", "why"),
    [(PLACEHOLDERS, "stands for missing work"), (PRIVATE_PLACES, "is true on one machine or network only")],
)
def test_nothing_is_left_unfinished_or_tied_to_a_place(pattern: re.Pattern[str], why: str) -> None:
    """In code, scripts, documents and settings."""
    offenders = []
    for path in tracked("*"):
        if path.suffix in (".svg", ".png", ".bin") or path.name == "LICENSE":
            continue
        try:
            text = lines(path)
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text, 1):
            if found := pattern.search(line):
                offenders.append(f"{path.relative_to(ROOT)}:{number}: {found[0]!r} {why}")
    assert_none(offenders)


def test_only_the_platform_syncs_the_disk() -> None:
    """So that a simulated disk sees every sync there is."""
    offenders = []
    for path in python_files("src"):
        if path.parent.name == "platform":
            continue
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Attribute) and ast.unparse(node) in SYNC_CALLS:
                offenders.append(f"{where(path, node)}: {ast.unparse(node)}")
    assert_none(offenders)


def test_only_its_keepers_reach_into_a_partitions_log() -> None:
    """Everybody else asks `broker/replica.py` for an outcome, so that there is one place that decides."""
    offenders = []
    for path in python_files("src"):
        if path.parent.name == "broker" and path.name in LOG_KEEPERS:
            continue
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Attribute) and node.attr == "log":
                offenders.append(f"{where(path, node)}: {ast.unparse(node)}")
    assert_none(offenders)


def test_every_test_says_which_feature_it_proves() -> None:
    """The docstring begins with ids of docs/reference/features.md, as in \"L6: …\" or \"P4 L6: …\"."""
    known = feature_states().keys()
    offenders = []
    for path, function in all_tests():
        if OURSELVES & set(path.parts):
            continue
        ids, colon, _ = (ast.get_docstring(function) or "").partition(":")
        words = ids.replace(",", " ").split()
        if not colon or not words or not all(word in known for word in words):
            offenders.append(f"{where(path, function)}: {function.name}")
    assert_none(offenders)


def test_every_feature_that_works_has_a_test() -> None:
    """What docs/reference/features.md calls done stands in a test's docstring."""
    proven: set[str] = set()
    for _, function in all_tests():
        proven.update((ast.get_docstring(function) or "").partition(":")[0].replace(",", " ").split())
    assert_none([name for name, state in feature_states().items() if state == "yes" and name not in proven])


def test_every_test_can_fail() -> None:
    """A test without an assertion proves nothing."""
    written = [(path, function) for path in python_files("tests") for function in functions(path)]
    proving = {function.name for path, function in written if PROVES.search(body(path, function))}
    calling = [(function.name, calls(function)) for _, function in written]
    while callers := {name for name, called in calling if called & proving} - proving:
        proving |= callers
    assert_none(
        [f"{where(path, test)}: {test.name}" for path, test in all_tests() if test.name not in proving]
    )


def body(path: Path, function: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    return "\n".join(lines(path)[function.lineno : function.end_lineno])


def calls(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    called = (node.func for node in ast.walk(function) if isinstance(node, ast.Call))
    return {getattr(each, "id", getattr(each, "attr", "")) for each in called}


@cache
def feature_states() -> dict[str, str]:
    """Feature id → yes, part or planned, from the tables of docs/reference/features.md."""
    states = {}
    for line in (ROOT / "docs" / "reference" / "features.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and FEATURE_ID.match(cells[0]):
            states[cells[0]] = cells[-1]
    return states
