"""Topics as Parquet, for as long as you like: archived exactly once, queried with SQL, replayed when needed.

    from braidmq.spark import session
    from braidmq.spark.lake import Archive, Lake, archive

    spark, lake = session("archive"), Lake("archive/orders")
    for step in archive(spark, lake, Archive("127.0.0.1:9092", ("orders",))):
        print(step.rows)
    lake.read(spark).groupBy("date").count().show()

docs/use/lake.md is the guide; `commits.py` says how the exactly-once part works.
"""

from __future__ import annotations

from braidmq.spark.lake.archiver import Archive, ArchiveStep, archive, follow
from braidmq.spark.lake.commits import CommitConflict, LakeError
from braidmq.spark.lake.compaction import Compaction, compact, sweep
from braidmq.spark.lake.decode import Avro, Json
from braidmq.spark.lake.lake import Lake

__all__ = [
    "Archive",
    "ArchiveStep",
    "Avro",
    "CommitConflict",
    "Compaction",
    "Json",
    "Lake",
    "LakeError",
    "archive",
    "compact",
    "follow",
    "sweep",
]
