"""`python -m braidmq` is the `braid` command."""

from __future__ import annotations

import sys

from braidmq.cli import main

if __name__ == "__main__":
    sys.exit(main())
