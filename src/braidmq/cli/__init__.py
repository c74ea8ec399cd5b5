"""The `braid` command.

`braid serve`, `braid nameserver` and `braid --version` run without the terminal libraries: a broker does not
need them, and its start-up time and memory matter. Every other command is in `app`, with one module per noun.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code: 0 done, 1 failed, 2 a mistake on the command line."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["serve"]:
        from braidmq.cli import serve

        return serve.main(arguments[1:])
    if arguments[:1] == ["nameserver"]:
        from braidmq.cli import nameserver

        return nameserver.main(arguments[1:])
    if arguments in (["--version"], ["-V"]):
        from braidmq import __version__

        print(f"braid {__version__}")
        return 0
    from braidmq.cli import app

    return app.main(arguments)
