"""The commands of `braid` except `serve`, and how their failures are shown.

A mistake of the user is one line and exit code 2. An error from the broker, or a broker that cannot be
reached, is one line and exit code 1. A traceback is always a defect of ours.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from braidmq import __version__
from braidmq.address import AddressError
from braidmq.cli import cluster, config, doctor, group, lake, perf, pipeline, send, tail, topic, txn
from braidmq.cli.command import command
from braidmq.cli.mistake import UserMistake
from braidmq.config import ConfigError
from braidmq.wire.errors import ApiError

ORDER = (
    *("serve", "nameserver", "config", "topic", "send", "produce", "tail", "consume"),
    *("group", "txn", "pipeline", "lake", "cluster", "doctor", "perf"),
)
# Typer brings a click of its own in newer releases; through its public names we get the one it raises.
ClickException: type[Exception] = typer.BadParameter.__mro__[2]
EXIT_FAILED, EXIT_MISTAKE, EXIT_INTERRUPTED, EXIT_BROKEN_PIPE = 1, 2, 130, 141


class Commands(TyperGroup):
    """Lists commands by subject; typer would put single ones before those that have their own."""

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(super().list_commands(ctx), key=ORDER.index)


app = typer.Typer(
    name="braid",
    cls=Commands,
    help="A durable, Kafka-compatible message queue.",
    epilog="Start a broker with braid serve, then in another terminal: echo hello | braid send greetings",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", "-V", help="Show the version.", is_eager=True)
    ] = False,
) -> None:
    if version:
        print(f"braid {__version__}")
        raise typer.Exit


RUN, MESSAGES, GROUPS = "Run", "Topics and messages", "Groups and transactions"
SPARK, DIAGNOSE = "Spark and lake", "Diagnose"


@app.command("serve", context_settings={"ignore_unknown_options": True}, rich_help_panel=RUN)
def _serve(arguments: Annotated[list[str] | None, typer.Argument()] = None) -> None:
    """Run a broker until SIGTERM or Ctrl-C (braid serve --help)."""
    from braidmq.cli import serve

    raise typer.Exit(serve.main(arguments or []))


@app.command("nameserver", context_settings={"ignore_unknown_options": True}, rich_help_panel=RUN)
def _nameserver(arguments: Annotated[list[str] | None, typer.Argument()] = None) -> None:
    """Run a name server, or read and change its configuration (braid nameserver --help)."""
    from braidmq.cli import nameserver

    raise typer.Exit(nameserver.main(arguments or []))


command(app, "config", examples=config.EXAMPLES, panel=RUN)(config.show)
app.add_typer(topic.app, name="topic", rich_help_panel=MESSAGES)
command(app, "send", examples=send.EXAMPLES, panel=MESSAGES)(send.send)
command(app, "produce", summary="Alias of send.", examples=send.EXAMPLES, panel=MESSAGES)(send.send)
command(app, "tail", examples=tail.EXAMPLES, panel=MESSAGES)(tail.tail)
command(app, "consume", summary="Alias of tail.", examples=tail.EXAMPLES, panel=MESSAGES)(tail.tail)
app.add_typer(group.app, name="group", rich_help_panel=GROUPS)
app.add_typer(txn.app, name="txn", rich_help_panel=GROUPS)
app.add_typer(pipeline.app, name="pipeline", rich_help_panel=SPARK)
app.add_typer(lake.app, name="lake", rich_help_panel=SPARK)
app.add_typer(cluster.app, name="cluster", rich_help_panel=DIAGNOSE)
command(app, "doctor", examples=doctor.EXAMPLES, panel=DIAGNOSE)(doctor.doctor)
app.add_typer(perf.app, name="perf", rich_help_panel=DIAGNOSE)


def main(arguments: Sequence[str]) -> int:
    from braidmq.client.errors import ClientError
    from braidmq.client.security import SecurityError

    try:
        _run(list(arguments))
        sys.stdout.flush()
        return 0
    except typer.Exit as done:
        return done.exit_code
    except typer.Abort:
        return EXIT_INTERRUPTED
    except (UserMistake, ConfigError, AddressError, SecurityError) as mistake:
        return _say("braid", str(mistake), EXIT_MISTAKE)
    except (ApiError, ClientError) as failure:
        return _say("braid", _text(failure), EXIT_FAILED)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader has seen enough. Python would complain once more when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except ClickException as mistake:
        return _usage(mistake)


def _run(arguments: list[str]) -> None:
    command = typer.main.get_command(app)
    if "_BRAID_COMPLETE" in os.environ:
        command.main(arguments, prog_name="braid")
    # Not `main`: it would turn a broken pipe into a failure before we can tell it from one.
    with command.make_context("braid", arguments) as context:
        command.invoke(context)


def _usage(mistake: Any) -> int:
    """What typer has against the arguments, in our one line; help where nothing was asked for."""
    if type(mistake).__name__ == "NoArgsIsHelpError":
        print(mistake.format_message(), file=sys.stderr)
        return EXIT_MISTAKE
    context = getattr(mistake, "ctx", None)
    where = context.command_path if context is not None else "braid"
    return _say(where, mistake.format_message(), EXIT_MISTAKE)


def _text(failure: Exception) -> str:
    return f"{failure.message} ({failure.code.name})" if isinstance(failure, ApiError) else str(failure)


def _say(who: str, what: str, code: int) -> int:
    print(f"{who}: {' '.join(what.split())}", file=sys.stderr)
    return code
