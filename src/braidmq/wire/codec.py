"""Codecs, generated: from the fields of a message class, one function per version that reads or writes it.

A generated function is straight-line Python with nested structures in line as loops; nothing is looked up
by field at run time. Neighbouring fields of fixed size share one `struct` call, and the length or count
that follows them joins it. What a decoder for the topics of a CreatePartitions request boils down to:

    n3 = view[at]
    at += 1
    if n3 > 127: n3, at = finish_uvarint(view, at, n3)
    n3 -= 1
    if n3 < 0: refuse_null('CreatePartitionsTopic.name')
    e3 = at + n3
    m2.name = str(view[at:e3], 'utf-8')
    at = e3

Trust in hostile bytes rests on four rules. A slice past the end of the view is short, not an error, and
moves the position past the end too, so that the next read or the single check at the end of the message
refuses it. A count is compared with the bytes that are left before anything is allocated. A null where none
may be is refused. And whatever `struct`, indexing or UTF-8 raises leaves as ProtocolError.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NoReturn

from braidmq.wire.errors import ProtocolError
from braidmq.wire.primitives import (
    check_tag_count,
    finish_string_length,
    finish_uvarint,
    read_uvarint,
    skip_tagged_fields,
    uvarint,
)
from braidmq.wire.schema import Field, FieldKind, Message

FIXED = frozenset(
    {
        FieldKind.INT8,
        FieldKind.INT16,
        FieldKind.UINT16,
        FieldKind.INT32,
        FieldKind.UINT32,
        FieldKind.INT64,
        FieldKind.FLOAT64,
        FieldKind.BOOLEAN,
        FieldKind.UUID,
    }
)
PACKED_ARRAYS_MAX = 8
"""Arrays of numbers shorter than this are written with a ready-made Struct: replica lists are this short."""


def compile_decoder(cls: type[Message], version: int) -> Callable[..., Any]:
    return _Reader(cls, version).function()


def compile_encoder(cls: type[Message], version: int) -> Callable[..., Any]:
    return _Writer(cls, version).function()


def compile_init(cls: type[Message]) -> Callable[..., None]:
    """The `__init__` of a message class: fields by name only, each with its default."""
    source = _Source()
    for field in cls.fields:
        if field.default == []:
            source.line(f"self.{field.name} = [] if {field.name} is None else {field.name}")
        else:
            source.line(f"self.{field.name} = {field.name}")
    defaults = (f"{field.name}={None if field.default == [] else field.default!r}" for field in cls.fields)
    star = "*, " if cls.fields else ""
    return source.compiled("__init__", f"self, {star}{', '.join(defaults)}", cls.__name__)


class _Source:
    """The text of a function while it is being put together, and the objects its names stand for."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.indent = 1
        self.scope: dict[str, Any] = {}
        self.names = 0

    def line(self, text: str) -> None:
        self.lines.append("    " * self.indent + text)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        self.line(head)
        self.indent += 1
        yield
        self.indent -= 1

    def name(self, prefix: str) -> str:
        self.names += 1
        return f"{prefix}{self.names}"

    def bind(self, prefix: str, value: object) -> str:
        """A name in the function's scope for `value`."""
        name = self.name(prefix)
        self.scope[name] = value
        return name

    def compiled(self, name: str, parameters: str, what: str) -> Callable[..., Any]:
        body = "\n".join(self.lines) or "    pass"
        # The text holds nothing from the network: names and numbers of our own tables only.
        exec(compile(f"def {name}({parameters}):\n{body}\n", f"<{name} {what}>", "exec"), self.scope)
        made: Callable[..., Any] = self.scope[name]
        return made


class _Codec(_Source):
    """What reading and writing share: the version, and fixed-size values waiting for one struct call."""

    def __init__(self, cls: type[Message], version: int) -> None:
        super().__init__()
        self.cls = cls
        self.version = version
        self.flexible = version >= cls.flexible_from
        self.what = f"{cls.__name__} v{version}"
        self.pending: list[tuple[str, str]] = []

    def fixed(self, expression: str, code: str) -> None:
        self.pending.append((expression, code))

    def take_pending(self) -> tuple[str, list[str]]:
        codes = "".join(code for _, code in self.pending)
        expressions = [expression for expression, _ in self.pending]
        self.pending = []
        return codes, expressions

    def parted(self, cls: type[Message]) -> tuple[list[Field], list[Field]]:
        """The fields of this version: those in sequence, and the tagged ones."""
        present = [field for field in cls.fields if field.present(self.version)]
        return [field for field in present if field.tag is None], [
            field for field in present if field.tag is not None
        ]

    def nullable(self, field: Field) -> bool:
        return self.version >= field.nullable_from


class _Reader(_Codec):
    def function(self) -> Callable[..., Any]:
        self.scope.update(
            new=object.__new__,
            finish_uvarint=finish_uvarint,
            finish_string_length=finish_string_length,
            read_uvarint=read_uvarint,
            skip_tagged_fields=skip_tagged_fields,
            check_tag_count=check_tag_count,
            refuse_null=_refuse_null,
            refuse_count=_refuse_count,
            null=_null,
            unpack_from=struct.unpack_from,
            malformed=(struct.error, IndexError, UnicodeDecodeError),
            ProtocolError=ProtocolError,
        )
        self.line("end = len(view)")
        with self.block("try:"):
            self.structure(self.cls, "message")
            self.flush()
        with self.block("except malformed as error:"):
            self.line(f"raise ProtocolError(f'{self.what}: {{error}}') from None")
        with self.block("if at > end:"):
            self.line(f"raise ProtocolError('{self.what}: it ends before its last field does')")
        self.line("return message, at")
        return self.compiled("decode", "view, at", self.what)

    def flush(self) -> None:
        if not self.pending:
            return
        codes, targets = self.take_pending()
        if codes == "B":
            self.line(f"{targets[0]} = view[at]")
            self.line("at += 1")
            return
        packed = struct.Struct(">" + codes)
        unpack = self.bind("unpack", packed.unpack_from)
        self.line(f"{', '.join(targets)}, = {unpack}(view, at)")
        self.line(f"at += {packed.size}")

    def structure(self, cls: type[Message], target: str) -> None:
        self.line(f"{target} = new({self.bind('cls', cls)})")
        sequence, tagged = self.parted(cls)
        for field in cls.fields:
            if field not in sequence:
                self.line(f"{target}.{field.name} = {field.default!r}")
        for field in sequence:
            self.value(field, f"{target}.{field.name}", f"{cls.__name__}.{field.name}")
        if self.flexible:
            self.tagged_fields(cls, tagged, target)

    def value(self, field: Field, target: str, what: str) -> None:
        kind = field.kind
        if kind in FIXED:
            self.fixed(target, kind.value)
        elif kind is FieldKind.ARRAY:
            self.array(field, target, what)
        elif kind is FieldKind.STRUCT:
            self.structure_or_null(field, target)
        else:
            self.text_or_bytes(field, target, what)

    def length(self, classic_code: str) -> str:
        """Reads a length or count into a new variable; null is -1."""
        length = self.name("n")
        self.fixed(length, "B" if self.flexible else classic_code)
        self.flush()
        if self.flexible:
            finish = "finish_string_length" if classic_code == "h" else "finish_uvarint"
            self.line(f"if {length} > 127: {length}, at = {finish}(view, at, {length})")
            self.line(f"{length} -= 1")
        return length

    @contextmanager
    def unless_null(self, field: Field, length: str, target: str, what: str) -> Iterator[None]:
        if self.nullable(field):
            self.line(f"if {length} < 0: {target} = null({length})")
            with self.block("else:"):
                yield
        else:
            self.line(f"if {length} < 0: refuse_null({what!r})")
            yield

    def text_or_bytes(self, field: Field, target: str, what: str) -> None:
        length = self.length("h" if field.kind is FieldKind.STRING else "i")
        with self.unless_null(field, length, target, what):
            stop = self.name("e")
            self.line(f"{stop} = at + {length}")
            piece = f"view[at:{stop}]"
            if field.kind is FieldKind.STRING:
                piece = f"str({piece}, 'utf-8')"
            elif field.kind is FieldKind.DATA:
                piece = f"bytes({piece})"
            self.line(f"{target} = {piece}")
            self.line(f"at = {stop}")

    def array(self, field: Field, target: str, what: str) -> None:
        element = field.element
        count = self.length("i")
        with self.unless_null(field, count, target, what):
            size = _smallest(element, self.version, self.flexible)
            self.line(f"if {count} * {size} > end - at: refuse_count({what!r}, {count}, end - at)")
            if isinstance(element, Field) and element.kind in FIXED and element.kind is not FieldKind.UUID:
                self.line(f"{target} = list(unpack_from(f'>{{{count}}}{element.kind.value}', view, at))")
                self.line(f"at += {count} * {size}")
                return
            items, item = self.name("list"), self.name("m")
            self.line(f"{target} = {items} = []")
            with self.block(f"for _ in range({count}):"):
                if isinstance(element, Field):
                    self.value(element, item, what)
                else:
                    assert element is not None
                    self.structure(element, item)
                self.flush()
                self.line(f"{items}.append({item})")

    def structure_or_null(self, field: Field, target: str) -> None:
        assert isinstance(field.element, type)
        nested = self.name("m")
        if not self.nullable(field):
            self.structure(field.element, nested)
            self.line(f"{target} = {nested}")
            return
        there = self.name("n")
        self.fixed(there, "b")
        self.flush()
        self.line(f"if {there} < 0: {target} = null({there})")
        with self.block("else:"):
            self.structure(field.element, nested)
            self.flush()
            self.line(f"{target} = {nested}")

    def tagged_fields(self, cls: type[Message], tagged: list[Field], target: str) -> None:
        count = self.name("n")
        self.fixed(count, "B")
        self.flush()
        if not tagged:
            self.line(f"if {count}: at = skip_tagged_fields(view, at, {count})")
            return
        tag, stop = self.name("tag"), self.name("e")
        self.line(f"if {count} > 127: {count}, at = finish_uvarint(view, at, {count})")
        self.line(f"if {count}: check_tag_count({count})")
        with self.block(f"for _ in range({count}):"):
            self.line(f"{tag}, at = read_uvarint(view, at)")
            self.line(f"{stop}, at = read_uvarint(view, at)")
            self.line(f"{stop} += at")
            for field in tagged:
                what = f"{cls.__name__}.{field.name}"
                with self.block(f"if {tag} == {field.tag}:"):
                    self.value(field, f"{target}.{field.name}", what)
                    self.flush()
                    self.line(f"if at != {stop}: raise ProtocolError('tagged field {what} has a wrong size')")
                    self.line("continue")
            self.line(f"at = {stop}")


class _Writer(_Codec):
    def __init__(self, cls: type[Message], version: int) -> None:
        super().__init__(cls, version)
        self.out = "out"

    def function(self) -> Callable[..., Any]:
        self.scope.update(uvarint=uvarint, pack=struct.pack, refuse_none=_refuse_none)
        self.line("out = bytearray()")
        self.structure(self.cls, "message")
        self.flush()
        self.line("return bytes(out)")
        return self.compiled("encode", "message", self.what)

    def flush(self) -> None:
        if not self.pending:
            return
        codes, expressions = self.take_pending()
        if codes == "B":
            self.line(f"{self.out}.append({expressions[0]})")
        elif all(expression.isdigit() for expression in expressions):
            self.line(f"{self.out} += {struct.pack('>' + codes, *map(int, expressions))!r}")
        else:
            pack = self.bind("pack", struct.Struct(">" + codes).pack)
            self.line(f"{self.out} += {pack}({', '.join(expressions)})")

    def structure(self, cls: type[Message], source: str) -> None:
        sequence, tagged = self.parted(cls)
        for field in sequence:
            self.value(field, f"{source}.{field.name}", f"{cls.__name__}.{field.name}")
        if self.flexible:
            self.tagged_fields(tagged, source)

    def value(self, field: Field, source: str, what: str) -> None:
        kind = field.kind
        if kind in FIXED:
            self.fixed(source, kind.value)
            return
        value = self.name("v")
        self.line(f"{value} = {source}")
        if kind is FieldKind.STRUCT:
            self.structure_or_null(field, value)
            return
        code = "h" if kind is FieldKind.STRING else "i"
        if not self.nullable(field):
            if field.default is None:
                self.line(f"if {value} is None: refuse_none({what!r}, {self.version})")
            self.content(field, value, code, what)
            return
        # Both arms begin with what is pending, so it is written before they part.
        self.flush()
        with self.block(f"if {value} is None:"):
            null = bytes(1) if self.flexible else struct.pack(">" + code, -1)
            self.line(f"{self.out} += {null!r}")
        with self.block("else:"):
            self.content(field, value, code, what)
            self.flush()

    def content(self, field: Field, value: str, classic_code: str, what: str) -> None:
        if field.kind is FieldKind.ARRAY:
            self.array(field, value, what)
            return
        if field.kind is FieldKind.STRING:
            self.line(f"{value} = {value}.encode()")
        self.length(f"len({value})", classic_code)
        self.flush()
        self.line(f"{self.out} += {value}")

    def length(self, length: str, classic_code: str) -> None:
        if not self.flexible:
            self.fixed(length, classic_code)
            return
        self.flush()
        compact = self.name("n")
        self.line(f"{compact} = {length} + 1")
        self.line(f"if {compact} < 128: {self.out}.append({compact})")
        self.line(f"else: {self.out} += uvarint({compact})")

    def array(self, field: Field, value: str, what: str) -> None:
        element = field.element
        if isinstance(element, Field) and element.kind in FIXED and element.kind is not FieldKind.UUID:
            self.numbers(element.kind.value, value)
            return
        self.length(f"len({value})", "i")
        self.flush()
        item = self.name("m")
        with self.block(f"for {item} in {value}:"):
            if isinstance(element, Field):
                self.value(element, item, what)
            else:
                assert element is not None
                self.structure(element, item)
            self.flush()

    def numbers(self, code: str, value: str) -> None:
        """An array of numbers, in one struct call together with its count and what was pending."""
        pending = self.pending
        codes, expressions = self.take_pending()
        count = self.name("n")
        before = "".join(f"{expression}, " for expression in expressions)
        packers = self.bind("packers", _packers(codes + ("B" if self.flexible else "i"), code))
        stored = f"{count} + 1" if self.flexible else count
        self.line(f"{count} = len({value})")
        self.line(f"if {count} < {PACKED_ARRAYS_MAX}:")
        self.line(f"    {self.out} += {packers}[{count}]({before}{stored}, *{value})")
        with self.block("else:"):
            self.pending = pending
            self.length(count, "i")
            self.flush()
            self.line(f"{self.out} += pack(f'>{{{count}}}{code}', *{value})")

    def structure_or_null(self, field: Field, value: str) -> None:
        assert isinstance(field.element, type)
        if not self.nullable(field):
            self.structure(field.element, value)
            return
        self.flush()
        with self.block(f"if {value} is None:"):
            self.line(f"{self.out}.append(255)")
        with self.block("else:"):
            self.fixed("1", "b")
            self.structure(field.element, value)
            self.flush()

    def tagged_fields(self, tagged: list[Field], source: str) -> None:
        if not tagged:
            self.fixed("0", "B")
            return
        self.flush()
        outer, self.out = self.out, self.name("out")
        written, count = self.name("tags"), self.name("n")
        self.line(f"{count} = 0")
        self.line(f"{written} = bytearray()")
        for field in sorted(tagged, key=lambda field: field.tag or 0):
            with self.block(f"if {source}.{field.name} != {field.default!r}:"):
                self.line(f"{self.out} = bytearray()")
                self.value(field, f"{source}.{field.name}", field.name)
                self.flush()
                self.line(f"{count} += 1")
                self.line(f"{written} += uvarint({field.tag}) + uvarint(len({self.out})) + {self.out}")
        self.out = outer
        self.line(f"{self.out}.append({count})")
        self.line(f"{self.out} += {written}")


def _smallest(element: Field | type[Message] | None, version: int, flexible: bool) -> int:
    """The fewest bytes one element of an array can take."""
    if isinstance(element, type):
        fields = [field for field in element.fields if field.present(version) and field.tag is None]
        return sum(_smallest(field, version, flexible) for field in fields) + flexible
    assert element is not None
    if element.kind in FIXED:
        return struct.calcsize(">" + element.kind.value)
    if element.kind is FieldKind.STRUCT:
        return 1 if version >= element.nullable_from else _smallest(element.element, version, flexible)
    if flexible:
        return 1
    return 2 if element.kind is FieldKind.STRING else 4


@cache
def _packers(prefix: str, code: str) -> list[Callable[..., bytes]]:
    return [struct.Struct(f">{prefix}{count}{code}").pack for count in range(PACKED_ARRAYS_MAX)]


def _null(length: int) -> None:
    if length != -1:
        raise ProtocolError(f"a length of {length}")


def _refuse_null(what: str) -> NoReturn:
    raise ProtocolError(f"{what} is null or of negative length")


def _refuse_count(what: str, count: int, bytes_left: int) -> NoReturn:
    raise ProtocolError(f"{what} claims {count} elements in {bytes_left} bytes")


def _refuse_none(what: str, version: int) -> NoReturn:
    raise ValueError(f"{what} cannot be None in version {version}")
