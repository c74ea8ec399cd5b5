"""Clickstream sessions, in Python: visits that end after half an hour without a click, and who bought.

python examples/pipelines/send.py clicks
braid pipeline run examples/pipelines/clickstream.py --once
"""

from __future__ import annotations

import os

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from braidmq.spark.pipelines import pipeline

DATA = os.environ.get("PIPELINE_DATA", "/tmp/braid-examples")

pipe = pipeline("sessions", checkpoint=f"{DATA}/checkpoints/clickstream")

pipe.source(
    "clicks",
    topic="clicks",
    schema="visitor STRING NOT NULL, page STRING NOT NULL, at TIMESTAMP NOT NULL",
    watermark="at, 10 minutes",
    bad_records={"topic": "clicks.bad"},
)


@pipe.step
def pages(clicks: DataFrame) -> DataFrame:
    """Without what robots and pictures fetch."""
    return clicks.where(~F.col("page").rlike(r"\.(png|css|js)$"))


pipe.step(
    "visits",
    source="pages",
    window={
        "on": "at",
        "gap": "30 minutes",
        "by": "visitor",
        "compute": {
            "clicks": "count(*)",
            "first_page": "min_by(page, at)",
            "last_page": "max_by(page, at)",
            "bought": "max(page = '/thanks')",
        },
    },
)

pipe.sink("visits", source="visits", topic="visits", key="visitor")
pipe.sink("lake", source="visits", lake=f"{DATA}/lake/visits", date_of="window_start")
