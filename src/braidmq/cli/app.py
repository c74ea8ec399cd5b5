"""Everything of `braid` but `serve`: the table of commands, and how their failures are shown.

A mistake of the user is one line and exit code 2; an answer of the broker that is an error, or a broker that
is not there, is one line and exit code 1. Neither ever shows a traceback; a traceback is a defect of ours.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from braidmq import __version__
from braidmq.address import AddressError
from braidmq.cli import config, doctor, group, lake, perf, pipeline, send, tail, topic, txn
from braidmq.cli.mistake import UserMistake
from braidmq.config import ConfigError
from braidmq.wire.errors import ApiError

# Typer brings a click of its own in newer releases; through its public names we get the one it raises.
ClickException: type[Exception] = typer.BadParameter.__mro__[2]
EXIT_FAILED, EXIT_MISTAKE, EXIT_INTERRUPTED, EXIT_BROKEN_PIPE = 1, 2, 130, 141

app = typer.Typer(
    name="braid",
    help="A durable, Kafka-compatible message queue.",
    epilog="Start with: braid serve, then elsewhere: echo hello | braid send greetings; braid tail greetings",
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


@app.command("serve", context_settings={"ignore_unknown_options": True})
def _serve(arguments: Annotated[list[str] | None, typer.Argument()] = None) -> None:
    """Run a broker until SIGTERM or Ctrl-C (braid serve --help)."""
    from braidmq.cli import serve

    raise typer.Exit(serve.main(arguments or []))


app.command("config")(config.show)
app.add_typer(topic.app, name="topic")
app.add_typer(group.app, name="group")
app.add_typer(lake.app, name="lake")
app.add_typer(txn.app, name="txn")
app.command("send")(send.send)
app.command("tail")(tail.tail)
app.add_typer(perf.app, name="perf")
app.add_typer(pipeline.app, name="pipeline")
app.command("doctor")(doctor.doctor)


def main(arguments: Sequence[str]) -> int:
    from braidmq.client.errors import ClientError

    try:
        _run(list(arguments))
        sys.stdout.flush()
        return 0
    except typer.Exit as done:
        return done.exit_code
    except typer.Abort:
        return EXIT_INTERRUPTED
    except (UserMistake, ConfigError, AddressError) as mistake:
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
