"""Every option Braid has, by subject: name, unit, default, bounds and why one would change it.

    option        what an option is, and how its text becomes a value
    topic         what a topic may override
    broker, cluster, group, transaction
                  what belongs to a broker process
    server        these together as a broker's `Config`, and what may change in it while it runs
    loading       file, environment, command line

The names are Kafka's wherever Kafka has the option. docs/reference/configuration.md is made from the tables.
"""

from __future__ import annotations

from braidmq.config.loading import gather
from braidmq.config.option import INT64_MAX, MS_PER_DAY, NO_LIMIT, ConfigError, Option, OptionType, find
from braidmq.config.server import DYNAMIC, GROUP, SERVER, SERVER_BY_NAME, Config, check_sessions, configure
from braidmq.config.topic import (
    BROKER_NAMES,
    TOPIC,
    TOPIC_BY_NAME,
    Flush,
    TimestampType,
    TopicConfig,
    check_topic_overrides,
)

__all__ = [
    "BROKER_NAMES",
    "DYNAMIC",
    "GROUP",
    "INT64_MAX",
    "MS_PER_DAY",
    "NO_LIMIT",
    "SERVER",
    "SERVER_BY_NAME",
    "TOPIC",
    "TOPIC_BY_NAME",
    "Config",
    "ConfigError",
    "Flush",
    "Option",
    "OptionType",
    "TimestampType",
    "TopicConfig",
    "check_sessions",
    "check_topic_overrides",
    "configure",
    "find",
    "gather",
]
