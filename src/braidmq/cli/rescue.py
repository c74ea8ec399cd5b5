"""Rescue jobs under `braid pipeline`: audit, report, reshard, redrive; `attach` adds them to its commands."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from braidmq.cli.mistake import UserMistake
from braidmq.cli.moment import parse_moment
from braidmq.cli.options import BOOTSTRAP, AsJson, Bootstrap, parse_settings
from braidmq.cli.output import print_json, print_table, text_of
from braidmq.cli.spark import MASTER, ClientSettings, Master, SparkConfig, spark_session

EXIT_DIFFERENT = 1
TABLE_ROWS = 20
TEXT_COLUMNS = ("topic", "key", "group", "codec")


def attach(app: typer.Typer) -> None:
    """Adds the rescue jobs to the commands of `braid pipeline`."""
    for command in (audit, report):
        app.command()(command)


def audit(
    left: Annotated[str, typer.Argument(metavar="A", help="A topic, or the folder of a lake.")],
    right: Annotated[str, typer.Argument(metavar="B", help="What should hold the same messages.")],
    compare: Annotated[
        str | None,
        typer.Option(metavar="COLUMNS", help="What makes a message: key,value,headers,timestamp,…"),
    ] = None,
    since: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help="Only records of then or later.")
    ] = None,
    until: Annotated[str | None, typer.Option("--until", metavar="TIME", help="Only records before.")] = None,
    examples: Annotated[int, typer.Option(min=0, help="How many of each difference to show.")] = 20,
    options: ClientSettings = None,
    master: Master = MASTER,
    config: SparkConfig = None,
    as_json: AsJson = False,
    bootstrap: Bootstrap = BOOTSTRAP,
) -> None:
    """Compare two topics, or a topic and a lake: missing, extra, duplicated, reordered within a key.

    Exit code 0 when they hold the same messages, 1 when not. Headers named braid.… are left out.

    Examples:
    braid pipeline audit orders orders-copy
    braid pipeline audit orders archive/orders --json
    """
    from braidmq.platform.clock import SystemClock

    now_ms = SystemClock().wall_ms()
    from_ms = None if since is None else parse_moment(since, now_ms)
    until_ms = None if until is None else parse_moment(until, now_ms)
    chosen = None if compare is None else [each.strip() for each in compare.split(",")]
    with spark_session("braid pipeline audit", master, config) as spark:
        from braidmq.spark.rescue.audit import audit as audited
        from braidmq.spark.rescue.sides import Opening, Window, open_sides

        how = Opening(spark, bootstrap, parse_settings(options))
        sides = open_sides(how, left, right, Window(from_ms, until_ms))
        try:
            found = audited(sides.left, sides.right, chosen or sides.compare, examples)
        except ValueError as error:
            raise UserMistake(f"--compare: {error}") from None
    if as_json:
        print_json({"left": left, "right": right, "notes": sides.notes, **found.as_json()})
    else:
        for note in sides.notes:
            print(f"note: {note}")
        kinds = ("missing", "extra", "duplicated", "reordered", "scattered")
        print_table(
            ("compared", f"{left}#", f"{right}#", *(f"{kind}#" for kind in kinds)),
            [
                (
                    ",".join(found.compared),
                    found.left_rows,
                    found.right_rows,
                    *(getattr(found, k) for k in kinds),
                )
            ],
        )
        if found.examples:
            rows = [
                (each.kind, f"{each.topic}-{each.partition}", each.offset, text_of(each.key), each.count)
                for each in found.examples
            ]
            print_table(("difference", "partition", "offset#", "key", "count#"), rows)
        print("the same messages" if found.equal else "not the same messages")
    if not found.equal:
        raise typer.Exit(EXIT_DIFFERENT)


def report(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC")],
    to: Annotated[
        Path | None, typer.Option("--to", metavar="DIR", help="Write report.md, report.json and plots here.")
    ] = None,
    since: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help="Only records of then or later: 2h, 1d.")
    ] = None,
    hot_keys: Annotated[int, typer.Option(min=1, help="How many of the hottest keys.")] = 20,
    options: ClientSettings = None,
    master: Master = MASTER,
    config: SparkConfig = None,
    as_json: AsJson = False,
    bootstrap: Bootstrap = BOOTSTRAP,
) -> None:
    """Show throughput, delays, hot keys, skew between partitions and lag of groups.

    The delay from produce to append is known for topics with message.timestamp.type=LogAppendTime; for
    others only how late records were at least.

    Examples:
    braid pipeline report orders payments --from 1d --to reports/today
    """
    from braidmq.platform.clock import SystemClock

    from_ms = None if since is None else parse_moment(since, SystemClock().wall_ms())
    with spark_session("braid pipeline report", master, config) as spark:
        from braidmq.spark.rescue import summary

        names = tuple(dict.fromkeys(topics))
        wanted = summary.Wanted(bootstrap, names, from_ms, hot_keys, parse_settings(options))
        made = summary.summarise(spark, wanted, _tell_stage)
        files = summary.write(made, to) if to is not None else []
    if as_json:
        print_json(made.as_json())
        return
    for name, rows in made.tables.items():
        title = name.replace("_", " ")
        if not rows:
            print(f"{title}: {summary.EMPTY.get(name, 'nothing')}\n")
            continue
        headings = [heading if heading in TEXT_COLUMNS else f"{heading}#" for heading in rows[0]]
        cells = [[summary.shown(cell) for cell in row.values()] for row in rows[-TABLE_ROWS:]]
        print_table(headings, cells, title)
    for finding in made.findings:
        print(f"- {finding}")
    for path in files:
        print(f"wrote {path}")


def _tell_stage(stage: str) -> None:
    if sys.stderr.isatty():
        print(f"{stage} …", file=sys.stderr)
