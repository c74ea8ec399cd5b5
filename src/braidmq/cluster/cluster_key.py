"""A cluster's key: its id and its secret, by which brokers and name servers know each other.

It is in the metadata store. A name server that has no store gets it as a file, one line,
`<cluster id>:<secret in hex>`, which `braid nameserver key` prints.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from braidmq.cluster import records
from braidmq.cluster.membership import SECRET_BYTES
from braidmq.cluster.metadata_store import MetadataStore
from braidmq.cluster.records import ClusterId, Secret, decode


class BadKey(Exception):
    """Text that is no cluster's key."""


@dataclass(slots=True)
class ClusterKey:
    """Empty until it is known."""

    cluster_id: str = ""
    secret: bytes = b""

    @property
    def is_known(self) -> bool:
        return bool(self.secret)

    def take(self, other: ClusterKey) -> None:
        self.cluster_id, self.secret = other.cluster_id, other.secret

    def text(self) -> str:
        return f"{self.cluster_id}:{self.secret.hex()}"


def parse_key(text: str) -> ClusterKey:
    cluster_id, _, secret = text.strip().partition(":")
    try:
        key = ClusterKey(cluster_id, bytes.fromhex(secret))
    except ValueError:
        key = ClusterKey()
    if not key.cluster_id or len(key.secret) < SECRET_BYTES:
        raise BadKey("this is not a cluster's key; `braid nameserver key` prints one")
    return key


def read_key_file(path: Path) -> ClusterKey:
    try:
        return parse_key(path.read_text(encoding="utf-8", errors="replace"))
    except OSError as error:
        raise BadKey(f"cannot read {path}: {error.strerror}") from None
    except BadKey as error:
        raise BadKey(f"{path}: {error}") from None


async def read_stored_key(store: MetadataStore, cluster_name: str) -> ClusterKey | None:
    """The key of a cluster; None if no broker has founded it yet."""
    prefix = records.prefix(cluster_name)
    cluster_id = await store.get(prefix + records.CLUSTER_ID)
    secret = await store.get(prefix + records.SECRET)
    if cluster_id is None or secret is None:
        return None
    held = decode(Secret, secret.key, secret.value).hex
    return parse_key(f"{decode(ClusterId, cluster_id.key, cluster_id.value).id}:{held}")
