"""What this broker knows of itself and of the other brokers, for the connections between them."""

from __future__ import annotations

from braidmq.broker.metadata import Metadata
from braidmq.cluster.records import NO_EPOCH

KAFKA = "kafka"


class PeerDirectory:
    """Answers from the image; see `net.peer_proof.PeerDirectory`."""

    def __init__(self, node_id: int, metadata: Metadata) -> None:
        self.node_id = node_id
        self._metadata = metadata

    @property
    def epoch(self) -> int:
        return self._metadata.epoch

    @property
    def cluster_id(self) -> str:
        return self._metadata.cluster_id

    @property
    def secret(self) -> bytes:
        try:
            return bytes.fromhex(self._metadata.image.secret or "")
        except ValueError:
            return b""

    def epoch_of(self, node_id: int) -> int:
        broker = self._metadata.image.brokers.get(node_id)
        return NO_EPOCH if broker is None else broker.epoch

    def address_of(self, node_id: int) -> tuple[str, int] | None:
        broker = self._metadata.image.brokers.get(node_id)
        if broker is None or broker.alive is None:
            return None
        if node_id == self.node_id and self._metadata.listening is not None:
            return self._metadata.listening
        for listener in broker.alive.record.listeners:
            if listener.name == KAFKA:
                return listener.host, listener.port
        return None
