"""`braid config`: every option, what it may be, and why one would change it."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from braidmq.cli.output import Output, print_table
from braidmq.config import DYNAMIC, GROUP, SERVER, TOPIC, Option, find

_DEFAULTS = {
    "topic": "; on a broker, the default of all topics",
    "group": "; the default is the broker option whose name begins with `group.`",
}


EXAMPLES = ("braid config", "braid config retention.ms", "braid config --output csv")
COLUMNS = ("option", "default", "unit", "why change it")


def show(
    output: Output,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="One option, in full.")] = None,
) -> None:
    """Explain the options of brokers, topics and groups.

    Set a broker option with `braid serve -o NAME=VALUE`, in the TOML file of `braid serve --config`, or with
    its BRAID_… variable. Set a topic option with `braid topic create -o` or `braid topic alter -o`; on a
    broker it is the default of all topics. Set group options with an admin client; the defaults are broker
    options whose names begin with `group.`.
    """
    every = (*SERVER, *TOPIC, *GROUP)
    chosen = every if name is None else (find(name, every),)
    found = [_row(option) for option in chosen]
    if output.printed(
        found if name is None else found[0], tuple(found[0]), [tuple(r.values()) for r in found]
    ):
        return
    if name is not None:
        _explain(chosen[0])
        return
    for title, options in (
        ("Broker", SERVER),
        ("Topic (and default of all topics)", TOPIC),
        ("Group", GROUP),
    ):
        print_table(COLUMNS, [(o.name, o.text(o.default), o.unit, o.why) for o in options], title)


def _row(option: Option) -> dict[str, Any]:
    return {
        "name": option.name,
        "scope": _scope(option),
        "type": option.kind.value,
        "default": option.default,
        "unit": option.unit,
        "permitted": option.bounds(),
        "environment": None if option in GROUP else option.environment,
        "dynamic": _is_dynamic(option),
        "why": option.why,
    }


def _explain(option: Option) -> None:
    print(f"{option.name}: {option.why}")
    unit = f" {option.unit}" if option.unit else ""
    print(f"  default    {option.text(option.default)}{unit}")
    print(f"  permitted  {option.bounds()}")
    print(f"  scope      {_scope(option)}{_DEFAULTS.get(_scope(option), '')}")
    if option not in GROUP:
        print(f"  variable   {option.environment}")
    print(f"  change     {'at once, with an admin client' if _is_dynamic(option) else 'with a restart'}")


def _is_dynamic(option: Option) -> bool:
    return option in GROUP or option.name in DYNAMIC


def _scope(option: Option) -> str:
    return "broker" if option in SERVER else "topic" if option in TOPIC else "group"
