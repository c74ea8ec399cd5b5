"""What a client may do with a topic, a group or the cluster, as the bits that responses carry.

There is no authorizer yet, so every operation that applies to a kind of resource is allowed, as in a Kafka
without one. `authorized_operations` is where access rules will be asked.
"""

from __future__ import annotations

from enum import Enum, IntEnum

from braidmq.faces.kafka.asked import Asked
from braidmq.wire.messages.metadata import OPERATIONS_NOT_ASKED_FOR


class Operation(IntEnum):
    """What access rules speak of, by Kafka's numbers; the number is also the bit."""

    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


class Securable(Enum):
    """What access rules protect, with the operations that apply to it."""

    TOPIC = (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    )
    GROUP = (
        Operation.READ,
        Operation.DELETE,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    )
    CLUSTER = (
        Operation.CREATE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
    )


_APPLICABLE = {each: sum(1 << operation for operation in each.value) for each in Securable}


def authorized_operations(securable: Securable, name: str, asked: Asked, *, wanted: bool) -> int:
    """The bits of what the client of `asked` may do with the one called `name`, if the request wants them."""
    return _APPLICABLE[securable] if wanted else OPERATIONS_NOT_ASKED_FOR
