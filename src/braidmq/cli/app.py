"""Everything of `braid` but `serve`: the table of commands, and how their failures are shown.

A mistake of the user is one line and exit code 2; an answer of the broker that is an error, or a broker that
is not there, is one line and exit code 1. Neither ever shows a traceback; a traceback is a defect of ours.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import click
import typer

from braidmq import __version__
from braidmq.address import AddressError
from braidmq.cli import config, doctor, perf, send, tail, topic
from braidmq.cli.mistake import UserMistake
from braidmq.config import ConfigError
from braidmq.wire.errors import ApiError

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
app.command("send")(send.send)
app.command("tail")(tail.tail)
app.add_typer(perf.app, name="perf")
app.command("doctor")(doctor.doctor)


def main(arguments: Sequence[str]) -> int:
    from braidmq.client.errors import ClientError

    try:
        code = typer.main.get_command(app).main(list(arguments), prog_name="braid", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except click.exceptions.NoArgsIsHelpError as help_text:
        print(help_text.format_message(), file=sys.stderr)
        return EXIT_MISTAKE
    except click.UsageError as mistake:
        return _say(_where(mistake), mistake.format_message(), EXIT_MISTAKE)
    except click.ClickException as failure:
        return _say("braid", failure.format_message(), EXIT_FAILED)
    except (UserMistake, ConfigError, AddressError) as mistake:
        return _say("braid", str(mistake), EXIT_MISTAKE)
    except (ApiError, ClientError) as failure:
        return _say("braid", _text(failure), EXIT_FAILED)
    except (click.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader has seen enough. Python would complain once more when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE


def _where(mistake: click.UsageError) -> str:
    return mistake.ctx.command_path if mistake.ctx is not None else "braid"


def _text(failure: Exception) -> str:
    return f"{failure.message} ({failure.code.name})" if isinstance(failure, ApiError) else str(failure)


def _say(who: str, what: str, code: int) -> int:
    print(f"{who}: {' '.join(what.split())}", file=sys.stderr)
    return code
