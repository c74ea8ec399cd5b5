"""Rescue jobs as a user types them, as far as that needs no session."""

from __future__ import annotations

from braidmq.client import Admin
from unit.cli.conftest import Braid


def test_a_dry_run_of_a_reshard_is_one_of_its_switch(braid: Braid, bootstrap: str) -> None:
    """S6 O1: without --switch it would make the topic and copy everything."""
    _, err = braid("pipeline", "reshard", "dry-orders", "--partitions", "4", "--dry-run", code=2)
    assert "add --switch" in err
    with Admin(bootstrap) as admin:
        assert "dry-orders-p4" not in admin.list_topics()
