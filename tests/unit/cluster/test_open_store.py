"""A metadata store by its address."""

from __future__ import annotations

from pathlib import Path

import pytest

from braidmq.address import AddressError
from braidmq.broker.metadata import joining
from braidmq.cluster.open_store import is_embedded, open_store
from braidmq.cluster.served_store import ServedStore
from braidmq.config import ConfigError, configure


def test_each_form_of_address_opens_its_kind_of_store(tmp_path: Path) -> None:
    """N4: embedded, served on this machine, served by another, etcd."""
    token = tmp_path / "token"
    token.write_text("0123456789abcdef0123456789abcdef\n")
    assert is_embedded("file")
    assert isinstance(open_store("unix:/run/braid/store"), ServedStore)
    assert isinstance(open_store(f"braid://name.example.com:9090?token-file={token}"), ServedStore)
    assert isinstance(open_store("braid://name.example.com:9090", token), ServedStore)
    pytest.importorskip("aetcd")
    (tmp_path / "ca.pem").write_text("read when it connects\n")
    etcd = open_store(f"etcd://a:2379,b:2379/prefix?ca={tmp_path / 'ca.pem'}")
    assert type(etcd).__name__ == "EtcdStore"


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("unix:", "needs the path of a socket"),
        ("braid://host:1", "asks for its token"),
        ("braid://host:1?token-file=/no/such/file", "cannot read /no/such/file"),
        ("braid://host:1/path?token-file=x", r"write braid://HOST:PORT"),
        ("zookeeper://host", "is no metadata store"),
        ("etcd://user@host:1", "user=NAME"),
    ],
)
def test_an_address_that_cannot_be_used_says_what_to_write(url: str, complaint: str) -> None:
    """N4: as an address, and as the option `store`."""
    with pytest.raises(AddressError, match=complaint):
        open_store(url)
    with pytest.raises(ConfigError, match=complaint):
        joining(configure({"store": url}))


def test_an_empty_token_is_refused(tmp_path: Path) -> None:
    """N4: anybody could prove to know it."""
    (tmp_path / "token").write_text("\n")
    with pytest.raises(AddressError, match="is empty"):
        open_store("braid://host:1", tmp_path / "token")


def test_a_file_of_etcd_that_is_missing_is_named(tmp_path: Path) -> None:
    """N4: certificates and passwords are looked for before anything is started."""
    with pytest.raises(AddressError, match=r"etcd: cannot read .*ca\.pem: No such file"):
        open_store(f"etcd://127.0.0.1:2379?ca={tmp_path / 'ca.pem'}")
