"""A Spark session that is fast with Python: it finds Java and sets what would otherwise be ten settings.

Everything can be overridden with `config`. What is set, and why:

- workers are reached over Unix sockets instead of TCP, which takes milliseconds off every task;
- filters are pushed down to Python sources, which Spark leaves off by default;
- the process that workers are forked from imports what they need once and freezes its garbage, since Spark's
  worker collects garbage after every task (`daemon.py`);
- memory follows the machine; a local master binds to the loopback address only;
- buffers between the JVM and workers are large enough for values of a kilobyte, and batches that go to
  workers stay small enough for the processor's cache when rows are wide;
- Arrow in the JVM does not check every access to batches that Arrow in Python made;
- logs are quiet, and the address of the UI is printed.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from braidmq.spark.errors import UserError
from braidmq.spark.java.home import find_java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOGGING = Path(__file__).with_name("log4j2.properties")
QUIET = ("OFF", "FATAL", "ERROR")
"""Levels at which an exception is logged in one line: Spark logs what it raises with a page of Java."""
MEMORY_SHARE = 3
MEMORY_MIN_MB = 1024
MEMORY_MAX_MB = 16_384
LOCAL_SHUFFLE_PARTITIONS_PER_CORE = 2
TRUST_ARROW = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
WORKER_BUFFER_BYTES = 256 * 1024
"""Four times Spark's own: rows of 1 KB came 7 to 16 % quicker, small ones as before; more did not help."""
ARROW_BATCH_BYTES = 1024 * 1024
"""With 4 MB, and with 256 KB, the sink took a tenth longer (rows of 1 KB)."""
OLDEST = "4.2.0"
"""As in pyproject.toml: the first whose Python streams have read limits and available-now (SPARK-55304)."""


class SparkMissing(UserError):
    """The Python package of Spark is not installed, or too old."""


def session(
    app: str,
    master: str = "local[*]",
    *,
    memory_mb: int | None = None,
    ui: bool = True,
    log_level: str = "ERROR",
    config: Mapping[str, str] | None = None,
) -> SparkSession:
    """The Spark session of this process, made on the first call.

    `memory_mb` is the driver's heap, which is the only heap on a local master. Settings in `config` win over
    all others. On a cluster this package must be installed on the workers, for the same Python.
    """
    try:
        import pyspark
        from pyspark import SparkConf, SparkContext
        from pyspark.logger import PySparkLogger
        from pyspark.sql import SparkSession
    except ImportError:
        raise SparkMissing("pyspark is not installed; run: pip install 'braidmq[spark]'") from None
    check_version(pyspark.__version__)
    os.environ["JAVA_HOME"] = str(find_java_home())
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if master.startswith("local"):
        # Otherwise Spark warns on stderr that it chose one of the machine's addresses.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    conf = SparkConf().setAppName(app).setMaster(master)
    for name, text in (settings(master, memory_mb, ui, log_level) | dict(config or {})).items():
        conf.set(name, text)
    with own_interrupt_handler():
        if SparkContext._gateway is None:
            from braidmq.spark.java.jvm import launch

            SparkContext(conf=conf, gateway=launch(conf))
        made = SparkSession.builder.config(conf=conf).getOrCreate()
    # Spark started from Python replaces the level of the file by its own.
    made.sparkContext.setLogLevel(log_level)
    # pyspark raises every failed call into Spark, and also logs it as a page of JSON.
    PySparkLogger.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    if ui and (address := made.sparkContext.uiWebUrl):
        sys.stderr.write(f"Spark UI: {address}\n")
    return made


@contextmanager
def own_interrupt_handler() -> Iterator[None]:
    """Keeps the current handler of Ctrl-C: Spark replaces it by one that cancels jobs."""
    before = signal.getsignal(signal.SIGINT)
    yield
    is_own = before not in (signal.default_int_handler, signal.SIG_DFL, signal.SIG_IGN, None)
    if is_own and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, before)


def check_version(version: str) -> None:
    """SparkMissing if this version of pyspark lacks what the format needs."""
    if _line(version) < _line(OLDEST):
        raise SparkMissing(
            f"pyspark {version} is too old; Braid needs {OLDEST} or newer; run: pip install 'braidmq[spark]'"
        )


def _line(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])


def settings(master: str, memory_mb: int | None, ui: bool, log_level: str) -> dict[str, str]:
    """What `session` sets, by Spark's names."""
    chosen = {
        "spark.driver.memory": f"{memory_mb or memory_for_machine_mb()}m",
        "spark.driver.extraJavaOptions": (
            f"-Dlog4j2.configurationFile={LOGGING} -Dbraid.log.level={log_level}"
            f" -Dbraid.log.stack={'1' if log_level in QUIET else 'full'} {TRUST_ARROW}"
        ),
        "spark.executor.extraJavaOptions": TRUST_ARROW,
        "spark.python.daemon.module": "braidmq.spark.daemon",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.execution.arrow.maxBytesPerBatch": str(ARROW_BATCH_BYTES),
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.execution.pandas.udf.buffer.size": str(WORKER_BUFFER_BYTES),
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.ui.enabled": str(ui).lower(),
        "spark.ui.showConsoleProgress": "false",
    }
    if master.startswith("local"):
        chosen |= {
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.sql.shuffle.partitions": str(LOCAL_SHUFFLE_PARTITIONS_PER_CORE * (os.cpu_count() or 1)),
        }
    return chosen


def memory_for_machine_mb() -> int:
    """A third of what this machine or container has: Python workers and the page cache need the rest."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    if limit.is_file() and (text := limit.read_text().strip()).isdigit():
        total = min(total, int(text))
    return max(MEMORY_MIN_MB, min(total // MEMORY_SHARE // 1_048_576, MEMORY_MAX_MB))
