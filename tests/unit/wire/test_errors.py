"""The two severities of error, and the table of codes."""

from __future__ import annotations

import pytest

from braidmq.wire.errors import ApiError, ErrorCode, ProtocolError


def test_codes_have_no_holes() -> None:
    """W1: -1, then every number up to the newest code."""
    assert sorted(ErrorCode) == list(range(-1, max(ErrorCode) + 1))


def test_clients_retry_what_may_pass_and_not_what_will_not() -> None:
    """P4: a moved leader is worth another try, an oversized message is not."""
    assert ErrorCode.NOT_LEADER_OR_FOLLOWER.retriable
    assert ErrorCode.KAFKA_STORAGE_ERROR.retriable
    assert not ErrorCode.MESSAGE_TOO_LARGE.retriable
    assert not ErrorCode.NONE.retriable


def test_an_api_error_carries_its_code_and_says_it() -> None:
    """P5: the text a user sees names the code and what was wrong."""
    error = ApiError(ErrorCode.MESSAGE_TOO_LARGE, "batch of 9 bytes, at most 8 are taken")
    assert (error.code, error.message) == (10, "batch of 9 bytes, at most 8 are taken")
    assert str(error) == "MESSAGE_TOO_LARGE: batch of 9 bytes, at most 8 are taken"
    assert str(ApiError(ErrorCode.NOT_CONTROLLER)) == "NOT_CONTROLLER"


def test_an_answer_and_a_hang_up_are_not_confused() -> None:
    """W5: code that catches one severity does not catch the other."""
    assert not issubclass(ProtocolError, ApiError)
    assert not issubclass(ApiError, ProtocolError)
    with pytest.raises(ProtocolError):
        raise ProtocolError("bytes")
