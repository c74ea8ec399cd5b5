"""The `braid` command.

`braid serve` and `braid --version` are answered before the terminal libraries are loaded: a broker has no
use for them, and its start-up time and memory are part of what we promise. Everything else goes to `app`,
where each noun is one module, imported when it is asked for.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code: 0 done, 1 it failed, 2 the user has to change something."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["serve"]:
        from braidmq.cli import serve

        return serve.main(arguments[1:])
    if arguments in (["--version"], ["-V"]):
        from braidmq import __version__

        print(f"braid {__version__}")
        return 0
    from braidmq.cli import app

    return app.main(arguments)
