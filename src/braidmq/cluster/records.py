"""What a cluster keeps in its metadata store: the keys, and what each of them holds.

    id, format, secret          the cluster's id; the least version that can read it; 32 bytes for peers
    brokers/<n>/node            which data directories node n is, and where it stands
    brokers/<n>/alive           bound to a running broker's lease; its create revision is the broker epoch
    brokers/<n>/admitted        the broker epoch up to which the controller has cleaned up
    controller                  bound to the same lease; its create revision is the controller epoch
    names/<name>                the id of the topic of that name
    topics/<id>                 name, partition count, options
    partitions/<id>/<index>     who leads, who holds it, who is in sync
    deleted/<id>                when a topic was deleted; its directories may be removed
    configs/<kind>/<name>       options of brokers and groups
    producer-ids/next           the next block of producer ids
    tick                        a counter of the controller, so that a watch can tell silence from a cut

All keys have the prefix `/braid/<cluster>/`. Values are compact JSON: an object with `v`, its version, and
`by`, who wrote it. A reader keeps fields that it does not know, and writes them again: a newer broker may
have put them there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from enum import Enum
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple, TypeVar

VERSION = 1
NO_LEADER = -1
NO_EPOCH = -1
PARTITIONS_MAX = 10_000_000
"""Of one topic. Every broker makes room for as many as a topic's key says, so a wrong one is not believed."""


class BadRecord(ValueError):
    """A value of the store that is not what its key says."""


# -- keys ---------------------------------------------------------------------------------------

CLUSTER_ID = "id"
FORMAT = "format"
SECRET = "secret"  # the name of a key, not a secret
CONTROLLER = "controller"
TICK = "tick"
PRODUCER_IDS = "producer-ids/next"
NAMES = "names/"
TOPICS = "topics/"
PARTITIONS = "partitions/"
BROKERS = "brokers/"
DELETED = "deleted/"
CONFIGS = "configs/"
OF_BROKERS = "brokers"
"""The kind of options that brokers have; the name is a node id, or empty for all."""
OF_GROUPS = "groups"


ALL_CLUSTERS = "/braid/"


def prefix(cluster: str) -> str:
    return f"{ALL_CLUSTERS}{cluster}/"


def cluster_of(key: str) -> str:
    """The cluster that a key with its prefix belongs to."""
    return key.removeprefix(ALL_CLUSTERS).partition("/")[0]


def broker_key(node_id: int, part: str) -> str:
    return f"{BROKERS}{node_id}/{part}"


def node_key(node_id: int) -> str:
    return broker_key(node_id, "node")


def alive_key(node_id: int) -> str:
    return broker_key(node_id, "alive")


def admitted_key(node_id: int) -> str:
    return broker_key(node_id, "admitted")


def name_key(name: str) -> str:
    return NAMES + name


def topic_key(topic_id: bytes) -> str:
    return TOPICS + topic_id.hex()


def partition_key(topic_id: bytes, index: int) -> str:
    return f"{PARTITIONS}{topic_id.hex()}/{index}"


def deleted_key(topic_id: bytes) -> str:
    return DELETED + topic_id.hex()


def config_key(kind: str, name: str) -> str:
    return f"{CONFIGS}{kind}/{name}"


def config_of(key: str) -> tuple[str, str]:
    """Kind and name in a key of `configs/`."""
    kind, _, name = key.removeprefix(CONFIGS).partition("/")
    return kind, name


def topic_of(key: str) -> bytes:
    """The topic id in a key of `topics/` or `deleted/`."""
    return _topic_id(key, key.partition("/")[2])


def partition_of(key: str) -> tuple[bytes, int]:
    """Topic id and index in a key of `partitions/`."""
    topic_id, _, index = key.removeprefix(PARTITIONS).partition("/")
    if not _is_index(index):
        raise BadRecord(f"{key}: no partition has the number {index!r}")
    return _topic_id(key, topic_id), int(index)


def broker_of(key: str) -> tuple[int, str]:
    """Node id and part in a key of `brokers/`."""
    node_id, _, part = key.removeprefix(BROKERS).partition("/")
    if not _is_index(node_id):
        raise BadRecord(f"{key}: no broker has the id {node_id!r}")
    return int(node_id), part


def _topic_id(key: str, text: str) -> bytes:
    topic_id = _parsed_id(text)
    if topic_id is None:
        raise BadRecord(f"{key}: {text!r} is no topic id")
    return topic_id


@lru_cache(maxsize=256)
def _parsed_id(text: str) -> bytes | None:
    # Kept, because a topic's partitions come one after the other.
    try:
        topic_id = bytes.fromhex(text)
    except ValueError:
        return None
    return topic_id if len(topic_id) == 16 and topic_id.hex() == text else None


def _is_index(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 10 and (text[0] != "0" or text == "0")


# -- the form of a field ------------------------------------------------------------------------


def _whole(found: Any) -> int:
    if type(found) is not int:
        raise BadRecord(f"{found!r:.60} is no whole number")
    return found


def _partition_count(found: Any) -> int:
    count = _whole(found)
    if not 0 <= count <= PARTITIONS_MAX:
        raise BadRecord(f"{found!r:.60} is no number of partitions")
    return count


def _text(found: Any) -> str:
    if not isinstance(found, str):
        raise BadRecord(f"{found!r:.60} is no text")
    return found


def _flag(found: Any) -> bool:
    if not isinstance(found, bool):
        raise BadRecord(f"{found!r:.60} is neither true nor false")
    return found


def _optional_text(found: Any) -> str | None:
    return None if found is None else _text(found)


def _nodes(found: Any) -> tuple[int, ...]:
    nodes = tuple(_whole(node) for node in _list(found))
    if len(set(nodes)) != len(nodes):
        raise BadRecord(f"{nodes!r:.60} names a broker twice")
    return nodes


def _texts(found: Any) -> tuple[str, ...]:
    return tuple(_text(one) for one in _list(found))


def _options(found: Any) -> dict[str, str]:
    if not isinstance(found, dict):
        raise BadRecord(f"{found!r:.60} is no object")
    return {_text(name): _text(value) for name, value in found.items()}


def _list(found: Any) -> list[Any]:
    if not isinstance(found, list):
        raise BadRecord(f"{found!r:.60} is no list")
    return found


def _kept(form: Callable[[Any], Any], default: Any = MISSING) -> Any:
    if default is MISSING:
        return field(metadata={"form": form})
    if isinstance(default, dict):
        return field(default_factory=dict, metadata={"form": form})
    return field(default=default, metadata={"form": form})


# -- records ------------------------------------------------------------------------------------


class State(Enum):
    """What a running broker wants to be."""

    UP = "up"
    DRAINING = "draining"
    """It stops soon, and takes over nothing more."""


class Listener(NamedTuple):
    """Where a broker can be reached, under the name of one of its listeners."""

    name: str
    host: str
    port: int


def _state(found: Any) -> State:
    try:
        return State(found)
    except ValueError:
        raise BadRecord(f"a broker cannot be {found!r:.60}") from None


def _listeners(found: Any) -> tuple[Listener, ...]:
    listeners = []
    for one in _list(found):
        name, host, port = one if len(_list(one)) == 3 else (None, None, None)
        listeners.append(Listener(_text(name), _text(host), _whole(port)))
    return tuple(listeners)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A value of the store."""

    rest: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """Fields that this version does not know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterId(Record):
    id: str = _kept(_text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Format(Record):
    """The least version that may read and write this store."""

    level: int = _kept(_whole)


@dataclass(frozen=True, slots=True, kw_only=True)
class Secret(Record):
    """What brokers prove to each other that they know."""

    hex: str = _kept(_text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Node(Record):
    """Which disks a node id belongs to: another machine must not take it by mistake."""

    uuid: str = _kept(_text)
    directories: tuple[str, ...] = _kept(_texts, ())
    rack: str | None = _kept(_optional_text, None)
    host: str = _kept(_text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alive(Record):
    """A running broker."""

    listeners: tuple[Listener, ...] = _kept(_listeners)
    boot_id: str = _kept(_text)
    run: str = _kept(_text, "")
    """Of the process: two of them never have the same."""
    lost_unsynced: bool = _kept(_flag, False)
    """Whether the machine went down since, so that what was not synced may be gone."""
    state: State = _kept(_state, State.UP)  # noqa: RUF009 (it makes a field)
    version: str = _kept(_text, "")
    """Of the software, for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted(Record):
    epoch: int = _kept(_whole)


@dataclass(frozen=True, slots=True, kw_only=True)
class Controller(Record):
    node_id: int = _kept(_whole)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicName(Record):
    topic_id: str = _kept(_text)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicMeta(Record):
    """A topic; its partitions are keys of their own."""

    name: str = _kept(_text)
    partitions: int = _kept(_partition_count)
    options: Mapping[str, str] = _kept(_options, {})


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionMeta(Record):
    """Who has a partition. Every change compares the revision of the key."""

    leader: int = _kept(_whole)
    epoch: int = _kept(_whole)
    replicas: tuple[int, ...] = _kept(_nodes)
    isr: tuple[int, ...] = _kept(_nodes)
    elr: tuple[int, ...] = _kept(_nodes, ())
    """Out of the in-sync set, and yet with everything that was ever committed (KIP-966)."""
    last: int = _kept(_whole, NO_LEADER)
    """The last leader, while there is none."""
    adding: tuple[int, ...] = _kept(_nodes, ())
    removing: tuple[int, ...] = _kept(_nodes, ())
    unclean: int = _kept(_whole, NO_EPOCH)
    """The epoch of an unclean election: in it, cutting below a watermark is legal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedTopic(Record):
    name: str = _kept(_text, "")
    at_ms: int = _kept(_whole)
    done: bool = _kept(_flag, False)
    """Whether its files are removed and nothing is kept under its name any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(Record):
    options: Mapping[str, str] = _kept(_options, {})


@dataclass(frozen=True, slots=True, kw_only=True)
class NextProducerId(Record):
    next: int = _kept(_whole)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick(Record):
    count: int = _kept(_whole)


R = TypeVar("R", bound=Record)


class _Codec:
    """Reads and writes the fields of one kind of record."""

    _of: ClassVar[dict[type[Record], _Codec]] = {}

    def __init__(self, kind: type[Record]) -> None:
        known = [one for one in fields(kind) if "form" in one.metadata]
        self.forms: dict[str, Callable[[Any], Any]] = {one.name: one.metadata["form"] for one in known}
        self.needed = {one.name for one in known if one.default is MISSING and one.default_factory is MISSING}

    @classmethod
    def of(cls, kind: type[Record]) -> _Codec:
        found = cls._of.get(kind)
        if found is None:
            found = cls._of[kind] = cls(kind)
        return found


def encode(record: Record, by: str) -> bytes:
    """The record as the store holds it. `by` names the writer and the write: see `cluster/settlement.py`."""
    found: dict[str, Any] = {"v": VERSION, "by": by}
    for name in _Codec.of(type(record)).forms:
        value = getattr(record, name)
        found[name] = value.value if isinstance(value, Enum) else value
    found.update((name, value) for name, value in record.rest.items() if name not in found)
    return json.dumps(found, separators=(",", ":")).encode()


def decode(kind: type[R], key: str, value: bytes) -> R:
    """What a key holds; `BadRecord` if it is not of that kind."""
    try:
        found = json.loads(value)
        if not isinstance(found, dict):
            raise BadRecord(f"{found!r:.60} is no object")
        codec = _Codec.of(kind)
        missing = codec.needed - found.keys()
        if missing:
            raise BadRecord(f"{', '.join(sorted(missing))} missing")
        known = {name: form(found.pop(name)) for name, form in codec.forms.items() if name in found}
    except (ValueError, RecursionError) as error:
        raise BadRecord(f"{key}: {error}") from None
    found.pop("v", None)
    found.pop("by", None)
    return kind(**known, rest=found)
