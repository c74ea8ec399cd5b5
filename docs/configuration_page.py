"""Makes docs/reference/configuration.md from the option tables; a test compares the page with them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from braidmq.config import BROKER_NAMES, DYNAMIC, GROUP, SERVER, TOPIC, Option

PAGE = Path(__file__).parent / "reference" / "configuration.md"

HEAD = """\
# Configuration

This page is made from `src/braidmq/config/` by `scripts/configuration-page`. `braid config` shows the same
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

## While the broker runs

A Kafka admin client can change the broker options marked *at once* below, and all topic options, for one
broker (its `node.id`) or for all brokers (an empty name). The change takes effect at once, survives a
restart, and beats the three places above; a value for one broker beats a value for all. Deleting the option
restores the value the broker started with. The others need a restart and are refused with `INVALID_REQUEST`:
they name an address or a directory, or set the size of something that is made at the start.

```python
from confluent_kafka.admin import (
    AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
)

admin = AdminClient({"bootstrap.servers": "127.0.0.1:9092"})
shorter = ConfigEntry("log.retention.ms", "86400000", incremental_operation=AlterConfigOpType.SET)
broker = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[shorter])
for future in admin.incremental_alter_configs([broker]).values():
    future.result()
```

"""

TOPIC_HEAD = """\
## Topic options

Given to a broker they are the defaults of its topics. A topic's own values are set when it is created
(`braid topic create orders -o retention.ms=3600000`), with `braid topic alter`, or by any Kafka admin client.
Kafka has other names for most of the defaults when they are a broker's options. Admin clients read a broker's
defaults by those names and change them by either name:

"""

GROUP_HEAD = """\
## Group options

Set for a single group by any Kafka admin client (resource type group), at any time, even before its first
member joins. What a group does not set is the broker's option of the same name with `group.` before it. A
heartbeat interval must be shorter than the session.
"""


def render() -> str:
    broker = f"{HEAD}## Broker options\n\n{_broker_table()}"
    return f"{broker}\n{TOPIC_HEAD}{_names()}\n{_table(TOPIC)}\n{GROUP_HEAD}\n{_table(GROUP)}"


def _names() -> str:
    rows = ["| topic option | the broker's default, for Kafka's clients |", "|---|---|"]
    rows += [f"| `{ours}` | `{kafkas}` |" for ours, kafkas in BROKER_NAMES.items()]
    return "\n".join(rows) + "\n"


def _broker_table() -> str:
    head, line, *rows = _table(SERVER).splitlines()
    changes = ["at once" if option.name in DYNAMIC else "restart" for option in SERVER]
    marked = [f"{row} {change} |" for row, change in zip(rows, changes, strict=True)]
    return "\n".join((f"{head} a change takes |", f"{line}---|", *marked)) + "\n"


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
