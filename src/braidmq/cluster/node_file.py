"""Which node a data directory is: the small file `node` in it.

It holds the node id, the directory's own uuid, name and id of the cluster, and which start of the broker this
is. A registration that names this start or the one before was made from here, so it can be removed at once
(`cluster/membership.py`); but not by a copy of the directory, whose original may be running. Written whole at
every start, before the broker joins.
"""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass
from pathlib import Path

from braidmq.platform.disk import Disk
from braidmq.wire.checksum import seal, unseal

FILE_NAME = "node"

log = logging.getLogger("braid.cluster")


@dataclass(frozen=True, slots=True)
class NodeFile:
    """What the file says."""

    node_id: int
    cluster_name: str
    uuid: str
    run: str
    former_run: str | None
    boot_id: str
    """Of the machine, when the broker was started."""
    cluster_id: str | None
    """None until the broker has joined."""
    shared: bool = False
    """Whether the metadata is in a store that brokers share, and not in this directory."""
    place: str = ""
    """Machine and path of the directory. At another place it was moved, or is a copy."""


def read_node_file(disk: Disk, directory: Path) -> NodeFile | None:
    """None if there is none, or it cannot be believed: then the store tells whose directory it is."""
    path = directory / FILE_NAME
    if not disk.exists(path):
        return None
    body = unseal(disk.read_file(path))
    try:
        return None if body is None else NodeFile(**json.loads(body))
    except (ValueError, TypeError) as error:
        log.warning("%s cannot be read and is replaced: %s", path.name, error)
        return None


def write_node_file(disk: Disk, directory: Path, content: NodeFile) -> None:
    body = json.dumps(asdict(content), separators=(",", ":")).encode()
    disk.write_atomically(directory / FILE_NAME, seal(body))
