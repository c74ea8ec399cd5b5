"""Where a copied record came from, written into a header: `orders/3/1234` for offset 1234 of orders-3."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as fn

ORIGIN = "braid.origin"
REDRIVEN = "braid.redriven"
HEADERS_TYPE = "array<struct<key:string,value:binary>>"


def with_header(name: str) -> Column:
    """The headers of a record and one with its position, which replaces any of that name."""
    place = fn.concat_ws("/", "topic", fn.col("partition").cast("string"), fn.col("offset").cast("string"))
    added = fn.struct(fn.lit(name).alias("key"), place.cast("binary").alias("value"))
    kept = fn.filter(_headers(), lambda each: each["key"] != name)
    return fn.concat(kept, fn.array(added)).cast(HEADERS_TYPE)


def origin(part: int) -> Column:
    """Topic (0), partition (1) or offset (2) of a record's origin; null for one that was not copied."""
    found = fn.filter(_headers(), lambda each: each["key"] == ORIGIN)
    words = fn.split(fn.try_element_at(found, fn.lit(1))["value"].cast("string"), "/")
    word = fn.try_element_at(words, fn.lit(part + 1))
    return word if part == 0 else word.cast("bigint")


def header_map() -> Column:
    """Headers as a map of texts, for conditions; the last one of a name wins."""
    empty = fn.create_map().cast("map<string,string>")

    def put(before: Column, each: Column) -> Column:
        others = fn.map_filter(before, lambda key, _: key != each["key"])
        return fn.map_concat(others, fn.create_map(each["key"], each["value"].cast("string")))

    return fn.aggregate(_headers(), empty, put)


def _headers() -> Column:
    return fn.coalesce(fn.col("headers"), fn.array().cast(HEADERS_TYPE))
