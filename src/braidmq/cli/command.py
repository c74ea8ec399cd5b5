"""How a function becomes a command: options that many commands share, and examples after the help.

Options that belong together are the fields of a frozen dataclass: `Broker` is --bootstrap, --command-config
and -X, `Output` is --output and --json. A command that takes a parameter of such a type has all its options,
with one spelling and one meaning everywhere. They come last in the help.

The help of an option shows what to write after it (`--count N`). Typer would show Python's types, and
`<bool>` after a flag, which takes no value.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer
from typer.models import OptionInfo

Function = Callable[..., None]
PLACEHOLDERS: dict[Any, str] = {bool: "", int: "N", float: "N", str: "TEXT", Path: "FILE"}


def command(
    app: typer.Typer,
    name: str | None = None,
    *,
    examples: Sequence[str] = (),
    panel: str | None = None,
    summary: str | None = None,
) -> Callable[[Function], Function]:
    """Adds a function to an app as a command; `summary` stands in for its help in the list of commands."""

    def add(function: Function) -> Function:
        register = app.command(name, epilog=_epilog(examples), short_help=summary, rich_help_panel=panel)
        register(with_shared_options(function))
        return function

    return add


def _epilog(examples: Sequence[str]) -> str | None:
    # A blank line after each: within a paragraph the help joins lines.
    return "\n\n".join(("Examples:", *(_literal(each) for each in examples))) if examples else None


def _literal(example: str) -> str:
    """In help texts square brackets mean colours."""
    return example.replace("[", r"\[")


def with_shared_options(function: Function) -> Function:
    """The function with each parameter that is a dataclass replaced by parameters for its fields."""
    hints = get_type_hints(function, include_extras=True)
    bundles: dict[str, Any] = {name: hint for name, hint in hints.items() if dataclasses.is_dataclass(hint)}
    own = [
        parameter.replace(annotation=hints[parameter.name])
        for parameter in inspect.signature(function).parameters.values()
        if parameter.name not in bundles
    ]
    shared = [parameter for bundle in bundles.values() for parameter in _parameters(bundle)]

    def run(**given: Any) -> None:
        made = {}
        for name, bundle in bundles.items():
            fields = {field.name: given.pop(field.name) for field in dataclasses.fields(bundle)}
            made[name] = bundle(**fields)
        function(**made, **given)

    run.__name__, run.__doc__ = function.__name__, _paragraphs(function.__doc__ or "")
    run.__annotations__ = {}
    for parameter in (*own, *shared):
        _show_placeholder(parameter.annotation)
    run.__signature__ = inspect.Signature([*own, *shared])  # type: ignore[attr-defined]
    return run


def _show_placeholder(annotation: Any) -> None:
    """Gives an option without a metavar one by its type."""
    if get_origin(annotation) is not Annotated:
        return
    kind, *notes = get_args(annotation)
    option = next((note for note in notes if isinstance(note, OptionInfo)), None)
    if option is None or option.metavar is not None:
        return
    kind = next((each for each in (*get_args(kind), kind) if each is not type(None)), kind)
    kind = get_args(kind)[0] if get_origin(kind) is list else kind
    option.metavar = PLACEHOLDERS.get(kind)


def _paragraphs(text: str) -> str:
    """Each paragraph on one line, so that the help fills the width of the terminal."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


def _parameters(bundle: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(bundle, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in dataclasses.fields(bundle)
    ]
