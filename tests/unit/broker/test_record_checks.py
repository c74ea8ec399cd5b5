"""Batches that are refused for single records: which of them are named."""

from __future__ import annotations

import pytest

from braidmq.broker.batch_preparation import BatchPreparer
from braidmq.config import configure
from braidmq.wire.compress import Codec
from braidmq.wire.errors import ErrorCode, RecordsRefused
from braidmq.wire.records import build_batch

NOW_MS = 1_700_000_000_000
DAY_MS = 86_400_000


@pytest.mark.parametrize(("codec", "named"), [(Codec.NONE, [1]), (Codec.ZSTD, []), (Codec.GZIP, [])])
def test_records_of_a_wrong_time_are_named_unless_they_would_have_to_be_inflated(
    codec: Codec, named: list[int]
) -> None:
    """P5 W5: a small batch may hold a hundred megabytes, which the loop must not inflate to refuse them."""
    times = (NOW_MS, NOW_MS + 10 * DAY_MS)
    batch = build_batch([(None, b"v", [], time_ms) for time_ms in times], codec)
    form = BatchPreparer(configure({}).topic({"message.timestamp.after.max.ms": str(DAY_MS)}))
    with pytest.raises(RecordsRefused) as refused:
        form.prepare("t-0", memoryview(bytearray(batch)), NOW_MS)
    assert refused.value.code is ErrorCode.INVALID_TIMESTAMP
    assert [record.at for record in refused.value.records] == named
