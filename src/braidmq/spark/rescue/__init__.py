"""Jobs after an incident: reshard an overloaded topic, redrive dead letters, audit copies, report on topics.

Each is a function over DataFrames or topics, and a command of `braid topic` (docs/use/rescue.md).
"""

from __future__ import annotations

from braidmq.spark.rescue.audit import Audit, Difference, audit

__all__ = ["Audit", "Difference", "audit"]
