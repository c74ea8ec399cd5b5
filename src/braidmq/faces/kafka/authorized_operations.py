"""What a client may do with a topic, a group or the cluster, as the bits that responses carry.

There is no authorizer yet, so every operation that applies to a kind of resource is allowed, as in a Kafka
without one. `authorized_operations` is where access rules will be asked.
"""

from __future__ import annotations

from enum import Enum, IntEnum

from braidmq.faces.kafka.request_context import RequestContext
from braidmq.wire.messages.metadata import OPERATIONS_NOT_ASKED_FOR


class AclOperation(IntEnum):
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
        AclOperation.READ,
        AclOperation.WRITE,
        AclOperation.CREATE,
        AclOperation.DELETE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
    )
    GROUP = (
        AclOperation.READ,
        AclOperation.DELETE,
        AclOperation.DESCRIBE,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
    )
    CLUSTER = (
        AclOperation.CREATE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE,
        AclOperation.CLUSTER_ACTION,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
        AclOperation.IDEMPOTENT_WRITE,
    )


_APPLICABLE = {each: sum(1 << operation for operation in each.value) for each in Securable}


def authorized_operations(securable: Securable, name: str, context: RequestContext, *, wanted: bool) -> int:
    """The operations the client may do on `name`, as bits, if the request wants them."""
    return _APPLICABLE[securable] if wanted else OPERATIONS_NOT_ASKED_FOR
