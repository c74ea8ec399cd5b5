"""The Python workers of this process's Spark: which there are, and which of them does what."""

from __future__ import annotations

import psutil

TASK_WORKER = "pyspark.worker"
"""What the program of a worker for tasks is called with; those that plan on the driver have other names."""

PLANNING_DAEMON = "pyspark.daemon"


def task_workers() -> dict[int, psutil.Process]:
    """Every process that runs tasks, or waits for one; not the daemon they are forked from."""
    found = {}
    for process in psutil.Process().children(recursive=True):
        try:
            if TASK_WORKER in process.cmdline() and TASK_WORKER in process.parent().cmdline():
                found[process.pid] = process
        except (psutil.NoSuchProcess, psutil.ZombieProcess, AttributeError):
            continue
    return found


def planners() -> list[dict[str, str]]:
    """The environments of the processes of Spark's own daemon, which plan and commit on the driver."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if PLANNING_DAEMON in process.cmdline():
                found.append(process.environ())
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
    return found


def end_idle_workers() -> None:
    """So that the next query begins with workers of its own. Spark looks whether an idle one still lives."""
    workers = list(task_workers().values())
    for worker in workers:
        worker.kill()
    psutil.wait_procs(workers, timeout=10)


def talks_to(worker: psutil.Process, port: int) -> bool:
    """Whether a worker is connected to a broker."""
    return any(each.raddr and each.raddr.port == port for each in worker.net_connections("tcp"))
