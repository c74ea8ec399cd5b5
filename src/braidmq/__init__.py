"""Braid: a durable, Kafka-compatible message queue in Python.

`braid serve` runs a broker; any Kafka client talks to it. `braidmq.client` is a small client of our own,
`braidmq.testing` starts a broker inside a test. `docs/ARCHITECTURE.md` walks one message through the files.
"""

from __future__ import annotations

__version__ = "0.1.0"
