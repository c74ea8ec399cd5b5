"""A Spark session in a process of its own: runs the loads it is told on stdin, prints what it found.

A process of its own, because CPU and memory are those of the whole tree: driver, JVM, Python workers. A load
has one side, or two which take turns run by run.
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq

from braidmq.client import Admin
from braidmq.spark import export, read, session
from braidmq.spark.lake import Archive, Lake, archive
from braidmq.spark.source.columns import columns_ddl

from . import spark_floor

SAMPLE_SECONDS = 1.0
"""Looking costs the measured side some 30 ms; four times a second, and longer, it was 7 % of two cores."""
SINK_PARTITIONS = 8
EXPORTED = ("value", "partition", "offset", "timestamp")
WARM_UP_BATCHES = 5
WARM_UP_SECONDS = 20.0
"""Before the first load of a kind with values of a size: on two cores the JVM's compilers are busy that long.
By time, since who has the shorter runs would otherwise be measured with more of that."""
WARM_UP_RUNS = 5
WARM_UP_SECONDS_AGAIN = 4.0


class Tree:
    """This process and all below it: CPU used so far, and the most memory seen."""

    def __init__(self) -> None:
        self.memory_peak_mb = 0.0
        self._root = psutil.Process()
        self._lock = threading.Lock()
        self._used: dict[int, float] = {}
        self._forked: set[int] = set()
        self._lost = 0.0
        threading.Thread(target=self._sample, daemon=True).start()

    def cpu_seconds(self) -> float:
        with self._lock:
            self._look()
            return sum(self._used.values()) + self._lost

    def _look(self) -> None:
        """What each process has used. Ended ones are in their parent's account, except Python's workers.

        Their daemon ignores its children's ends, and then nobody counts them: what was last seen does.
        """
        used, memory = {}, 0
        for process in [self._root, *self._root.children(recursive=True)]:
            try:
                spent = process.cpu_times()
                memory += _own_bytes(process)
                if process.ppid() in self._used and process.name() == process.parent().name():
                    self._forked.add(process.pid)
            except (psutil.Error, AttributeError):
                continue
            used[process.pid] = spent.user + spent.system + spent.children_user + spent.children_system
        self._lost += sum(self._used[pid] for pid in self._forked & (self._used.keys() - used.keys()))
        self._used = used
        self.memory_peak_mb = max(self.memory_peak_mb, memory / 1e6)

    def _sample(self) -> None:
        while True:
            with self._lock:
                self._look()
            time.sleep(SAMPLE_SECONDS)


def _format(load: dict[str, Any]) -> str:
    """For streams and sinks, which have no other way than a format."""
    return "kafka" if load["by"] == "kafka" else "braid"


def _own_bytes(process: psutil.Process) -> int:
    """Forked workers share most of their pages, and each page is counted once. The JVM shares none, and to
    look at each of its pages would hold it up."""
    if process.name() == "java":
        return process.memory_info().rss
    return process.memory_full_info().pss


Sides = dict[str, dict[str, Any]]
"""A load as each side gets it; what differs is how a topic is read, and with which options."""


class Job:
    """The loads of one process, one after the other."""

    def __init__(self, told: dict[str, Any], scratch: Path) -> None:
        self._bootstrap = told["bootstrap"]
        self._scratch = scratch
        self._tree = Tree()
        self._warm: set[tuple[str, int]] = set()
        self._numbers = iter(range(1_000_000))
        settings = {"spark.jars": told["jars"]} if told["jars"] else {}
        settings |= {"spark.local.dir": str(scratch), "spark.sql.warehouse.dir": str(scratch / "warehouse")}
        self._spark = session(
            "bench", f"local[{told['cores']}]", memory_mb=told["memory_mb"], ui=False, config=settings
        )

    def run(self, sides: Sides) -> dict[str, dict[str, float]]:
        """Of each side: seconds, CPU seconds, peak memory; for streams the median time of a batch."""
        self._warm_up(sides)
        taken: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
        order = list(sides)
        for _ in range(next(iter(sides.values()))["repeats"]):
            for side in order:
                taken[side].append(self._measured(sides[side]))
            order.reverse()
        return {
            side: {name: statistics.median(run[name] for run in runs) for name in runs[0]}
            for side, runs in taken.items()
        }

    def _measured(self, load: dict[str, Any]) -> dict[str, float]:
        cpu_before = self._tree.cpu_seconds()
        self._tree.memory_peak_mb = 0.0
        seconds = self._once(load)
        cpu_seconds = self._tree.cpu_seconds() - cpu_before
        return {"seconds": seconds, "cpu_seconds": cpu_seconds, "memory_mb": self._tree.memory_peak_mb}

    def _once(self, load: dict[str, Any]) -> float:
        """One run; the seconds it took."""
        steps: dict[str, Callable[[dict[str, Any]], float]] = {
            "count": self._count,
            "values": self._values,
            "keys": self._keys,
            "parquet": self._parquet,
            "export": self._export,
            "lake": self._lake,
            "sink": self._sink,
            "stream in": self._stream,
            "stream through": self._stream,
        }
        with spark_floor.instead(load["by"]):
            return steps[load["kind"]](load)

    def _warm_up(self, sides: Sides) -> None:
        """Runs that do not count: more of them for what is new to the JVM, none before a single one."""
        first = next(iter(sides.values()))
        if first["repeats"] == 1:
            return
        met = (first["kind"], first["value_bytes"])
        is_new = met not in self._warm
        self._warm.add(met)
        runs_min, seconds = (WARM_UP_RUNS, WARM_UP_SECONDS) if is_new else (1, WARM_UP_SECONDS_AGAIN)
        runs, spent = 0, 0.0
        while runs < runs_min or spent < seconds * len(sides):
            spent += sum(self._once(load) for load in sides.values())
            runs += 1

    def _frame(self, load: dict[str, Any]) -> Any:
        if load["by"] in ("read", *spark_floor.KINDS):
            return read(self._spark, self._bootstrap, load["source"], **load["options"])
        reader = self._spark.read.format(load["by"]).option("kafka.bootstrap.servers", self._bootstrap)
        return reader.option("subscribe", load["source"]).options(**load["options"]).load()

    def _count(self, load: dict[str, Any]) -> float:
        started = time.perf_counter()
        rows = self._frame(load).count()
        return self._checked(started, load, rows, rows)

    def _values(self, load: dict[str, Any]) -> float:
        """Something of each value is asked for, so that it has to come over."""
        return self._totals(load, "COUNT(value)", f"SUM(LENGTH(value)) DIV {load['value_bytes']}")

    def _keys(self, load: dict[str, Any]) -> float:
        return self._totals(load, "COUNT(key)", "COUNT(timestamp)")

    def _totals(self, load: dict[str, Any], *totals: str) -> float:
        """Two expressions, each of which comes to the number of rows."""
        started = time.perf_counter()
        (row,) = self._frame(load).selectExpr(*totals).collect()
        return self._checked(started, load, *row)

    def _checked(self, started: float, load: dict[str, Any], *found: int) -> float:
        """How long it took, if all rows were found."""
        seconds = time.perf_counter() - started
        if any(each != load["rows"] for each in found):
            raise RuntimeError(f"{found} rows were read, {load['rows']} are there")
        return seconds

    def _parquet(self, load: dict[str, Any]) -> float:
        target = self._scratch / f"parquet-{next(self._numbers)}"
        started = time.perf_counter()
        self._frame(load).select(*EXPORTED).write.parquet(str(target))
        return self._written(started, load, target)

    def _export(self, load: dict[str, Any]) -> float:
        """The same columns, with the codec that is Spark's default, by those who read."""
        if load["by"] == "kafka":
            return self._parquet(load)
        target = self._scratch / f"parquet-{next(self._numbers)}"
        schema = columns_ddl(EXPORTED)
        started = time.perf_counter()
        export(self._spark, self._bootstrap, load["source"], path=target, schema=schema, **load["options"])
        return self._written(started, load, target)

    def _written(self, started: float, load: dict[str, Any], target: Path) -> float:
        """How long it took, if the footers of the files have all rows."""
        seconds = time.perf_counter() - started
        rows = sum(pq.read_metadata(file).num_rows for file in target.glob("*.parquet"))
        if rows != load["rows"]:
            raise RuntimeError(f"{rows} rows were written, {load['rows']} are there")
        shutil.rmtree(target)
        return seconds

    def _lake(self, load: dict[str, Any]) -> float:
        target = self._scratch / f"lake-{next(self._numbers)}"
        started = time.perf_counter()
        if load["by"] == "read":
            job = Archive(self._bootstrap, (load["source"],), client_options=load["options"])
            rows = sum(step.rows for step in archive(self._spark, Lake(target), job))
        else:
            frame = self._frame(load).selectExpr("*", "TO_DATE(timestamp) AS date")
            frame.write.partitionBy("date").option("compression", "zstd").parquet(str(target))
            rows = load["rows"]
        seconds = time.perf_counter() - started
        if rows != load["rows"]:
            raise RuntimeError(f"{rows} rows were archived, {load['rows']} are there")
        shutil.rmtree(target)
        return seconds

    def _sink(self, load: dict[str, Any]) -> float:
        frame = self._spark.range(load["rows"]).selectExpr(
            f"CAST(SUBSTRING(REPEAT(MD5(CAST(id AS STRING)), {load['value_bytes'] // 32 + 1}), 1,"
            f" {load['value_bytes']}) AS BINARY) AS value"
        )
        frame = frame.cache()
        frame.count()
        topic = self._new_topic(load)
        writer = frame.write.format(_format(load)).mode("append").option("topic", topic)
        writer = writer.option("kafka.bootstrap.servers", self._bootstrap)
        writer = writer.option("kafka.compression.type", load["codec"]).options(**load["options"])
        started = time.perf_counter()
        writer.save()
        seconds = time.perf_counter() - started
        frame.unpersist(blocking=True)
        self._drop(topic)
        return seconds

    def _stream(self, load: dict[str, Any]) -> float:
        """The median time of a batch, those at the beginning left out."""
        topic = self._new_topic(load)
        stream = self._spark.readStream.format(_format(load)).option("subscribe", load["source"])
        stream = stream.option("kafka.bootstrap.servers", self._bootstrap)
        if _format(load) == "braid":
            stream = stream.option("localLog", "never")
        frame = stream.options(startingOffsets="earliest", maxOffsetsPerTrigger="1000").load()
        checkpoint = self._scratch / f"checkpoint-{next(self._numbers)}"
        writer = frame.select("key", "value").writeStream.option("checkpointLocation", str(checkpoint))
        if load["kind"] == "stream in":
            writer = writer.format("noop")
        else:
            writer = writer.format(_format(load)).option("topic", topic).options(**load["options"])
            writer = writer.option("kafka.bootstrap.servers", self._bootstrap)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        times = [
            each["durationMs"]["triggerExecution"] for each in query.recentProgress if each["numInputRows"]
        ]
        self._drop(topic)
        return statistics.median(times[WARM_UP_BATCHES:]) / 1000

    def _new_topic(self, load: dict[str, Any]) -> str:
        topic = f"sink-{_format(load)}-{time.time_ns()}"
        with Admin(self._bootstrap) as admin:
            admin.create_topic(topic, SINK_PARTITIONS, configs={"flush": "async"})
        return topic

    def _drop(self, topic: str) -> None:
        with Admin(self._bootstrap) as admin:
            admin.delete_topic(topic)


def main() -> None:
    told = json.load(sys.stdin)
    with tempfile.TemporaryDirectory(prefix="job-", dir=told["scratch"]) as scratch:
        job = Job(told, Path(scratch))
        for load in told["loads"]:
            try:
                found: dict[str, dict[str, Any]] = job.run(load)
            except Exception as error:
                told_error = {"error": f"{type(error).__name__}: {str(error)[:500]}"}
                found = dict.fromkeys(load, told_error)
            for side, figures in found.items():
                print(json.dumps({"load": load[side]["name"], "side": side} | figures), flush=True)


if __name__ == "__main__":
    main()
