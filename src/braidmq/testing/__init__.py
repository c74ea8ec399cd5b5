"""A real broker for a user's own tests.

    from braidmq.testing import broker

    def test_orders_are_published():
        with broker() as b:
            publish_order(bootstrap=b.bootstrap)

The broker is `braid serve` in a child process, on a free port, with a temporary directory that goes away
with it: what is tested is what runs in production, kill -9 included (`b.kill()`, `b.restart()`). pytest users
get the same as the fixture `braid_broker`. `cluster(3)` starts several brokers that form a cluster
(`c.kill_broker(2)`).
"""

from __future__ import annotations

from braidmq.testing.cluster import ClusterProcess, cluster
from braidmq.testing.process import BrokerFailed, BrokerProcess, broker

__all__ = ["BrokerFailed", "BrokerProcess", "ClusterProcess", "broker", "cluster"]
