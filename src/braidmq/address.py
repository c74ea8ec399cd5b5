"""HOST:PORT, as people write it: with IPv6 in brackets, with the port left out, several with commas."""

from __future__ import annotations

from typing import NamedTuple

DEFAULT_PORT = 9092
PORT_MAX = 65_535


class AddressError(ValueError):
    """Text that is not HOST:PORT; the message shows one that is."""


class Address(NamedTuple):
    """Where a broker listens, or is reached."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str, default_port: int = DEFAULT_PORT) -> Address:
    """`host`, `host:port`, `[ipv6]` or `[ipv6]:port`."""
    stripped = text.strip()
    if stripped.startswith("["):
        host, bracket, rest = stripped[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise AddressError(f"{text!r} is not an address; write [::1]:{default_port}")
        port_text = rest[1:]
    else:
        host, _, port_text = stripped.partition(":")
        if ":" in port_text:
            raise AddressError(f"{text!r} looks like IPv6; write it in brackets: [{stripped}]:{default_port}")
    if not host:
        raise AddressError(f"{text!r} has no host; write 127.0.0.1:{default_port}")
    return Address(host, _parse_port(text, port_text) if port_text else default_port)


def parse_addresses(text: str) -> tuple[Address, ...]:
    """A bootstrap list: addresses with commas between them, at least one."""
    addresses = tuple(parse_address(part) for part in text.split(",") if part.strip())
    if not addresses:
        raise AddressError(f"no address given; write 127.0.0.1:{DEFAULT_PORT}")
    return addresses


def _parse_port(text: str, port_text: str) -> int:
    if not (port_text.isascii() and port_text.isdigit() and int(port_text) <= PORT_MAX):
        raise AddressError(f"{text!r}: the port must be a number from 0 to {PORT_MAX}")
    return int(port_text)
