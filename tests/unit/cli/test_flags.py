"""Rules for the flags and help of all commands, checked by walking the commands as they are registered."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from braidmq.cli.app import app

ONLY_WRITES_THE_ADDRESS = {"pipeline init"}
NO_TABLE = {
    *(
        "serve",
        "nameserver",
        "send",
        "produce",
        "tail",
        "consume",
        "perf produce",
        "perf consume",
        "perf latency",
    ),
    *("topic create", "topic alter", "topic delete", "topic redrive", "group delete"),
    *("lake archive", "lake compact", "pipeline run", "doctor"),
    *("cluster export", "cluster import"),
}
"""Commands that print records, a line or a live view; a new command is here or has --output."""
NO_JSON = {"serve", "nameserver", "pipeline run"}
DESTRUCTIVE = {
    *("topic delete", "topic reshard", "group delete", "group reset", "txn abort", "lake replay", "doctor"),
    *("cluster export", "cluster import"),
}
SHORT = {
    "-b": "--bootstrap",
    "-n": "--count",
    "-p": "--partitions",
    "-o": "--option",
    "-t": "--topic",
    "-y": "--yes",
    "-z": "--compression",
    "-k": "--key",
    "-K": "--key-separator",
    "-v": "--value",
    "-H": "--header",
    "-f": "--follow",
    "-s": "--seconds",
    "-h": "--help",
    "-X": None,
}
"""What each short flag stands for, in every command that has it."""
RENAMED = {"--since", "--into", "--to", "--config", "--settings"}
STILTED = re.compile(r"(?i)\b(is told|are told|goes on|go on|whoever|anew|behind|mended|is made)\b")


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    for name, each in group.commands.items():
        if hasattr(each, "commands"):
            yield from commands(each, (*path, name))
        else:
            yield " ".join((*path, name)), each


EVERY = dict(commands(typer.main.get_command(app)))
command = pytest.mark.parametrize("name", sorted(EVERY))


def options(name: str) -> dict[str, Any]:
    """Parameters of a command by each of their flags."""
    return {flag: each for each in EVERY[name].params for flag in (*each.opts, *each.secondary_opts)}


def test_the_walk_finds_the_commands() -> None:
    """O1: or the rules below would hold of nothing."""
    assert len(EVERY) > 30
    assert set(EVERY) >= (NO_TABLE | DESTRUCTIVE | NO_JSON | ONLY_WRITES_THE_ADDRESS)


@command
def test_the_help_of_an_option_shows_what_to_write_and_no_type_of_python(name: str) -> None:
    """O1: nothing after a flag, or people write `--json true`."""
    for each in EVERY[name].params:
        flag = next((flag for flag in each.opts if flag.startswith("-")), None)
        if flag is not None:
            assert (each.metavar == "") == bool(each.is_flag), flag


@command
def test_a_short_flag_has_one_meaning(name: str) -> None:
    """O1: -n is a count here and there; --dry-run and --partition have no short form."""
    for each in EVERY[name].params:
        long = [flag for flag in each.opts if flag.startswith("--")]
        for flag in (flag for flag in each.opts if re.fullmatch(r"-\w", flag)):
            assert flag in SHORT, f"say in SHORT what {flag} means"
            assert SHORT[flag] in (long or [None])
        for flag, meaning in SHORT.items():
            assert meaning not in long or flag in each.opts, f"{meaning} without {flag}"


def test_a_flag_has_the_same_value_everywhere() -> None:
    """O1: --until is a time and --to-dir a directory in every command that has it."""
    shapes: dict[str, set[str]] = defaultdict(set)
    for name in EVERY:
        for flag, each in options(name).items():
            if flag.startswith("-"):
                shapes[flag].add(each.metavar)
    # A template of one record in tail, a storage format in lake archive.
    del shapes["--format"]
    assert {flag: found for flag, found in shapes.items() if len(found) > 1} == {}


@command
def test_a_command_that_connects_takes_client_settings(name: str) -> None:
    """O1: TLS and SASL by a file or one by one, and the name that Kafka's tools have for the address."""
    given = options(name)
    if "--bootstrap" in given:
        assert "--bootstrap-server" in given["--bootstrap"].opts
    if "--bootstrap" in given and name not in ONLY_WRITES_THE_ADDRESS:
        assert {"--command-config", "-X"} <= set(given)
    assert ("-X" in given) == ("--command-config" in given)


@command
def test_what_prints_a_table_prints_json_and_csv(name: str) -> None:
    """O1: for programs."""
    given = options(name)
    assert ("--output" in given) == (name not in NO_TABLE)
    assert ("--json" in given) == (name not in NO_JSON)


@command
def test_what_cannot_be_undone_asks(name: str) -> None:
    """O1: --yes is there where, and only where, there is a question."""
    assert ("--yes" in options(name)) == (name in DESTRUCTIVE)


@command
def test_no_flag_has_an_old_name_or_a_negation(name: str) -> None:
    """O1: one name for one thing."""
    assert not RENAMED & set(options(name))
    assert not [flag for flag in options(name) if flag.startswith("--no-")]


@command
def test_help_says_first_what_a_command_does(name: str) -> None:
    """O1: a sentence, plain words, every option explained, and examples that use the command."""
    each = EVERY[name]
    assert re.match(r"[A-Z][a-z]+ ", each.help)
    assert each.help.split("\n\n")[0].endswith((".", ")."))
    texts = [each.help, each.epilog or "", *(getattr(option, "help", "") or "" for option in each.params)]
    assert [text for text in texts if STILTED.search(text)] == []
    unexplained = [flag for flag, option in options(name).items() if flag[0] == "-" and not option.help]
    assert unexplained == []
    if name not in ("serve", "nameserver"):
        shown = name.replace("produce", "send").replace("consume", "tail") if " " not in name else name
        assert f"braid {shown}" in (each.epilog or "")


def test_aliases_are_the_same_commands() -> None:
    """O1: the names that Kafka's users look for."""
    for alias, name in (("produce", "send"), ("consume", "tail")):
        assert list(options(alias)) == list(options(name))
        assert EVERY[alias].short_help == f"Alias of {name}."
