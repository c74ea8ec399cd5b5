"""Where an etcd cluster is and how to talk to it, as people write it.

`etcd://host:port,host:port/prefix?ca=FILE&cert=FILE&key=FILE&user=NAME&password-file=FILE&timeout-ms=5000`
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from braidmq.address import Address, AddressError, parse_address

SCHEME = "etcd"
DEFAULT_PORT = 2379
DEFAULT_PREFIX = "/braid/"
PREFIX_BYTES_MAX = 128
"""Every key of a commit carries the prefix, and the room etcd leaves beside our own limit is small."""
OPTIONS = ("ca", "cert", "key", "password-file", "timeout-ms", "tls", "user")
TIMEOUT_MS_RANGE = (100, 60_000)


@dataclass(frozen=True)
class EtcdAddress:
    """Endpoints, the prefix of all keys, and files with credentials."""

    endpoints: tuple[Address, ...]
    prefix: str = DEFAULT_PREFIX
    tls: bool = False
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    user: str | None = None
    password_file: Path | None = None
    timeout_s: float = 5.0


def parse_etcd_address(text: str) -> EtcdAddress:
    """Raises `AddressError` with what is wrong; a password is never part of the text."""
    parts = urlsplit(text)
    if parts.scheme != SCHEME or not parts.netloc:
        raise AddressError(f"{text!r} is no etcd address; write etcd://HOST:{DEFAULT_PORT}/PREFIX")
    if "@" in parts.netloc:
        raise AddressError("write the user as ?user=NAME&password-file=FILE, not in front of the host")
    endpoints = tuple(parse_address(part, DEFAULT_PORT) for part in parts.netloc.split(",") if part)
    found = dict(parse_qsl(parts.query, keep_blank_values=True))
    if unknown := sorted(set(found) - set(OPTIONS)):
        raise AddressError(f"etcd has no option {unknown[0]!r}; there are {', '.join(OPTIONS)}")
    files = {
        name: Path(found[name]) if name in found else None for name in ("ca", "cert", "key", "password-file")
    }
    if (files["cert"] is None) != (files["key"] is None):
        raise AddressError("etcd needs both cert and key, or neither")
    if ("user" in found) != ("password-file" in found):
        raise AddressError("etcd needs both user and password-file, or neither")
    return EtcdAddress(
        endpoints,
        _prefix(unquote(parts.path)),
        _is_tls(found.get("tls"), any(files[name] for name in ("ca", "cert", "key"))),
        files["ca"],
        files["cert"],
        files["key"],
        found.get("user"),
        files["password-file"],
        _timeout_s(found.get("timeout-ms", "5000")),
    )


def _prefix(path: str) -> str:
    prefix = f"/{path.strip('/')}/" if path.strip("/") else DEFAULT_PREFIX
    if len(prefix.encode()) > PREFIX_BYTES_MAX:
        raise AddressError(f"the prefix {prefix!r} is longer than {PREFIX_BYTES_MAX} bytes")
    return prefix


def _is_tls(said: str | None, has_files: bool) -> bool:
    if said not in (None, "true", "false"):
        raise AddressError(f"tls must be true or false, not {said!r}")
    if said == "false" and has_files:
        raise AddressError("tls=false does not go with ca, cert and key")
    return has_files or said == "true"


def _timeout_s(text: str) -> float:
    least, most = TIMEOUT_MS_RANGE
    if not text.isdigit() or not least <= int(text) <= most:
        raise AddressError(f"timeout-ms must be a number from {least} to {most}, not {text!r}")
    return int(text) / 1000
