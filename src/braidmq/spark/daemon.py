"""The process that Spark forks its task workers from: Spark's own daemon with the changes of `worker.py`.

So tasks of any Python function are fast in our sessions. Spark starts it as a module
(`spark.python.daemon.module`); a worker machine needs only this package for it.
"""

from __future__ import annotations

from pyspark import daemon

from braidmq.spark.worker import change

if __name__ == "__main__":
    change(daemon)
    daemon.manager()
