"""Which failures reach the driver without a traceback, and which of those may pass."""

from __future__ import annotations

import os

import pytest

from braidmq.client import TimedOut, Unreachable
from braidmq.client.cluster import TopicPartition
from braidmq.client.errors import AuthenticationFailed, ClientError
from braidmq.spark.errors import WITHOUT_TRACEBACK, without_traceback
from braidmq.spark.options import OptionError
from braidmq.spark.sink.columns import RowError
from braidmq.spark.sink.ledger import SinkInterrupted, sink_error
from braidmq.spark.source.data_loss import RecordsLost
from braidmq.spark.source.timestamps import TimestampTooLarge
from braidmq.wire.errors import ApiError, ErrorCode


@pytest.mark.parametrize(
    ("failure", "is_plain"),
    [
        (OptionError("no such option"), True),
        (RecordsLost(TopicPartition("orders", 0), 1, 2), True),
        (RowError("too large"), True),
        (TimestampTooLarge(TopicPartition("orders", 0), 1), True),
        (Unreachable("away"), True),
        (ApiError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "no"), True),
        (ZeroDivisionError("a defect"), False),
        (KeyError("a defect"), False),
    ],
)
def test_a_traceback_is_left_out_where_the_message_is_the_whole_story(
    failure: Exception, is_plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S1 S3: and kept where somebody has to look for a mistake in a program."""
    monkeypatch.setenv(WITHOUT_TRACEBACK, "")
    with pytest.raises(type(failure)), without_traceback():
        raise failure
    assert bool(os.environ[WITHOUT_TRACEBACK]) == is_plain


@pytest.mark.parametrize(
    ("cause", "may_pass"),
    [
        (Unreachable("away"), True),
        (TimedOut("slow"), True),
        (ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "moved"), True),
        (ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "none"), False),
        (ApiError(ErrorCode.MESSAGE_TOO_LARGE, "large"), False),
        (AuthenticationFailed("who are you"), False),
        (ClientError("what"), False),
    ],
)
def test_a_write_is_interrupted_by_what_may_pass(cause: ApiError | ClientError, may_pass: bool) -> None:
    """S3 S4: a runner tries that again, and nothing else."""
    assert isinstance(sink_error(cause, "text"), SinkInterrupted) == may_pass
