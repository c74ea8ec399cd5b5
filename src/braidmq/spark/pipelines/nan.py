"""Keeps NaN through pandas.

For pandas, NaN is a missing value, which comes back as null. So each float in a row gets a mark that says
whether it is NaN, and is restored afterwards. Types without floats are left as they are.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import ArrayType, DataType, DoubleType, FloatType, MapType, StructType

NUMBER, IS_NAN = "number", "is_nan"


def marked(column: Column, kind: DataType) -> Column:
    """A column with marks for its floats, at any depth."""
    if not _has_floats(kind):
        return column
    if isinstance(kind, StructType):
        fields = kind.fields
        parts = [marked(column.getField(each.name), each.dataType).alias(each.name) for each in fields]
        return F.when(column.isNotNull(), F.struct(*parts))
    if isinstance(kind, ArrayType):
        return F.transform(column, lambda each: marked(each, kind.elementType))
    if isinstance(kind, MapType):
        return marked(F.map_entries(column), _entries(kind))
    number = F.when(~F.isnan(column), column)
    return F.struct(number.alias(NUMBER), F.isnan(column).alias(IS_NAN))


def restored(column: Column, kind: DataType) -> Column:
    """The column that `marked` was given; `kind` is its type."""
    if not _has_floats(kind):
        return column
    if isinstance(kind, StructType):
        fields = kind.fields
        parts = [restored(column.getField(each.name), each.dataType).alias(each.name) for each in fields]
        return F.when(column.isNotNull(), F.struct(*parts))
    if isinstance(kind, ArrayType):
        return F.transform(column, lambda each: restored(each, kind.elementType))
    if isinstance(kind, MapType):
        return F.map_from_entries(restored(column, _entries(kind)))
    nan = F.lit(float("nan")).cast(kind)
    return F.when(column.getField(IS_NAN), nan).otherwise(column.getField(NUMBER))


def _has_floats(kind: DataType) -> bool:
    match kind:
        case StructType():
            return any(_has_floats(each.dataType) for each in kind.fields)
        case ArrayType():
            return _has_floats(kind.elementType)
        case MapType():
            return _has_floats(kind.keyType) or _has_floats(kind.valueType)
    return isinstance(kind, DoubleType | FloatType)


def _entries(kind: MapType) -> ArrayType:
    return ArrayType(StructType().add("key", kind.keyType, False).add("value", kind.valueType))
