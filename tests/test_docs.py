"""The documents: code (```python) and commands (```sh) run, links lead somewhere, words are plain."""

from __future__ import annotations

import ast
import os
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from braidmq.testing import broker

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
TEXTS = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
DESIGN = [DOCS / "ARCHITECTURE.md", *sorted((DOCS / "design").glob("*.md"))]
SPARK_PAGES = {"lake", "pipelines", "rescue"}
"""Their blocks build on one another and need Spark: tests/spark/test_pipelines_docs.py runs them."""
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!\w+:)([^)#\s]*)(?:#([^)\s]+))?\)")
FENCED = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#{1,6} +(.+?)\s*$", re.MULTILINE)
ADDRESS = "127.0.0.1:9092"
UNPLAIN = {
    name: re.compile(pattern.replace(" ", r"\s+"), re.IGNORECASE)
    for name, pattern in {
        "say recreated, rebuilt": r"\banew\b",
        "name who says it, or say what is shown": r"\b(?:is|are|was|were|been) told\b",
        "say continues": r"\bgoes on\b|\bgo on (?:where|with|while|as)\b",
        "name the client, the user, the process": r"\bwhoever\b",
        "say at or after": r"\bat or behind\b",
        "say is renamed into place": r"\b(?:comes?|came) into place\b",
        "name the option": r"\bis said by\b",
        "say are read as": r"\bcount as they (?:are|were)\b",
    }.items()
}
"""Phrases that read as translated, by what to write instead."""


def blocks(language: str) -> list[pytest.param]:  # type: ignore[valid-type]
    found = []
    for page in PAGES:
        if page.stem in SPARK_PAGES:
            continue
        for number, (kind, text) in enumerate(BLOCK.findall(page.read_text(encoding="utf-8")), 1):
            if kind == language:
                found.append(pytest.param(text, id=f"{page.stem}-{number}"))
    return found


@pytest.fixture
def braid_command(tmp_path: Path) -> Path:
    """A folder with a `braid` in it that runs this very source."""
    command = tmp_path / "bin" / "braid"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m braidmq "$@"\n')
    command.chmod(0o755)
    return command.parent


@pytest.mark.parametrize("code", blocks("python"))
def test_code_in_the_documents_runs(code: str, tmp_path: Path) -> None:
    """O1 F1: every example, against a broker of its own."""
    with broker() as running:
        script = tmp_path / "example.py"
        script.write_text(code.replace(ADDRESS, running.bootstrap))
        done = subprocess.run(
            [sys.executable, script], capture_output=True, text=True, env=_environment(), timeout=60
        )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("commands", blocks("sh"))
def test_commands_in_the_documents_run(commands: str, braid_command: Path) -> None:
    """O1: every command, in the order of its block, none of them failing."""
    if "kcat" in commands and shutil.which("kcat") is None:
        pytest.skip("kcat is not installed")
    with broker() as running:
        environment = _environment(BRAID_BOOTSTRAP=running.bootstrap)
        environment["PATH"] = os.pathsep.join([str(braid_command), environment.get("PATH", "")])
        done = subprocess.run(
            ["sh", "-e", "-c", commands.replace(ADDRESS, running.bootstrap)],
            capture_output=True,
            text=True,
            env=environment,
            cwd=ROOT,
            timeout=100,
        )
    assert done.returncode == 0, done.stderr


def test_the_example_for_pytest_users_passes(tmp_path: Path) -> None:
    """O6: with the plugin, as a user runs it."""
    shutil.copy(ROOT / "examples" / "test_orders.py", tmp_path)
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
        str(tmp_path),
    ]
    done = subprocess.run(command, capture_output=True, text=True, env=_environment(), timeout=100)
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout


def test_the_example_of_replay_shows_what_was_sent() -> None:
    """C7: by time."""
    from braidmq.client import Producer

    with broker() as running:
        with Producer(running.bootstrap) as producer:
            producer.send("orders", b"one coffee")
        command = [sys.executable, "examples/replay_by_time.py", running.bootstrap, "orders", "10"]
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=ROOT, env=_environment(), timeout=60
        )
    assert "b'one coffee'" in done.stdout


def test_the_demo_ends_by_itself_without_a_terminal() -> None:
    """O1 L6 F1: the first thing a newcomer runs."""
    command = [sys.executable, "examples/demo.py", "--records", "20000", "--orders", "0"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=_environment(), timeout=110)
    assert done.returncode == 0, done.stderr
    assert "Nothing acknowledged is missing" in done.stdout


def test_the_demo_of_a_cluster_ends_by_itself_and_names_pages_that_exist() -> None:
    """O1 R5 F1: three brokers, a transaction over all of them, one of them killed."""
    command = [sys.executable, "examples/demo_cluster.py", "--records", "6000"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=_environment(), timeout=110)
    assert done.returncode == 0, done.stderr
    assert "none is missing, none is there twice" in done.stdout
    assert all((ROOT / page).exists() for page in re.findall(r"docs/\S+\.md", done.stdout))


def test_the_configuration_page_is_the_table_in_the_code() -> None:
    """O1: run scripts/configuration-page after changing an option."""
    page = runpy.run_path(str(ROOT / "docs" / "configuration_page.py"))
    assert (ROOT / "docs" / "reference" / "configuration.md").read_text(encoding="utf-8") == page["render"]()


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_documents_lead_somewhere(page: Path) -> None:
    """O1: to a file that exists, and within it to a heading that exists."""
    broken = []
    for name, anchor in LINK.findall(FENCED.sub("", page.read_text(encoding="utf-8"))):
        target = page.parent / name if name else page
        if not target.exists():
            broken.append(name)
        elif anchor and anchor not in anchors(target):
            broken.append(f"{name}#{anchor}")
    assert broken == []


def test_every_page_can_be_reached_from_the_index() -> None:
    """O1: docs/README.md lists each page itself, so none has to be found by chance."""
    index = DOCS / "README.md"
    listed = {(DOCS / name).resolve() for name, _ in LINK.findall(index.read_text(encoding="utf-8")) if name}
    pages = {page.resolve() for page in DOCS.rglob("*.md")} - {index.resolve()}
    assert sorted(str(page.relative_to(DOCS)) for page in pages - listed) == []


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: str(page.relative_to(ROOT)))
def test_documents_use_plain_words(page: Path) -> None:
    """O1: none of the phrases that read as translated."""
    assert unplain(page.read_text(encoding="utf-8")) == []


def test_error_texts_and_help_use_plain_words() -> None:
    """O1: what a user reads in a message, in the help of a command, in the description of an option."""
    assert [
        f"{source.relative_to(ROOT)} {problem}"
        for source in sorted((ROOT / "src").rglob("*.py"))
        for line, text in shown_texts(source)
        for problem in unplain(text, line)
    ] == []


@pytest.mark.parametrize("page", DESIGN, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_named_in_design_pages_exist(page: Path) -> None:
    """O1: the path of a message names the files as they are."""
    text = page.read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:src|tests|bench|fuzz|scripts)/[\w./-]+)`", text))
    named |= {
        f"src/braidmq/{name}"
        for name in re.findall(r"`([\w/]+\.py)`", text)
        if not name.startswith(("src", "tests", "bench"))
    }
    assert named
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives the headings of a page."""
    found: dict[str, int] = {}
    for heading in HEADING.findall(FENCED.sub("", page.read_text(encoding="utf-8"))):
        text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        seen = found[slug] = found.get(slug, -1) + 1
        if seen:
            found[f"{slug}-{seen}"] = 0
    return set(found)


def shown_texts(source: Path) -> Iterator[tuple[int, str]]:
    """String literals with their lines. Of the docstrings only those of commands, which are their help."""
    nodes = list(ast.walk(ast.parse(source.read_text(encoding="utf-8"))))
    helps = {id(node.body[0]) for node in nodes if isinstance(node, ast.FunctionDef) and is_command(node)}
    unseen = {id(node.value) for node in nodes if isinstance(node, ast.Expr) and id(node) not in helps}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in unseen:
            yield node.lineno, node.value


def is_command(function: ast.FunctionDef) -> bool:
    """Registered with typer: `@app.command(…)`, `@app.callback(…)`."""
    calls = [each.func for each in function.decorator_list if isinstance(each, ast.Call)]
    return any(isinstance(call, ast.Attribute) and call.attr in ("command", "callback") for call in calls)


def unplain(text: str, first_line: int = 1) -> list[str]:
    """Each phrase that should be another one, with its line."""
    return [
        f"line {first_line + text.count(chr(10), 0, match.start())}: {match[0]!r}: {advice}"
        for advice, phrase in UNPLAIN.items()
        for match in phrase.finditer(text)
    ]


def _environment(**extra: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("BRAID_", "PYTEST_"))}
    return {**kept, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), *filter(None, sys.path)]), **extra}
