"""A metadata store by its address, as the option `store` and `--store` name it.

file                          in the broker's data directory, for itself alone
unix:PATH                     that of another process on this machine
braid://HOST:PORT             that of another process; its token is in a file (`?token-file=FILE`)
etcd://HOST:PORT,HOST:PORT    an etcd cluster; see `cluster/etcd_address.py` for TLS and users
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from braidmq.address import AddressError, parse_address
from braidmq.cluster.file_store import FileStore, Run
from braidmq.cluster.metadata_store import MetadataStore
from braidmq.platform.clock import Clock
from braidmq.platform.disk import Disk

EMBEDDED = "file"
UNIX = "unix:"
SERVED = "braid"
ETCD = "etcd"
TOKEN_FILE = "token-file"  # the name of an option


def is_embedded(url: str) -> bool:
    """Whether the store is the broker's own, so that no other broker can reach it."""
    return url == EMBEDDED


def open_embedded(disk: Disk, data: Path, clock: Clock, run: Run) -> FileStore:
    """The store in a data directory; `start` it before use."""
    return FileStore(disk, data, clock, run)


def open_store(url: str, token_file: Path | None = None) -> MetadataStore:
    """A store that other processes use, too; `start` it before use. `AddressError` says what is wrong."""
    scheme = urlsplit(url).scheme
    if url.startswith(UNIX):
        from braidmq.cluster.served_store import ServedStore

        if not url.removeprefix(UNIX):
            raise AddressError("unix: needs the path of a socket, as in unix:/run/braid/store")
        return ServedStore(url)
    if scheme == SERVED:
        return _open_served(url, token_file)
    if scheme == ETCD:
        return _open_etcd(url)
    raise AddressError(
        f"{url!r} is no metadata store; write file, unix:PATH, braid://HOST:PORT or etcd://HOST:PORT,…"
    )


def _open_etcd(url: str) -> MetadataStore:
    from braidmq.cluster.etcd_address import parse_etcd_address

    address = parse_etcd_address(url)
    for file in (address.ca, address.cert, address.key, address.password_file):
        if file is not None:
            _read(file, "etcd")
    try:
        from braidmq.cluster.etcd_store import EtcdStore
    except ImportError as error:
        raise AddressError(f"{url}: {error.name} is missing; pip install 'braidmq[cluster]'") from None
    return EtcdStore(address)


def _open_served(url: str, token_file: Path | None) -> MetadataStore:
    from braidmq.cluster.served_store import ServedStore

    parts = urlsplit(url)
    found = dict(parse_qsl(parts.query, keep_blank_values=True))
    file = Path(found.pop(TOKEN_FILE)) if found.get(TOKEN_FILE) else token_file
    if found or parts.path.strip("/"):
        raise AddressError(f"{url!r}: write braid://HOST:PORT, with ?{TOKEN_FILE}=FILE at most")
    if file is None:
        raise AddressError(
            f"a store at braid://… asks for its token: add ?{TOKEN_FILE}=FILE, or set store.token.file"
        )
    token = _read(file, "the token of the metadata store").strip()
    if not token:
        raise AddressError(f"the token of the metadata store: {file} is empty")
    address = parse_address(parts.netloc)
    return ServedStore(str(address), token)


def _read(file: Path, what: str) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise AddressError(f"{what}: cannot read {file}: {error.strerror}") from None
