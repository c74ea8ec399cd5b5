"""A standalone Spark master with workers, as processes of this machine: what a small cluster runs."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

START_SECONDS_MAX = 90.0
MEMORY = "1g"
_MASTER_AT = re.compile(r"Starting Spark master at (spark://\S+)")
_REGISTERED = re.compile(r"Successfully registered with master")


class SparkDidNotStart(RuntimeError):
    """The message carries the end of what it printed."""


@contextmanager
def standalone(scratch: Path, workers: int = 2) -> Iterator[str]:
    """The address of a master that has `workers` workers of one core each."""
    with ExitStack() as running:
        deploy = "org.apache.spark.deploy"
        arguments = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        log = running.enter_context(_process(scratch / "master", f"{deploy}.master.Master", *arguments))
        address = _await(log, _MASTER_AT).group(1)
        for number in range(workers):
            folder = scratch / f"worker-{number}"
            arguments = ["--host", "127.0.0.1", "--webui-port", "0", "-c", "1", "-m", MEMORY]
            worker = _process(folder, f"{deploy}.worker.Worker", *arguments, "-d", str(folder), address)
            _await(running.enter_context(worker), _REGISTERED)
        yield address


@contextmanager
def _process(folder: Path, class_name: str, *arguments: str) -> Iterator[Path]:
    """One daemon of Spark's, and the file in which its log is."""
    import pyspark

    from braidmq.spark.java.home import find_java_home

    folder.mkdir(parents=True)
    home = Path(pyspark.__file__).parent
    log = folder / "log.txt"
    environment = {
        **os.environ,
        "JAVA_HOME": str(find_java_home()),
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "512m",
    }
    with log.open("wb") as output:
        daemon = subprocess.Popen(
            [str(home / "bin" / "spark-class"), class_name, *arguments],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
        )
    try:
        yield log
    finally:
        daemon.terminate()
        try:
            daemon.wait(30)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()


def _await(log: Path, wanted: re.Pattern[str]) -> re.Match[str]:
    until = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < until:
        found = wanted.search(log.read_text(errors="replace"))
        if found is not None:
            return found
        time.sleep(0.2)
    raise SparkDidNotStart(f"no {wanted.pattern!r} in:\n{log.read_text(errors='replace')[-2000:]}")
