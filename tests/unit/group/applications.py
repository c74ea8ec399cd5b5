"""Topologies of Kafka Streams applications for tests."""

from __future__ import annotations

from braidmq.group.streams_topology import ApplicationTopic, Subtopology, Topology

REPARTITION = ApplicationTopic("app-words-repartition", options=(("cleanup.policy", "delete"),))
CHANGELOG = ApplicationTopic("app-counts-changelog", options=(("cleanup.policy", "compact"),))


def word_count(epoch: int = 0, source: str = "lines") -> Topology:
    """Lines are cut into words, which are repartitioned and counted in a store."""
    return Topology(
        epoch,
        (
            Subtopology("0", (source,), repartition_sinks=(REPARTITION.name,)),
            Subtopology("1", repartition_sources=(REPARTITION,), changelogs=(CHANGELOG,)),
        ),
    )


def pipe(source: str = "lines") -> Topology:
    """Records are read and written elsewhere: no internal topics."""
    return Topology(0, (Subtopology("0", (source,)),))


def table(source: str = "lines") -> Topology:
    """A store over a topic."""
    return Topology(0, (Subtopology("0", (source,), changelogs=(CHANGELOG,)),))
