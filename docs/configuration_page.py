"""Makes docs/reference/configuration.md from the option tables; a test compares the page with them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from braidmq.config import BROKER_NAMES, DYNAMIC, GROUP, SERVER, TOPIC, Option

PAGE = Path(__file__).parent / "reference" / "configuration.md"

HEAD = """\
# Configuration

This page is generated from `src/braidmq/config/` by `scripts/configuration-page`. `braid config` shows the
same in a terminal, and `braid config NAME` one option in full.

Set an option in one of three places. If it is set in several, the last of these wins:

1. a TOML file, `braid serve --config braid.toml`, with dotted names in quotes or as tables:

   ```toml
   "num.partitions" = 8

   [retention]
   ms = 86400000
   ```

2. the environment: `BRAID_` and the name in capitals, underscores for dots (`BRAID_RETENTION_MS=86400000`);
3. the command line: `braid serve -o retention.ms=86400000`.

If a name does not exist or a value is out of bounds, `braid serve` exits with one line that says what is
allowed.

## While the broker runs

A Kafka admin client can change the broker options marked *at once* below, and all topic options, for one
broker (its `node.id`) or for all brokers (an empty name). The change takes effect at once, survives a
restart, and takes precedence over the three places above; a value for one broker takes precedence over a
value for all. Delete the option to return to the value the broker was started with. The broker refuses to
change the other options with `INVALID_REQUEST`; they need a restart, because they name an address or a
directory, or set the size of something that is created at the start.

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

Set on a broker, they are the defaults of its topics. Set a topic's own values when you create it
(`braid topic create orders -o retention.ms=3600000`), with `braid topic alter`, or with any Kafka admin
client. Kafka has other names for most of these defaults as options of a broker. Admin clients see a broker's
defaults under those names and can change them under either name:

"""

GROUP_HEAD = """\
## Group options

Set them for a single group with any Kafka admin client (resource type group), at any time, even before its
first member joins. If a group does not set an option, the broker's option of the same name with the prefix
`group.` applies. A heartbeat interval must be shorter than the session timeout.
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
    changes = ["at once" if option.name in DYNAMIC else "after a restart" for option in SERVER]
    marked = [f"{row} {change} |" for row, change in zip(rows, changes, strict=True)]
    return "\n".join((f"{head} a change applies |", f"{line}---|", *marked)) + "\n"


def _table(options: Iterable[Option]) -> str:
    rows = ["| option | default | permitted | why change it |", "|---|---|---|---|"]
    for option in options:
        unit = f" {option.unit}" if option.unit else ""
        default = option.text(option.default)
        permitted = option.bounds().replace(" | ", ", ")
        rows.append(f"| `{option.name}` | {default}{unit} | {permitted} | {option.why} |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
