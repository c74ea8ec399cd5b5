"""`braid txn`: list, describe and abort transactions."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from braidmq.cli.broker import Broker
from braidmq.cli.command import command
from braidmq.cli.mistake import UserMistake
from braidmq.cli.moment import format_duration, format_moment, parse_duration_ms
from braidmq.cli.options import Yes, confirm, require_terminal_or
from braidmq.cli.output import Output, print_table

if TYPE_CHECKING:
    from braidmq.client.cluster import TopicPartition
    from braidmq.client.transactions import OpenProducer, TransactionDescription

app = typer.Typer(help="List, describe and abort transactions.", no_args_is_help=True)

PARTITION_COLUMNS = ("topic", "partition#", "open since offset#")
HANGING_COLUMNS = ("topic", "partition#", "start offset#", "producer id#", "epoch#", "last written")


@command(
    app,
    "list",
    examples=(
        "braid txn list --state Ongoing --longer-than 10m",
        "braid txn list --pattern 'billing-.*' --json",
    ),
)
def list_(
    broker: Broker,
    output: Output,
    state: Annotated[
        list[str] | None,
        typer.Option("--state", help="Only in this state (Ongoing, CompleteCommit, …). May repeat."),
    ] = None,
    producer_id: Annotated[
        list[int] | None, typer.Option(min=0, help="Only of this producer id. May repeat.")
    ] = None,
    longer_than: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Only open for longer than this: 30s, 10m, 2h.")
    ] = None,
    pattern: Annotated[
        str | None, typer.Option(metavar="REGEX", help="Only ids that match this expression in full.")
    ] = None,
) -> None:
    """List transactional ids with their state."""
    from braidmq.client.transactions import TransactionAdmin

    states = _states(state or [])
    longer_than_ms = None if longer_than is None else parse_duration_ms(longer_than)
    _check_pattern(pattern)
    with broker.connect() as cluster:
        found = TransactionAdmin(cluster).all(states, producer_id or [], longer_than_ms, pattern)
    columns = ("transactional id", "state", "producer id#", "coordinator#")
    rows = [(row.transactional_id, row.state, row.producer_id, row.coordinator) for row in found]
    if output.printed([asdict(row) for row in found], columns, rows):
        return
    if rows:
        print_table(columns, rows)
    elif states or producer_id or longer_than or pattern:
        print("no transactional id matches")
    else:
        print("no transactional ids yet; one appears when a producer with a transactional.id starts")


def _states(wanted: list[str]) -> list[str]:
    from braidmq.client.transactions import STATES

    known = {name.lower(): name for name in STATES}
    for name in wanted:
        if name.lower() not in known:
            raise UserMistake(f"no state {name!r}; the states are {', '.join(STATES)}")
    return [known[name.lower()] for name in wanted]


def _check_pattern(pattern: str | None) -> None:
    try:
        re.compile(pattern or "")
    except re.error as error:
        raise UserMistake(f"{pattern!r} is not a regular expression: {error}") from None


@command(app, examples=("braid txn describe billing-1",))
def describe(
    broker: Broker, output: Output, transactional_id: Annotated[str, typer.Argument(metavar="ID")]
) -> None:
    """Show a transaction's producer, age and partitions. CSV has the partitions."""
    from braidmq.client.transactions import TransactionAdmin

    with broker.connect() as cluster:
        found = TransactionAdmin(cluster).describe(transactional_id)
    if not output.printed(asdict(found), PARTITION_COLUMNS, _partition_rows(found)):
        _show(found)


def _show(found: TransactionDescription) -> None:
    opened = "" if found.open_ms is None else f", open for {format_duration(found.open_ms)}"
    print(
        f"{found.transactional_id}: {found.state}{opened}, time-out {format_duration(found.timeout_ms)}, "
        f"producer {found.producer_id} epoch {found.producer_epoch}, coordinator {found.coordinator}"
    )
    if found.partitions:
        print_table(PARTITION_COLUMNS, _partition_rows(found))


def _partition_rows(found: TransactionDescription) -> list[tuple[object, ...]]:
    return [(p.topic, p.partition, p.start_offset) for p in found.partitions]


@command(app, examples=("braid txn hanging", "braid txn hanging --topic orders"))
def hanging(
    broker: Broker,
    output: Output,
    topic: Annotated[
        list[str] | None,
        typer.Option("--topic", "-t", metavar="TOPIC", help="Only in this topic; may repeat. Default: all."),
    ] = None,
) -> None:
    """List transactions that are open in a partition but unknown to every coordinator.

    Nothing would ever end them, and they block read_committed consumers of that partition.
    """
    from braidmq.client.transactions import TransactionAdmin

    with broker.connect() as cluster:
        found = TransactionAdmin(cluster).hanging(topic)
    rows = [_hanging_row(each) for each in found]
    if output.printed([asdict(each) for each in found], HANGING_COLUMNS, rows):
        return
    if rows:
        print_table(HANGING_COLUMNS, rows)
    else:
        print("no hanging transactions")


def _hanging_row(p: OpenProducer) -> tuple[object, ...]:
    last_written = format_moment(p.last_timestamp_ms)
    return (p.topic, p.partition, p.start_offset, p.producer_id, p.producer_epoch, last_written)


@command(
    app,
    examples=(
        "braid txn abort billing-1",
        "braid txn abort --topic orders --partition 3 --start-offset 1200 --yes",
    ),
)
def abort(
    broker: Broker,
    output: Output,
    transactional_id: Annotated[str | None, typer.Argument(metavar="ID")] = None,
    topic: Annotated[
        str | None,
        typer.Option(
            "--topic", "-t", metavar="TOPIC", help="Topic of a hanging transaction, instead of an ID."
        ),
    ] = None,
    partition: Annotated[int | None, typer.Option("--partition", min=0, help="Its partition.")] = None,
    start_offset: Annotated[
        int | None, typer.Option(min=0, help="Its first offset, as braid txn hanging shows it.")
    ] = None,
    yes: Yes = False,
) -> None:
    """Abort an open transaction by its id, or a hanging one by its first offset.

    By id, the producer is fenced: its next request fails, and it has to start again. Use --topic, --partition
    and --start-offset only for transactions that `braid txn hanging` lists. If a coordinator still knows the
    transaction, part of it would be aborted while the rest could still be committed.
    """
    place = (topic, partition, start_offset)
    if transactional_id is not None and place == (None, None, None):
        require_terminal_or(yes)
        _abort_by_id(broker, output, transactional_id, yes)
    elif (
        transactional_id is None and topic is not None and partition is not None and start_offset is not None
    ):
        from braidmq.client.cluster import TopicPartition

        require_terminal_or(yes)
        _abort_by_place(broker, output, TopicPartition(topic, partition), start_offset, yes)
    else:
        raise UserMistake("give an ID, or all of --topic, --partition and --start-offset")


def _abort_by_id(broker: Broker, output: Output, transactional_id: str, yes: bool) -> None:
    from braidmq.client.transactions import TransactionAdmin

    with broker.connect() as cluster:
        transactions = TransactionAdmin(cluster)
        found = transactions.open_of(transactional_id)
        if output.is_table:
            _show(found)
        confirm(yes, f"Abort this transaction and fence producer {found.producer_id}?")
        transactions.abort(found)
    if not output.printed({"aborted": asdict(found)}, PARTITION_COLUMNS, _partition_rows(found)):
        print(f"aborted the transaction of {transactional_id}")


def _abort_by_place(broker: Broker, output: Output, at: TopicPartition, start_offset: int, yes: bool) -> None:
    from braidmq.client.transactions import TransactionAdmin

    with broker.connect() as cluster:
        transactions = TransactionAdmin(cluster)
        found = transactions.open_at(at, start_offset)
        rows = [_hanging_row(found)]
        if output.is_table:
            print_table(HANGING_COLUMNS, rows)
        confirm(yes, f"Write an abort marker for producer {found.producer_id} to {at}?")
        transactions.abort_hanging(found)
    if not output.printed({"aborted": asdict(found)}, HANGING_COLUMNS, rows):
        print(f"aborted the transaction in {at} from offset {start_offset:,}")
