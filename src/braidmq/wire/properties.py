"""Headers with a meaning of their own, in which what Kafka's records have no field for travels.

Every face and the Spark source and sink use these names, so that a tag set in one place is seen in all.
"""

from __future__ import annotations

TAG = "braid.tag"
MESSAGE_ID = "braid.id"
DELIVER_AT = "braid.deliver-at"
"""Milliseconds since 1970 in decimal digits, before which the record is not handed out."""
