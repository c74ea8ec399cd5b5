"""Jobs for the day after: move a swamped topic, send dead letters back, compare copies, see what happened.

Each is a function over DataFrames or topics, and a command of `braid topic` (docs/use/rescue.md).
"""

from __future__ import annotations

from braidmq.spark.rescue.audit import Audit, Difference, audit

__all__ = ["Audit", "Difference", "audit"]
