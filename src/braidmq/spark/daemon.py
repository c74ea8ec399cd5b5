"""The process Spark forks its task workers from: Spark's own, with what `worker.py` changes from the start.

So tasks of any Python function are quick in our sessions. Started by Spark as a module, through
`spark.python.daemon.module`; on a worker machine it needs nothing but this package.
"""

from __future__ import annotations

from pyspark import daemon

from braidmq.spark.worker import change

if __name__ == "__main__":
    change(daemon)
    daemon.manager()
