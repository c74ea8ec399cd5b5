"""The address of an etcd cluster, and what its errors mean; both without etcd."""

from __future__ import annotations

from pathlib import Path

import pytest

from braidmq.address import Address, AddressError
from braidmq.cluster.etcd_address import EtcdAddress, parse_etcd_address
from braidmq.cluster.etcd_errors import Fate, explain, fate, final_error, version_warning
from braidmq.cluster.metadata_store import Expired, Refused, StoreFull


def test_an_address_names_endpoints_prefix_and_credentials() -> None:
    """N4: the port and the prefix may be left out."""
    assert parse_etcd_address("etcd://a") == EtcdAddress((Address("a", 2379),), "/braid/")
    assert parse_etcd_address("etcd://a:1,[::1]:2/my/prod?timeout-ms=250") == EtcdAddress(
        (Address("a", 1), Address("::1", 2)), "/my/prod/", timeout_s=0.25
    )
    whole = parse_etcd_address("etcd://a/p?ca=c.pem&cert=x.pem&key=k.pem&user=u&password-file=/p/w")
    assert (whole.tls, whole.ca, whole.cert, whole.key) == (True, Path("c.pem"), Path("x.pem"), Path("k.pem"))
    assert (whole.user, whole.password_file) == ("u", Path("/p/w"))
    assert parse_etcd_address("etcd://a?tls=true").tls


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("http://a", "write etcd://"),
        ("etcd://", "write etcd://"),
        ("etcd://u:secret@a", "password-file"),
        ("etcd://a:x", "port"),
        ("etcd://a?user=u", "both user and password-file"),
        ("etcd://a?cert=c", "both cert and key"),
        ("etcd://a?tls=no", "true or false"),
        ("etcd://a?tls=false&ca=c", "does not go with"),
        ("etcd://a?timeout-ms=1", "from 100 to 60000"),
        ("etcd://a?passwd=x", "no option 'passwd'; there are ca"),
        ("etcd://a/" + "p" * 130, "longer than 128"),
    ],
)
def test_a_wrong_address_says_what_is_wrong(text: str, complaint: str) -> None:
    """N4: and never shows a password."""
    with pytest.raises(AddressError, match=complaint) as raised:
        parse_etcd_address(text)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("code", "text", "meaning"),
    [
        ("UNAVAILABLE", "etcdserver: no leader", Fate.NOT_DONE),
        ("RESOURCE_EXHAUSTED", "etcdserver: too many requests", Fate.NOT_DONE),
        ("UNAVAILABLE", "etcdserver: request timed out", Fate.UNSURE),
        ("UNAVAILABLE", "etcdserver: leader changed", Fate.UNSURE),
        ("UNAVAILABLE", "Socket closed", Fate.UNSURE),
        ("DEADLINE_EXCEEDED", "", Fate.UNSURE),
        ("UNKNOWN", "something new", Fate.UNSURE),
        ("UNAUTHENTICATED", "etcdserver: invalid auth token", Fate.NEW_TOKEN),
        ("INVALID_ARGUMENT", "etcdserver: revision of auth store is old", Fate.NEW_TOKEN),
        ("OUT_OF_RANGE", "etcdserver: mvcc: required revision has been compacted", Fate.COMPACTED),
        ("RESOURCE_EXHAUSTED", "Received message larger than max (9 vs. 4)", Fate.TOO_LARGE),
        ("RESOURCE_EXHAUSTED", "etcdserver: mvcc: database space exceeded", Fate.FINAL),
        ("NOT_FOUND", "etcdserver: requested lease not found", Fate.FINAL),
        ("PERMISSION_DENIED", "etcdserver: permission denied", Fate.FINAL),
    ],
)
def test_only_what_surely_did_not_happen_counts_as_not_done(code: str, text: str, meaning: Fate) -> None:
    """N4: what is not known for sure is unsure."""
    assert fate(code, text) is meaning


def test_errors_say_what_to_do() -> None:
    """N4: a full etcd, one without a majority, one that wants a user."""
    full = final_error("RESOURCE_EXHAUSTED", "etcdserver: mvcc: database space exceeded")
    assert isinstance(full, StoreFull)
    assert "etcdctl alarm disarm" in str(full)
    assert isinstance(final_error("NOT_FOUND", "etcdserver: requested lease not found"), Expired)
    assert "majority" in explain("UNAVAILABLE", "etcdserver: no leader")
    for text, hint in [
        ("etcdserver: user name is empty", "user=NAME"),
        ("invalid user ID or password", "password"),
    ]:
        refused = final_error("INVALID_ARGUMENT", text)
        assert isinstance(refused, Refused)
        assert hint in str(refused)


def test_versions_that_corrupt_data_are_named() -> None:
    """N4: 3.5.0 to 3.5.2."""
    warned = [
        version for version in ("3.4.23", "3.5.0", "3.5.2", "3.5.3", "3.6.0") if version_warning("a", version)
    ]
    assert warned == ["3.5.0", "3.5.2"]
