"""`braid serve --join HOST:PORT`: a broker that asks a running one where the cluster's metadata store is.

The address of the store is one of a broker's options (`store`), and passwords and tokens are never part of
it, so any broker may be asked with Kafka's DescribeConfigs; a name server is asked for the brokers first. The
answer is kept in the data directory: a broker that has joined once starts again whether or not anybody
answers.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

from braidmq.address import Address
from braidmq.cli.mistake import UserMistake
from braidmq.client.connection import Connection
from braidmq.client.errors import ClientError
from braidmq.wire.errors import ErrorCode
from braidmq.wire.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from braidmq.wire.messages.metadata import MetadataRequest, MetadataResponse, MetadataResponseBroker

FILE_NAME = "join"
ASKED_FOR = ("store", "cluster.name")
BROKER_RESOURCE = 4
TIMEOUT_S = 5.0
LOOPBACK = ("127.", "localhost", "[::1]", "::1")

log = logging.getLogger("braid.serve")


def found_options(address: Address, data: Path) -> list[str]:
    """The options, as `name=value`, with which a broker in `data` joins the cluster at `address`."""
    kept = data / FILE_NAME
    try:
        found = _ask(address)
    except ClientError as error:
        if not kept.exists():
            raise UserMistake(f"--join {address}: {error}") from None
        found = _read(kept)
        log.warning("--join %s: %s; the store it named before is used", address, error)
    else:
        _check(found["store"], address)
        try:
            data.mkdir(parents=True, exist_ok=True)
            kept.write_text(json.dumps(found), encoding="utf-8")
        except OSError as error:
            raise UserMistake(f"cannot use the data directory {data}: {error.strerror}") from None
    return [f"{name}={found[name]}" for name in ASKED_FOR]


def _read(kept: Path) -> dict[str, str]:
    try:
        found = json.loads(kept.read_text(encoding="utf-8"))
        return {name: str(found[name]) for name in ASKED_FOR}
    except (OSError, ValueError, KeyError, TypeError):
        raise UserMistake(
            f"{kept} cannot be read; remove it, and start again when a broker answers"
        ) from None


def _ask(address: Address) -> dict[str, str]:
    last: ClientError | None = None
    for broker in _brokers(address):
        try:
            return _options_of(broker)
        except ClientError as error:
            last = error
    raise last or ClientError(f"no broker of the cluster is known at {address} yet; try again")


def _brokers(address: Address) -> Iterator[MetadataResponseBroker]:
    with Connection(address, timeout_s=TIMEOUT_S) as connection:
        yield from connection.call(MetadataRequest(topics=[]), MetadataResponse).brokers


def _options_of(broker: MetadataResponseBroker) -> dict[str, str]:
    resource = DescribeConfigsResource(
        resource_type=BROKER_RESOURCE, resource_name=str(broker.node_id), configuration_keys=list(ASKED_FOR)
    )
    with Connection(Address(broker.host, broker.port), timeout_s=TIMEOUT_S) as connection:
        answer = connection.call(DescribeConfigsRequest(resources=[resource]), DescribeConfigsResponse)
    result = answer.results[0] if answer.results else None
    found = {} if result is None else {entry.name: entry.value or "" for entry in result.configs}
    if result is None or result.error_code != ErrorCode.NONE or any(name not in found for name in ASKED_FOR):
        why = (result and result.error_message) or "it is no broker of Braid's"
        raise ClientError(f"broker {broker.node_id} does not say where the metadata store is: {why}")
    return found


def _check(store: str, address: Address) -> None:
    """Refuses a store that cannot be used from here, with what to do."""
    if store == "file":
        raise UserMistake(
            f"the broker at {address} keeps its metadata for itself; start it with --brokers, or with a"
            " --store that others can reach, then join"
        )
    if store.startswith("unix:") and not Path(store.removeprefix("unix:")).exists():
        raise UserMistake(
            f"the cluster at {address} keeps its metadata in {store}, on its own machine; to add machines,"
            " use braid nameserver --store file:DIR, or etcd"
        )
    host = store.partition("://")[2]
    if host.startswith(LOOPBACK) and not address.host.startswith(LOOPBACK):
        raise UserMistake(
            f"the cluster at {address} reaches its metadata at {store}, which is its own machine; name it"
            " with an address that works from here: --store"
        )
