"""Makes docs/configuration.md from the option tables; a test compares the page with them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from braidmq.config import GROUP, SERVER, TOPIC, Option

PAGE = Path(__file__).with_name("configuration.md")

HEAD = """\
# Configuration

This page is made from `src/braidmq/config.py` by `scripts/configuration-page`. `braid config` shows the same
in a terminal, and `braid config NAME` one option in full.

An option can be given in three places; later ones win:

1. a TOML file, `braid serve --config braid.toml`, with dotted names as they are or as tables:

   ```toml
   "num.partitions" = 8

   [retention]
   ms = 86400000
   ```

2. the environment: `BRAID_` and the name in capitals, underscores for dots (`BRAID_RETENTION_MS=86400000`);
3. the command line: `braid serve -o retention.ms=86400000`.

A name that does not exist or a value out of bounds stops `braid serve` with one line that says what would be
right.
"""

TOPIC_HEAD = """\
## Topic options

Given to a broker they are the defaults of its topics. A topic's own values are set when it is created
(`braid topic create orders -o retention.ms=3600000`), with `braid topic alter`, or by any Kafka admin client.
"""

GROUP_HEAD = """\
## Group options

Set for a single group by any Kafka admin client (resource type group), at any time, even before its first
member comes. What a group does not set is the broker's option of the same name with `group.` before it.
"""


def render() -> str:
    broker = f"{HEAD}\n## Broker options\n\n{_table(SERVER)}"
    return f"{broker}\n{TOPIC_HEAD}\n{_table(TOPIC)}\n{GROUP_HEAD}\n{_table(GROUP)}"


def _table(options: Iterable[Option]) -> str:
    rows = ["| option | default | permitted | why one would change it |", "|---|---|---|---|"]
    for option in options:
        unit = f" {option.unit}" if option.unit else ""
        default = option.text(option.default)
        permitted = option.bounds().replace(" | ", ", ")
        rows.append(f"| `{option.name}` | {default}{unit} | {permitted} | {option.why} |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
