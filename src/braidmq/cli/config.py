"""`braid config`: every option, what it may be, and why one would change it."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from braidmq.cli.options import AsJson
from braidmq.cli.output import print_json, print_table
from braidmq.config import DYNAMIC, GROUP, SERVER, TOPIC, Option, find

_DEFAULTS = {
    "topic": "; given to a broker, the default of its topics",
    "group": "; the default is the broker's, with `group.` before the name",
}


def show(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="One option, in full.")] = None,
    as_json: AsJson = False,
) -> None:
    """Explain the options of a broker, its topics and its groups.

    Set one with `braid serve -o NAME=VALUE`, in the TOML file given to `--config`, or by its BRAID_…
    variable; topic options also with `braid topic create -o` and `braid topic alter -o`. Group options are
    set by admin clients; what a group does not set is the broker's option with `group.` before the name.

    Examples:
    braid config
    braid config retention.ms
    braid config --json
    """
    every = (*SERVER, *TOPIC, *GROUP)
    chosen = every if name is None else (find(name, every),)
    if as_json:
        rows = [_row(option) for option in chosen]
        print_json(rows if name is None else rows[0])
    elif name is not None:
        _explain(chosen[0])
    else:
        tables = (("Broker", SERVER), ("Topic (and default of all topics)", TOPIC), ("Group", GROUP))
        for title, options in tables:
            rows_of_text = [(o.name, o.text(o.default), o.unit, o.why) for o in options]
            print_table(("option", "default", "unit", "why one would change it"), rows_of_text, title)


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
    print(f"  change     {'at once, by admin clients' if _is_dynamic(option) else 'with a restart'}")


def _is_dynamic(option: Option) -> bool:
    return option in GROUP or option.name in DYNAMIC


def _scope(option: Option) -> str:
    return "broker" if option in SERVER else "topic" if option in TOPIC else "group"
