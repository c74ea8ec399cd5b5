"""A request cut into one for each broker, the answers joined again, and a refusal where an answer is missing.

Pure: who leads what is asked of a `Places`. Messages are walked by their tables (`wire/schema.py`), so a verb
costs a row in `routes`, not code.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from braidmq.faces.kafka.forwarding.routes import By, Route
from braidmq.wire.api import response_class
from braidmq.wire.errors import ErrorCode
from braidmq.wire.schema import FieldKind, Message

_INDEX = ("partition_index", "partition", "index")
_SAME = (_INDEX, ("name", "topic", "topic_name"), ("topic_id",), ("group_id",), ("transactional_id",))
"""What identifies an element, under its several names."""
_KEYS = ("group_id", "transactional_id")


class Places(Protocol):
    """Who answers for what. A broker that does not know whom to ask names itself: it has the right error."""

    node_id: int

    def leader(self, topic: str | bytes, index: int) -> int: ...
    def coordinator(self, by: By, key: str) -> int: ...
    def every(self) -> list[int]: ...


def cut(route: Route, request: Message, places: Places) -> dict[int, Message]:
    """What to ask of which broker."""
    if route.by is By.EVERY:
        return dict.fromkeys(places.every(), request)
    value = getattr(request, route.field)
    if route.by is By.LEADER:
        groups = _by_leader(value, places)
    elif isinstance(value, str):
        return {places.coordinator(route.by, value): request}
    else:
        groups = {}
        for element in value or ():
            groups.setdefault(places.coordinator(route.by, _key(element)), []).append(element)
    if len(groups) <= 1:
        return {next(iter(groups), places.node_id): request}
    return {node_id: changed(request, **{route.field: some}) for node_id, some in groups.items()}


def _by_leader(topics: list[Message], places: Places) -> dict[int, list[Any]]:
    found: dict[int, list[Any]] = {}
    for topic in topics:
        name = topic_key(topic)
        field = partitions_field(topic)
        here: dict[int, list[Any]] = {}
        for element in getattr(topic, field):
            here.setdefault(places.leader(name, index_of(element)), []).append(element)
        for node_id, some in here.items():
            found.setdefault(node_id, []).append(changed(topic, **{field: some}))
    return found


def join(route: Route, answers: list[Message]) -> Message:
    """One answer of several, in the order of the brokers that were asked."""
    whole = answers[0]
    if len(answers) == 1:
        return whole
    elements = [element for answer in answers for element in getattr(answer, route.answers)]
    setattr(whole, route.answers, _by_topic(elements) if route.by is By.LEADER else elements)
    for name in ("throttle_time_ms", "error_code"):
        if hasattr(whole, name):
            setattr(whole, name, max(getattr(answer, name) for answer in answers))
    return whole


def _by_topic(topics: Iterable[Message]) -> list[Message]:
    """Each topic once, with all its partitions."""
    found: dict[str | bytes, Message] = {}
    for topic in topics:
        first = found.setdefault(topic_key(topic), topic)
        if first is not topic:
            field = partitions_field(topic)
            setattr(first, field, getattr(first, field) + getattr(topic, field))
    return list(found.values())


def refusal(route: Route, request: Message, version: int, code: ErrorCode) -> Message:
    """The answer where there is none: `code` for everything that was asked."""
    answer: Message = response_class(request.api)()
    for field in answer.fields:
        if field.kind is FieldKind.STRING and field.default is None and version < field.nullable_from:
            setattr(answer, field.name, "")
    if route.by is not By.LEADER and _has(answer, "error_code", version):
        setattr(answer, "error_code", int(code))  # noqa: B010 (a Message has no such attribute)
    if route.mirror is not None:
        asked, answered = route.mirror
        setattr(answer, answered, _refused(answer, answered, getattr(request, asked), code))
    return answer


def _refused(answer: Message, name: str, asked: Iterable[Any] | None, code: ErrorCode) -> list[Any]:
    field = next(field for field in answer.fields if field.name == name)
    assert isinstance(field.element, type), "an error code is in a structure"
    return [_refused_element(field.element, element, code) for element in asked or ()]


def _refused_element(kind: type[Message], asked: Any, code: ErrorCode) -> Message:
    made: Any = kind()
    for names in _SAME:
        mine = next((name for name in names if hasattr(made, name)), None)
        if mine is None:
            continue
        if isinstance(asked, Message):
            theirs = next((name for name in names if hasattr(asked, name)), None)
            if theirs is not None:
                setattr(made, mine, getattr(asked, theirs))
        elif (names is _INDEX and isinstance(asked, int)) or (mine in _KEYS and isinstance(asked, str)):
            setattr(made, mine, asked)
    for name in ("error_code", "partition_error_code"):
        if hasattr(made, name):
            setattr(made, name, int(code))
    for name, value in (
        ("base_offset", -1),
        ("high_watermark", -1),
        ("committed_offset", -1),
        ("records", b""),
    ):
        if hasattr(made, name):
            setattr(made, name, value)
    for field in made.fields:
        if field.name == "current_leader" and field.tag is None:
            made.current_leader = field.element(leader_id=-1, leader_epoch=-1)
    nested = _first_array(asked) if isinstance(asked, Message) else None
    mirrored = _first_array(made)
    if nested is not None and mirrored in (
        "partitions",
        "partition_responses",
        "results_by_partition",
        "topics",
    ):
        setattr(made, mirrored, _refused(made, mirrored, getattr(asked, nested), code))
    refused: Message = made
    return refused


def without_addresses(answer: Message) -> Message:
    """The answer of another broker, without what would send the client there (KIP-951)."""
    if hasattr(answer, "node_endpoints"):
        answer.node_endpoints = []
    for partition in partitions_of(answer):
        leader = getattr(partition, "current_leader", None)
        if leader is not None:
            leader.leader_id = leader.leader_epoch = -1
    return answer


def partitions_of(answer: Message) -> Iterator[Message]:
    for topic in getattr(answer, "responses", ()):
        for partition in getattr(topic, partitions_field(topic)):
            if isinstance(partition, Message):
                yield partition


def changed(message: Message, **values: Any) -> Any:
    """A copy with some fields replaced."""
    kept = {field.name: getattr(message, field.name) for field in message.fields}
    return type(message)(**(kept | values))


def topic_key(topic: Message) -> str | bytes:
    """The name of a topic, or its id in versions that have ids."""
    for name in ("name", "topic", "topic_name"):
        if found := getattr(topic, name, ""):
            return str(found)
    return bytes(getattr(topic, "topic_id", b""))


def index_of(element: Any) -> int:
    if isinstance(element, int):
        return element
    return int(next(getattr(element, name) for name in _INDEX if hasattr(element, name)))


def partitions_field(topic: Message) -> str:
    found = _first_array(topic)
    assert found is not None, "a topic has partitions"
    return found


def _first_array(message: Message) -> str | None:
    return next((field.name for field in message.fields if field.kind is FieldKind.ARRAY), None)


def _key(element: Any) -> str:
    return element if isinstance(element, str) else str(element.group_id)


def _has(message: Message, name: str, version: int) -> bool:
    return any(field.name == name and field.present(version) for field in message.fields)
