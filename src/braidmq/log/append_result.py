"""The outcome of an append."""

from __future__ import annotations

from typing import NamedTuple


class AppendResult(NamedTuple):
    """What became of a batch."""

    base_offset: int
    append_time_ms: int
    """The broker's stamp under LogAppendTime, else -1."""
    duplicate: bool
