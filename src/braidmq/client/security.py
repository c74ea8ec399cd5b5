"""How a client proves who it is and keeps others from listening, in the words of Kafka's client settings.

`parse_security` understands what Kafka's Java client is given (`security.protocol`, `sasl.mechanism`,
`sasl.jaas.config`, `ssl.truststore.*`, `ssl.keystore.*`) and the shorter names of librdkafka
(`sasl.username`, `ssl.ca.location`). Certificates and keys are PEM, in files or in the setting itself; Java's
own key stores are refused with the way out, since nothing but Java reads them.
"""

from __future__ import annotations

import re
import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

PEM_MARK = "-----BEGIN "
TO_PEM = "export it as PEM (keytool -exportcert -rfc, openssl pkcs12) and set its type to PEM"


class SecurityError(ValueError):
    """Settings that do not fit together or point nowhere; the message says which and what would be right."""


class SecurityProtocol(Enum):
    """What runs on the connection below Kafka's own frames."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def encrypted(self) -> bool:
        return self in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)

    @property
    def authenticated(self) -> bool:
        return self in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)


class Mechanism(Enum):
    """How a client proves who it is."""

    PLAIN = "PLAIN"
    SCRAM_SHA_256 = "SCRAM-SHA-256"
    SCRAM_SHA_512 = "SCRAM-SHA-512"
    OAUTHBEARER = "OAUTHBEARER"


@dataclass(frozen=True)
class Credentials:
    """Who the client is; secrets are not shown when printed."""

    mechanism: Mechanism
    username: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)


@dataclass(frozen=True)
class Certificates:
    """Whom the client trusts (`ca`, else the system's) and who it is; each is PEM text or a file's path."""

    ca: str | None = None
    chain: str | None = field(default=None, repr=False)
    key: str | None = field(default=None, repr=False)
    key_password: str | None = field(default=None, repr=False)
    check_hostname: bool = True


@dataclass(frozen=True)
class Security:
    """All of it; without settings a plain connection."""

    protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT
    credentials: Credentials | None = None
    certificates: Certificates = field(default_factory=Certificates)


def parse_security(settings: Mapping[str, str]) -> Security:
    """The security that settings of Kafka's client describe; others are ignored."""
    text = settings.get("security.protocol", "PLAINTEXT").strip().upper()
    if text not in SecurityProtocol.__members__:
        known = ", ".join(SecurityProtocol.__members__)
        raise SecurityError(f"security.protocol is {text!r}; it must be one of {known}")
    protocol = SecurityProtocol[text]
    return Security(
        protocol,
        _credentials(settings) if protocol.authenticated else None,
        _certificates(settings) if protocol.encrypted else Certificates(),
    )


def _credentials(settings: Mapping[str, str]) -> Credentials:
    text = settings.get("sasl.mechanism", "").strip().upper()
    if text not in (known := [each.value for each in Mechanism]):
        raise SecurityError(f"sasl.mechanism is {text!r}; it must be one of {', '.join(known)}")
    mechanism = Mechanism(text)
    jaas = dict(re.findall(r'(\w+)\s*=\s*"((?:[^"\\]|\\.)*)"', settings.get("sasl.jaas.config", "")))
    jaas = {name: re.sub(r"\\(.)", r"\1", value) for name, value in jaas.items()}
    if mechanism is Mechanism.OAUTHBEARER:
        token = settings.get("sasl.oauthbearer.token", "").strip()
        if not token:
            raise SecurityError("OAUTHBEARER needs a token: set sasl.oauthbearer.token")
        return Credentials(mechanism, token=token)
    username = settings.get("sasl.username", jaas.get("username", ""))
    password = settings.get("sasl.password", jaas.get("password", ""))
    if not username:
        raise SecurityError(f"{text} needs a user: set sasl.username and sasl.password, or sasl.jaas.config")
    return Credentials(mechanism, username, password)


def _certificates(settings: Mapping[str, str]) -> Certificates:
    ca = settings.get("ssl.ca.location") or _store(settings, "truststore", "certificates")
    chain = settings.get("ssl.certificate.location") or _store(settings, "keystore", "certificate.chain")
    key = settings.get("ssl.key.location") or settings.get("ssl.keystore.key")
    return Certificates(
        ca=ca,
        chain=chain,
        key=key,
        key_password=settings.get("ssl.key.password"),
        check_hostname=settings.get("ssl.endpoint.identification.algorithm", "https").strip() != "",
    )


def _store(settings: Mapping[str, str], which: str, inline: str) -> str | None:
    """A trust or key store: PEM in the setting or in a file; anything else only Java can read."""
    if written := settings.get(f"ssl.{which}.{inline}"):
        return written
    location = settings.get(f"ssl.{which}.location")
    if location is None:
        return None
    kind = settings.get(f"ssl.{which}.type", "JKS").upper()
    if kind != "PEM" and not _is_pem(location):
        raise SecurityError(
            f"ssl.{which}.location {location} is a {kind} store, which only Java reads; {TO_PEM}"
        )
    return location


def _is_pem(location: str) -> bool:
    try:
        return PEM_MARK.encode() in Path(location).read_bytes()
    except OSError as error:
        raise SecurityError(f"{location}: {error.strerror}") from None


def tls_context(certificates: Certificates) -> ssl.SSLContext:
    """Ready to wrap connections; SecurityError where a file is missing or no certificate."""
    context = ssl.create_default_context()
    context.check_hostname = certificates.check_hostname
    try:
        if certificates.ca is not None:
            if PEM_MARK in certificates.ca:
                context.load_verify_locations(cadata=certificates.ca)
            else:
                context.load_verify_locations(cafile=certificates.ca)
        if certificates.chain is not None:
            _load_own(context, certificates)
    except (OSError, ssl.SSLError) as error:
        raise SecurityError(f"the TLS certificates or the key cannot be used: {error}") from None
    return context


def _load_own(context: ssl.SSLContext, certificates: Certificates) -> None:
    """OpenSSL takes the client's own certificate and key from files only; text goes through a private one."""
    assert certificates.chain is not None
    with tempfile.TemporaryDirectory(prefix="braid-tls-") as private:
        places = []
        for name, content in (("chain.pem", certificates.chain), ("key.pem", certificates.key)):
            place = content
            if content is not None and PEM_MARK in content:
                place = f"{private}/{name}"
                Path(place).touch(mode=0o600)
                Path(place).write_text(content)
            places.append(place)
        chain, key = places
        assert chain is not None
        context.load_cert_chain(chain, key, certificates.key_password)
