"""The notation in which messages are written down, and the classes it makes.

A message is a class whose fields are declared with the specs below:

    class MetadataRequest(Message, api=Api.METADATA, versions=(0, 13), flexible=9):
        topics: list[MetadataRequestTopic] | None = array(MetadataRequestTopic, nullable=1)
        allow_auto_topic_creation: bool = boolean(since=4, default=True)

`since` and `until` are the first and last version that carry the field, `nullable` the first version in
which it may be null, `tag` its number where it is a tagged field. In a version without the field it is left
out when written and holds its default when read. Without a `default` that is zero, empty, or None for what
may be null. Structures nested in a message are Messages without an `api`.

A class costs some microseconds to define: its `__init__` and its codecs (see `codec`) are generated when
first used, one straight-line function for each version that is really spoken.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any, ClassVar, TypeVar, cast, dataclass_transform

from braidmq.wire.api import REQUESTS, RESPONSES, Api
from braidmq.wire.errors import ProtocolError
from braidmq.wire.primitives import ZERO_UUID, View

NEVER = 32767
"""A version that will not come: the end of an open range of versions."""


class FieldKind(StrEnum):
    """What a field is on the wire. The fixed-size kinds carry their struct code as value."""

    INT8 = "b"
    INT16 = "h"
    UINT16 = "H"
    INT32 = "i"
    UINT32 = "I"
    INT64 = "q"
    FLOAT64 = "d"
    BOOLEAN = "?"
    UUID = "16s"
    STRING = "string"
    DATA = "data"
    RECORDS = "records"
    ARRAY = "array"
    STRUCT = "struct"


class Field:
    """One declared field: what it is, in which versions, and what it holds where it is absent."""

    __slots__ = ("default", "element", "kind", "name", "nullable_from", "since", "tag", "until")

    def __init__(
        self,
        kind: FieldKind,
        default: Any,
        since: int = 0,
        until: int = NEVER,
        nullable: int | None = None,
        tag: int | None = None,
        element: Field | type[Message] | None = None,
    ) -> None:
        self.name = ""
        self.kind = kind
        self.default = default
        self.since = since
        self.until = until
        self.nullable_from = NEVER + 1 if nullable is None else nullable
        self.tag = tag
        self.element = element

    def present(self, version: int) -> bool:
        return self.since <= version <= self.until


def int8(*, default: int = 0, since: int = 0, until: int = NEVER, tag: int | None = None) -> Any:
    return Field(FieldKind.INT8, default, since, until, None, tag)


def int16(*, default: int = 0, since: int = 0, until: int = NEVER, tag: int | None = None) -> Any:
    return Field(FieldKind.INT16, default, since, until, None, tag)


def uint16(*, default: int = 0, since: int = 0, until: int = NEVER, tag: int | None = None) -> Any:
    return Field(FieldKind.UINT16, default, since, until, None, tag)


def int32(*, default: int = 0, since: int = 0, until: int = NEVER, tag: int | None = None) -> Any:
    return Field(FieldKind.INT32, default, since, until, None, tag)


def uint32(*, default: int = 0, since: int = 0, until: int = NEVER, tag: int | None = None) -> Any:
    return Field(FieldKind.UINT32, default, since, until, None, tag)


def int64(*, default: int = 0, since: int = 0, until: int = NEVER, tag: int | None = None) -> Any:
    return Field(FieldKind.INT64, default, since, until, None, tag)


def float64(*, default: float = 0.0, since: int = 0, until: int = NEVER, tag: int | None = None) -> Any:
    return Field(FieldKind.FLOAT64, default, since, until, None, tag)


def boolean(*, default: bool = False, since: int = 0, until: int = NEVER, tag: int | None = None) -> Any:
    return Field(FieldKind.BOOLEAN, default, since, until, None, tag)


def uuid(*, since: int = 0, until: int = NEVER, tag: int | None = None) -> Any:
    """Sixteen bytes; no UUID is `ZERO_UUID`, never None."""
    return Field(FieldKind.UUID, ZERO_UUID, since, until, None, tag)


def string(
    *,
    default: str | None = None,
    since: int = 0,
    until: int = NEVER,
    nullable: int | None = None,
    tag: int | None = None,
) -> Any:
    if default is None and nullable is None:
        default = ""
    return Field(FieldKind.STRING, default, since, until, nullable, tag)


def data(*, since: int = 0, until: int = NEVER, nullable: int | None = None, tag: int | None = None) -> Any:
    """Bytes that are copied out of what was received."""
    return Field(FieldKind.DATA, b"" if nullable is None else None, since, until, nullable, tag)


def records(*, nullable: int | None = None) -> Any:
    """Record batches: on reading a slice of what was received, not a copy."""
    return Field(FieldKind.RECORDS, b"" if nullable is None else None, nullable=nullable)


def array(
    element: type[Message] | Callable[[], Any],
    *,
    since: int = 0,
    until: int = NEVER,
    nullable: int | None = None,
    tag: int | None = None,
) -> Any:
    """A list of structures, `array(Topic)`, or of plain values, `array(int32)`."""
    default: list[Any] | None = [] if nullable is None else None
    of = element if isinstance(element, type) else element()
    return Field(FieldKind.ARRAY, default, since, until, nullable, tag, of)


def struct(of: type[Message], *, since: int = 0, nullable: int | None = None, tag: int | None = None) -> Any:
    """A structure in its place; None if it is nullable, or tagged and then sent only when it is there."""
    return Field(FieldKind.STRUCT, None, since, NEVER, nullable, tag, of)


@dataclass_transform(kw_only_default=True)
class MessageType(type):
    """Turns the declared fields of a class body into slots, and enters requests and responses into `api`."""

    def __new__(
        mcs,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        *,
        api: Api | None = None,
        versions: tuple[int, int] = (0, NEVER),
        flexible: int = NEVER,
    ) -> MessageType:
        fields = {key: value for key, value in namespace.items() if isinstance(value, Field)}
        for key, field in fields.items():
            field.name = key
            del namespace[key]
        namespace["__slots__"] = tuple(fields)
        namespace.update(fields=tuple(fields.values()), versions=versions, flexible_from=flexible)
        if api is not None:
            namespace["api"] = api
        made = cast("type[Message]", super().__new__(mcs, name, bases, namespace))
        if api is not None:
            (REQUESTS if name.endswith("Request") else RESPONSES)[api] = made
        return made


class Message(metaclass=MessageType):
    """A request, a response, or a structure nested in one."""

    fields: ClassVar[tuple[Field, ...]]
    api: ClassVar[Api]
    versions: ClassVar[tuple[int, int]]
    flexible_from: ClassVar[int]

    def __init__(self, **values: Any) -> None:
        """Takes the fields by name. This one runs once per class and puts a generated one in its place."""
        from braidmq.wire.codec import compile_init

        cls = type(self)
        cls.__init__ = compile_init(cls)  # type: ignore[method-assign]
        cls.__init__(self, **values)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, field.name) == getattr(other, field.name) for field in self.fields)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        values = ", ".join(f"{field.name}={getattr(self, field.name)!r}" for field in self.fields)
        return f"{type(self).__name__}({values})"


M = TypeVar("M", bound=Message)
Decoder = Callable[[View, int], tuple[M, int]]
Encoder = Callable[[M], bytes]

_decoders: dict[tuple[type[Message], int], Decoder[Any]] = {}
_encoders: dict[tuple[type[Message], int], Encoder[Any]] = {}


def decoder(cls: type[M], version: int) -> Decoder[M]:
    """The function (view, at) → (message, end) for one version; it raises ProtocolError and nothing else."""
    made = _decoders.get((cls, version))
    if made is None:
        from braidmq.wire.codec import compile_decoder

        made = _decoders[cls, version] = compile_decoder(cls, _checked(cls, version))
    return made


def encoder(cls: type[M], version: int) -> Encoder[M]:
    """The function message → bytes for one version."""
    made = _encoders.get((cls, version))
    if made is None:
        from braidmq.wire.codec import compile_encoder

        made = _encoders[cls, version] = compile_encoder(cls, _checked(cls, version))
    return made


def decode(cls: type[M], version: int, view: View) -> M:
    """The one message that fills `view`."""
    message, end = decoder(cls, version)(view, 0)
    if end != len(view):
        raise ProtocolError(f"{cls.__name__} v{version}: {len(view) - end} bytes left over at its end")
    return message


def encode(message: Message, version: int) -> bytes:
    """`message` in the words of `version`: what that version lacks is left out."""
    return encoder(type(message), version)(message)


def _checked(cls: type[Message], version: int) -> int:
    oldest, newest = cls.versions
    if not oldest <= version <= newest:
        raise ProtocolError(f"{cls.__name__} is spoken in versions {oldest} to {newest}, not {version}")
    return version
