"""What is measured, in which unit, which direction is better, and the ratio to Kafka that is aimed at."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Better(StrEnum):
    HIGHER = "higher"
    LOWER = "lower"


@dataclass(frozen=True, slots=True)
class Metric:
    """One kind of figure. `target` is the wanted Braid/Kafka ratio; None: shown, not judged."""

    name: str
    unit: str
    better: Better
    target: float | None

    def hit(self, ratio: float) -> bool | None:
        if self.target is None:
            return None
        return ratio >= self.target if self.better is Better.HIGHER else ratio <= self.target

    def aim(self) -> str:
        if self.target is None:
            return ""
        return f"{'≥' if self.better is Better.HIGHER else '≤'} {self.target:g}x"


BYTES_RATE = Metric("throughput", "MB/s", Better.HIGHER, 1.0)
MESSAGE_RATE = Metric("messages", "msg/s", Better.HIGHER, None)
RATE_KEPT = Metric("of the rate without", "%", Better.HIGHER, None)
REQUEST_RATE = Metric("requests", "req/s", Better.HIGHER, 1.0)
P50 = Metric("p50", "ms", Better.LOWER, None)
P99 = Metric("p99", "ms", Better.LOWER, 0.5)
P999 = Metric("p99.9", "ms", Better.LOWER, None)
# Beside others: what the p99 is while nobody else does anything, and what the others get.
P99_ALONE = Metric("p99 without", "ms", Better.LOWER, None)
COLD_RATE = Metric("cold reads", "MB/s", Better.HIGHER, None)
FIRST_FETCH = Metric("first fetch of all", "s", Better.LOWER, 1.0)
STOP = Metric("stop", "s", Better.LOWER, 1.0)
CPU_PER_GB = Metric("CPU", "s/GB", Better.LOWER, 0.5)
CPU_PER_MILLION_REQUESTS = Metric("CPU", "s/M req", Better.LOWER, 0.5)
# At a fixed rate a slower server gets larger batches, and so looks cheaper per message: shown, not judged.
CPU_PER_MILLION = Metric("CPU", "s/M msg", Better.LOWER, None)
RSS_IDLE = Metric("RSS idle", "MB", Better.LOWER, 0.1)
RSS_LOADED = Metric("RSS peak", "MB", Better.LOWER, 0.1)
START = Metric("start to first ack", "s", Better.LOWER, 0.1)
CREATION = Metric("creation", "s", Better.LOWER, None)
# Groups and transactions: at least Kafka's rates, at most its times.
REBALANCE = Metric("rebalance", "ms", Better.LOWER, 1.0)
# How much stands still is for the protocol to say; for how long, and so how many records, for the server.
LOST_MEANWHILE = Metric("lost meanwhile", "rec/s", Better.LOWER, None)
HELD_BACK = Metric("held back", "records", Better.LOWER, 1.0)
COMMIT_RATE = Metric("commits", "commits/s", Better.HIGHER, 1.0)
COMMIT_P99 = Metric("commit p99", "ms", Better.LOWER, 1.0)
CPU_PER_MILLION_COMMITS = Metric("CPU", "s/M commits", Better.LOWER, None)
CPU_PER_MILLION_BEATS = Metric("CPU of both", "s/M req", Better.LOWER, None)
GROUPS_JOINED = Metric("all joined", "s", Better.LOWER, 1.0)
GROUPS_RATE = Metric("heartbeats and commits", "req/s", Better.HIGHER, 1.0)
RECORD_RATE = Metric("records", "rec/s", Better.HIGHER, 1.0)
TRANSACTION_RATE = Metric("transactions", "txn/s", Better.HIGHER, 1.0)
TRANSACTION_P99 = Metric("transaction p99", "ms", Better.LOWER, 1.0)
END_TO_END_RATE = Metric("end to end", "MB/s", Better.HIGHER, 1.0)
CPU_SHARE = Metric("CPU", "%", Better.LOWER, 1.0)
# Spark with Braid's format against Spark with its own Kafka connector, on the same broker.
ROWS_READ = Metric("rows read", "rows/s", Better.HIGHER, 2.0)
ROWS_SHOWN = Metric("rows read as it grows", "rows/s", Better.HIGHER, None)
ROWS_HANDED_OVER = Metric("rows handed over", "rows/s", Better.HIGHER, None)
ROWS_WRITTEN = Metric("rows written", "rows/s", Better.HIGHER, 1.5)
BATCH_TIME = Metric("batch time", "ms", Better.LOWER, 1.0)
LOCAL_ROWS = Metric("rows read locally", "rows/s", Better.HIGHER, 1.5)
CPU_PER_MILLION_ROWS = Metric("CPU", "s/M rows", Better.LOWER, None)
MEMORY_PEAK = Metric("memory peak", "MB", Better.LOWER, None)

ALL = (
    BYTES_RATE,
    MESSAGE_RATE,
    RATE_KEPT,
    REQUEST_RATE,
    P50,
    P99,
    P999,
    P99_ALONE,
    COLD_RATE,
    FIRST_FETCH,
    STOP,
    CPU_PER_GB,
    CPU_PER_MILLION_REQUESTS,
    CPU_PER_MILLION,
    RSS_IDLE,
    RSS_LOADED,
    START,
    CREATION,
    REBALANCE,
    LOST_MEANWHILE,
    HELD_BACK,
    COMMIT_RATE,
    COMMIT_P99,
    CPU_PER_MILLION_COMMITS,
    CPU_PER_MILLION_BEATS,
    GROUPS_JOINED,
    GROUPS_RATE,
    RECORD_RATE,
    TRANSACTION_RATE,
    TRANSACTION_P99,
    END_TO_END_RATE,
    CPU_SHARE,
    ROWS_READ,
    ROWS_SHOWN,
    ROWS_HANDED_OVER,
    ROWS_WRITTEN,
    BATCH_TIME,
    LOCAL_ROWS,
    CPU_PER_MILLION_ROWS,
    MEMORY_PEAK,
)
BY_KEY = {(metric.name, metric.unit): metric for metric in ALL}

Figures = dict[Metric, float]
"""What one run of one load found."""


def latencies(samples_s: list[float]) -> Figures:
    """p50, p99 and p99.9 of the samples, in milliseconds."""
    ordered = sorted(samples_s)
    last = len(ordered) - 1

    def quantile(share: float) -> float:
        return ordered[min(last, int(share * len(ordered)))] * 1000

    return {P50: quantile(0.50), P99: quantile(0.99), P999: quantile(0.999)}
