"""`braid txn`: list, describe and abort transactions."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from braidmq.cli.mistake import UserMistake
from braidmq.cli.moment import format_duration, format_moment, parse_duration_ms
from braidmq.cli.options import BOOTSTRAP, AsJson, Bootstrap, Yes, confirm_unless
from braidmq.cli.output import print_json, print_table

if TYPE_CHECKING:
    from braidmq.client.cluster import TopicPartition
    from braidmq.client.transactions import OpenProducer, TransactionDescription

app = typer.Typer(help="List, describe and abort transactions.", no_args_is_help=True)

OneTopic = Annotated[
    str | None, typer.Option("--topic", "-t", help="The topic of a hanging transaction, instead of an id.")
]
OnePartition = Annotated[int | None, typer.Option("--partition", "-p", min=0, help="Its partition.")]


@app.command("list")
def list_(
    state: Annotated[
        list[str] | None,
        typer.Option("--state", "-s", help="Only in this state (Ongoing, CompleteCommit, …); may repeat."),
    ] = None,
    producer_id: Annotated[
        list[int] | None, typer.Option(min=0, help="Only of this producer id; may repeat.")
    ] = None,
    longer_than: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Only open for longer than this: 30s, 10m, 2h.")
    ] = None,
    pattern: Annotated[
        str | None, typer.Option(metavar="REGEX", help="Only ids that this expression matches as a whole.")
    ] = None,
    as_json: AsJson = False,
    bootstrap: Bootstrap = BOOTSTRAP,
) -> None:
    """List transactional ids with their state.

    Examples:
    braid txn list --state Ongoing --longer-than 10m
    braid txn list --pattern 'billing-.*' --json
    """
    from braidmq.client.transactions import TransactionAdmin

    states = _states(state or [])
    longer_than_ms = None if longer_than is None else parse_duration_ms(longer_than)
    _check_pattern(pattern)
    with TransactionAdmin(bootstrap) as transactions:
        found = transactions.all(states, producer_id or [], longer_than_ms, pattern)
    if as_json:
        print_json([asdict(row) for row in found])
    elif found:
        print_table(
            ("transactional id", "state", "producer id#", "coordinator#"),
            [(row.transactional_id, row.state, row.producer_id, row.coordinator) for row in found],
        )
    elif states or producer_id or longer_than or pattern:
        print("no transactional id is like that")
    else:
        print("no transactional ids yet; they appear when a producer with a transactional.id starts")


def _states(wanted: list[str]) -> list[str]:
    from braidmq.client.transactions import STATES

    known = {name.lower(): name for name in STATES}
    for name in wanted:
        if name.lower() not in known:
            raise UserMistake(f"there is no state {name!r}; the states are {', '.join(STATES)}")
    return [known[name.lower()] for name in wanted]


def _check_pattern(pattern: str | None) -> None:
    try:
        re.compile(pattern or "")
    except re.error as error:
        raise UserMistake(f"{pattern!r} is not a regular expression: {error}") from None


@app.command()
def describe(
    transactional_id: Annotated[str, typer.Argument(metavar="ID")],
    as_json: AsJson = False,
    bootstrap: Bootstrap = BOOTSTRAP,
) -> None:
    """Show whose transaction it is, for how long it has been open, and where it begins in each partition.

    Examples:
    braid txn describe billing-1
    """
    from braidmq.client.transactions import TransactionAdmin

    with TransactionAdmin(bootstrap) as transactions:
        found = transactions.describe(transactional_id)
    if as_json:
        print_json(asdict(found))
    else:
        _show(found)


def _show(found: TransactionDescription) -> None:
    opened = "" if found.open_ms is None else f", open for {format_duration(found.open_ms)}"
    print(
        f"{found.transactional_id}: {found.state}{opened}, time-out {format_duration(found.timeout_ms)}, "
        f"producer {found.producer_id} epoch {found.producer_epoch}, coordinator {found.coordinator}"
    )
    if found.partitions:
        print_table(
            ("topic", "partition#", "open since offset#"),
            [
                (p.topic, p.partition, "-" if p.start_offset is None else p.start_offset)
                for p in found.partitions
            ],
        )


@app.command()
def hanging(
    topic: Annotated[
        list[str] | None, typer.Option("--topic", "-t", help="Only in this topic; may repeat. Default: all.")
    ] = None,
    as_json: AsJson = False,
    bootstrap: Bootstrap = BOOTSTRAP,
) -> None:
    """List transactions that are open in a partition while no coordinator knows of them.

    Nothing would ever end them, and they hold back everybody who reads that partition at read_committed.

    Examples:
    braid txn hanging --topic orders
    """
    from braidmq.client.transactions import TransactionAdmin

    with TransactionAdmin(bootstrap) as transactions:
        found = transactions.hanging(topic)
    if as_json:
        print_json([asdict(each) for each in found])
    elif found:
        _show_hanging(found)
    else:
        print("no hanging transactions")


def _show_hanging(found: list[OpenProducer]) -> None:
    print_table(
        ("topic", "partition#", "start offset#", "producer id#", "epoch#", "last written"),
        [
            (
                p.topic,
                p.partition,
                p.start_offset,
                p.producer_id,
                p.producer_epoch,
                format_moment(p.last_timestamp_ms),
            )
            for p in found
        ],
    )


@app.command()
def abort(
    transactional_id: Annotated[str | None, typer.Argument(metavar="ID")] = None,
    topic: OneTopic = None,
    partition: OnePartition = None,
    start_offset: Annotated[
        int | None, typer.Option(min=0, help="The offset it begins at, as `braid txn hanging` shows it.")
    ] = None,
    yes: Yes = False,
    as_json: AsJson = False,
    bootstrap: Bootstrap = BOOTSTRAP,
) -> None:
    """Abort an open transaction by its id, or a hanging one by where it begins.

    By id, its producer is fenced: it gets an error at its next step and has to start again. Use topic,
    partition and start offset only for what `braid txn hanging` lists: if a coordinator still knows the
    transaction, a part of it would be aborted and the rest might be committed.

    Examples:
    braid txn abort billing-1
    braid txn abort --topic orders --partition 3 --start-offset 1200 --yes
    """
    place = (topic, partition, start_offset)
    if transactional_id is not None and place == (None, None, None):
        _abort_by_id(transactional_id, yes, as_json, bootstrap)
    elif (
        transactional_id is None and topic is not None and partition is not None and start_offset is not None
    ):
        from braidmq.client.cluster import TopicPartition

        _abort_by_place(TopicPartition(topic, partition), start_offset, yes, as_json, bootstrap)
    else:
        raise UserMistake("say what to abort: an ID, or --topic, --partition and --start-offset together")


def _abort_by_id(transactional_id: str, yes: bool, as_json: bool, bootstrap: str) -> None:
    from braidmq.client.transactions import TransactionAdmin

    with TransactionAdmin(bootstrap) as transactions:
        found = transactions.open_of(transactional_id)
        if not as_json:
            _show(found)
        confirm_unless(yes or as_json, f"Abort this transaction and fence producer {found.producer_id}?")
        transactions.abort(found)
    if as_json:
        print_json({"aborted": asdict(found)})
    else:
        print(f"aborted the transaction of {transactional_id}")


def _abort_by_place(at: TopicPartition, start_offset: int, yes: bool, as_json: bool, bootstrap: str) -> None:
    from braidmq.client.transactions import TransactionAdmin

    with TransactionAdmin(bootstrap) as transactions:
        found = transactions.open_at(at, start_offset)
        if not as_json:
            _show_hanging([found])
        confirm_unless(yes or as_json, f"Write an abort marker for producer {found.producer_id} to {at}?")
        transactions.abort_hanging(found)
    if as_json:
        print_json({"aborted": asdict(found)})
    else:
        print(f"aborted the transaction in {at} from offset {start_offset:,}")
