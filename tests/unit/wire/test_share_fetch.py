"""The answer to ShareFetch written by hand is what the generated codec writes."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given, settings

from braidmq.wire import header, share_fetch
from braidmq.wire.api import Api
from braidmq.wire.messages.share_fetch import ShareFetchResponse
from braidmq.wire.schema import encode
from unit.wire.drawn import messages

VERSIONS = range(ShareFetchResponse.versions[0], ShareFetchResponse.versions[1] + 1)


@dataclass
class Range:
    """A range of a file, as far as the encoder is concerned."""

    content: bytes

    @property
    def size(self) -> int:
        return len(self.content)


@settings(max_examples=60, deadline=None)
@given(response=messages(ShareFetchResponse))
def test_responses_are_the_bytes_of_the_generated_codec(response: ShareFetchResponse) -> None:
    """W1 W3: with the records of each partition in two ranges, or none."""
    response.node_endpoints = []
    records = {}
    seen = set()
    for topic in response.responses:
        topic.partitions = [
            part for part in topic.partitions
            if (topic.topic_id, part.partition_index) not in seen
            and not seen.add((topic.topic_id, part.partition_index))  # type: ignore[func-returns-value]
        ]  # fmt: skip
        for part in topic.partitions:
            content = bytes(part.records)
            halves = (content[: len(content) // 2], content[len(content) // 2 :])
            records[topic.topic_id, part.partition_index] = [Range(half) for half in halves if half]
    for version in VERSIONS:
        expected = header.response_frame(Api.SHARE_FETCH, version, 7, encode(response, version))
        parts = share_fetch.encode_response(7, response, records)
        assert b"".join(part.content if isinstance(part, Range) else part for part in parts) == expected  # type: ignore[misc]
