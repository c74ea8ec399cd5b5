"""What an answer says of partitions that another broker leads: who does, and where it is (KIP-951).

A client that reads it goes there at once, without asking for metadata. The fields are tagged, so that clients
that do not know them pass over them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from struct import Struct
from typing import NamedTuple

from braidmq.wire.primitives import uvarint

_leader = Struct(">BBBiiB").pack
_int32 = Struct(">i").pack
_LEADER_BYTES = 9
_NO_TAGS = b"\0"
_NODES_TAG = 0


class Node(NamedTuple):
    """Where a broker is."""

    node_id: int
    host: str
    port: int
    rack: str | None


class Moved(NamedTuple):
    """The leaders of partitions that were asked of the wrong broker."""

    leaders: Mapping[tuple[str | bytes | None, int], tuple[int, int]]
    """Node id and epoch by topic, named as in the answer, and partition."""
    nodes: Sequence[Node]

    def leader_tags(self, tag: int, topic: str | bytes | None, index: int) -> bytes:
        """The tagged fields of one partition's answer."""
        leader = self.leaders.get((topic, index))
        return _NO_TAGS if leader is None else _leader(1, tag, _LEADER_BYTES, *leader, 0)

    def node_tags(self) -> bytes:
        """The tagged fields of the whole answer."""
        if not self.nodes:
            return _NO_TAGS
        body = bytearray(uvarint(len(self.nodes) + 1))
        for node_id, host, port, rack in self.nodes:
            body += _int32(node_id) + _compact(host) + _int32(port) + _compact(rack) + _NO_TAGS
        return bytes((1, _NODES_TAG)) + uvarint(len(body)) + bytes(body)


def _compact(text: str | None) -> bytes:
    if text is None:
        return b"\0"
    encoded = text.encode()
    return uvarint(len(encoded) + 1) + encoded
