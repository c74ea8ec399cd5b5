"""The sink with a bug planted into it, as a format of its own.

Tasks and commits run in Python processes that Spark starts in ways of its own, but each of them unpickles
the writer it works with, and so imports this module, which plants the bug that the environment names.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from pyspark.sql.datasource import DataSourceStreamWriter
from pyspark.sql.types import StructType

from braidmq.spark.data_source import BraidSource
from braidmq.spark.sink.ledger import Decision, Ledger
from braidmq.spark.sink.writer import StreamWriter

BUG = "SPARK_SABOTAGE"
FORMAT = "sabotaged"


class SabotagedWriter(StreamWriter):
    """Brings this module along wherever it is sent."""


class SabotagedSource(BraidSource):
    @classmethod
    def name(cls) -> str:
        return FORMAT

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        made = super().streamWriter(schema, overwrite)
        made.__class__ = SabotagedWriter
        return made


def the_ledger_is_not_read() -> None:
    """Nobody knows which batches were decided: one that is run again is written again."""

    def read(self: Ledger) -> Decision | None:  # noqa: ARG001
        return None

    Ledger.read = read  # type: ignore[method-assign]


BUGS: dict[str, Callable[[], None]] = {bug.__name__: bug for bug in (the_ledger_is_not_read,)}

if BUG in os.environ:
    BUGS[os.environ[BUG]]()
