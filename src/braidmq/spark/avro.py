"""Avro values to columns and back, in Python: Spark's own Avro reader is a jar that its wheel does not carry.

An Avro record becomes a struct; unions with null become columns that may be null. Other unions have no column
type and are refused when the schema is read, before anything runs.

With a schema registry, a value begins with the id of the schema that it was written with. A pipeline reads
with one schema, and bytes of another may well decode, into wrong columns. So a value with another id is bad.
"""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import time
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from braidmq.spark.errors import UserError

if TYPE_CHECKING:
    import pyarrow as pa

REGISTRY_HEADER_BYTES = 5
_PLAIN = {
    "boolean": "boolean",
    "int": "int",
    "long": "bigint",
    "float": "float",
    "double": "double",
    "bytes": "binary",
    "string": "string",
    "fixed": "binary",
    "enum": "string",
}
_LOGICAL = {
    "date": "date",
    "timestamp-millis": "timestamp",
    "timestamp-micros": "timestamp",
    "local-timestamp-millis": "timestamp_ntz",
    "local-timestamp-micros": "timestamp_ntz",
    "uuid": "string",
}


class AvroError(UserError):
    """A schema that cannot be used; the message says what is wrong with it."""


class Framing(StrEnum):
    """What precedes an Avro value: nothing, or the five bytes of a schema registry."""

    PLAIN = "plain"
    REGISTRY = "registry"


@dataclass(frozen=True, slots=True)
class AvroSchema:
    """An Avro schema as JSON text, and its id in a registry, where values carry one."""

    text: str
    framing: Framing = Framing.PLAIN
    registry_id: int | None = None


def parse(schema: AvroSchema) -> Any:
    """The schema as fastavro wants it."""
    try:
        import fastavro
    except ImportError:
        raise AvroError("Avro needs fastavro; install it with: pip install 'braidmq[spark]'") from None
    try:
        return fastavro.parse_schema(json.loads(schema.text))
    except ValueError as error:
        raise AvroError(f"the Avro schema is not JSON: {error}") from None
    except Exception as error:
        raise AvroError(f"the Avro schema cannot be used: {error}") from None


def ddl(schema: AvroSchema) -> str:
    """The columns of a schema, as a DDL string."""
    parsed = parse(schema)
    if not isinstance(parsed, dict) or parsed.get("type") != "record":
        raise AvroError("the Avro schema must be a record: its fields become columns")
    named: dict[str, Any] = {}
    return ", ".join(_column(field, " ", named) for field in parsed["fields"])


def _column(field: dict[str, Any], separator: str, named: dict[str, Any]) -> str:
    kind, nullable = _type(field["type"], named, field["name"])
    required = "" if nullable or separator == ": " else " NOT NULL"
    return f"`{field['name']}`{separator}{kind}{required}"


def _type(schema: Any, named: dict[str, Any], where: str) -> tuple[str, bool]:
    """A type in DDL, and whether it may be null."""
    if isinstance(schema, list):
        real = [each for each in schema if each != "null"]
        if len(real) != 1:
            raise AvroError(f"Avro field {where}: a union of {len(real)} types cannot be a column")
        return _type(real[0], named, where)[0], len(real) < len(schema)
    if isinstance(schema, str):
        if schema in named:
            return _type(named[schema], named, where)
        if schema not in _PLAIN:
            raise AvroError(f"Avro field {where}: type {schema} cannot be a column")
        return _PLAIN[schema], False
    return _complex(schema, named, where), False


def _complex(schema: dict[str, Any], named: dict[str, Any], where: str) -> str:
    kind = schema["type"]
    if "name" in schema and kind != "record":
        named[schema["name"]] = schema
    logical = schema.get("logicalType")
    if logical == "decimal":
        return f"decimal({schema['precision']}, {schema.get('scale', 0)})"
    if logical in _LOGICAL:
        return _LOGICAL[logical]
    if kind == "record":
        # Named only after its fields were read: a record that contains itself has no column type.
        fields = ", ".join(_column(field, ": ", named) for field in schema["fields"])
        named[schema["name"]] = schema
        return f"struct<{fields}>"
    if kind == "array":
        return f"array<{_type(schema['items'], named, where)[0]}>"
    if kind == "map":
        return f"map<string, {_type(schema['values'], named, where)[0]}>"
    return _type(kind, named, where)[0]


def decoder(schema: AvroSchema) -> Callable[[bytes], dict[str, Any]]:
    """A function from bytes to a record; it raises ValueError with what is wrong with the bytes."""
    from fastavro import schemaless_reader

    parsed = parse(schema)

    def decode(value: bytes) -> dict[str, Any]:
        stream = io.BytesIO(value)
        if schema.framing is Framing.REGISTRY:
            _check_id(value, schema.registry_id)
            stream.seek(REGISTRY_HEADER_BYTES)
        try:
            record = schemaless_reader(stream, parsed, None)
        except EOFError:
            raise ValueError("not this Avro schema: the value ends too early") from None
        except Exception as error:
            raise ValueError(f"not this Avro schema: {str(error) or type(error).__name__}") from None
        left = len(value) - stream.tell()
        if left:
            raise ValueError(f"not this Avro schema: {left} bytes are left over")
        if not isinstance(record, dict):
            raise ValueError("not this Avro schema: no record")
        return record

    return decode


def registry_id(value: bytes) -> int | None:
    """The id in front of a value; None where there is none."""
    if value[:1] != b"\0" or len(value) < REGISTRY_HEADER_BYTES:
        return None
    return int.from_bytes(value[1:REGISTRY_HEADER_BYTES], "big")


def _check_id(value: bytes, wanted: int | None) -> None:
    found = registry_id(value)
    if found is None:
        raise ValueError("no schema registry header: the value must begin with a zero byte and an id")
    if wanted is not None and found != wanted:
        raise ValueError(
            f"the value has schema registry id {found}, but the schema in use has id {wanted};"
            f" if {found} is the same schema, write registry_id {found} when all records of {wanted} are read"
        )


def encoder(schema: AvroSchema) -> Callable[[dict[str, Any]], bytes]:
    """A function from a row to bytes."""
    from fastavro import schemaless_writer

    parsed = parse(schema)

    def encode(row: dict[str, Any]) -> bytes:
        stream = io.BytesIO()
        try:
            schemaless_writer(stream, parsed, row)
        except Exception as error:
            raise ValueError(f"a row does not fit the Avro schema: {error}") from None
        return stream.getvalue()

    return encode


def decode_batches(
    batches: Iterator[pa.RecordBatch], schema: AvroSchema, kind: pa.DataType, names: tuple[str, str]
) -> Iterator[pa.RecordBatch]:
    """Adds a struct column to each batch; its field `names[1]` is the reason where a value is bad."""
    import pyarrow as pa

    decode = decoder(schema)
    column, reason = names
    for batch in batches:
        rows = []
        for value in batch.column("value").to_pylist():
            try:
                rows.append(_fitting(decode(value), kind))
            except ValueError as error:
                rows.append({reason: str(error)})
        parsed = _array(rows, kind, reason)
        yield pa.RecordBatch.from_arrays([*batch.columns, parsed], [*batch.schema.names, column])


def _array(rows: list[dict[str, Any]], kind: pa.DataType, reason: str) -> pa.Array:
    """The rows as one column; a row that does not fit the type, such as a wider decimal, is bad."""
    import pyarrow as pa

    try:
        return pa.array(rows, type=kind)
    except (ValueError, TypeError, OverflowError):
        for place, row in enumerate(rows):
            try:
                pa.array([row], type=kind)
            except (ValueError, TypeError, OverflowError) as error:
                rows[place] = {reason: f"not this Avro schema: {error}"}
    return pa.array(rows, type=kind)


def _fitting(value: Any, kind: Any) -> Any:
    """A value as Arrow takes it: maps as pairs, UUIDs as text, times of day as numbers."""
    import pyarrow as pa

    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {field.name: _fitting(value.get(field.name), field.type) for field in kind}
    if pa.types.is_map(kind):
        return [(key, _fitting(each, kind.item_type)) for key, each in value.items()]
    if pa.types.is_list(kind):
        return [_fitting(each, kind.value_type) for each in value]
    if isinstance(value, time):
        micros = ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond
        return micros // 1000 if pa.types.is_int32(kind) else micros
    return str(value) if isinstance(value, uuid.UUID) else value
