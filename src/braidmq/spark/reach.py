"""The cluster that a job's driver asks for topics, offsets and groups, reached the way its tasks reach it."""

from __future__ import annotations

from collections.abc import Mapping

from braidmq.client.cluster import Cluster
from braidmq.client.connection import TIMEOUT_S
from braidmq.client.settings import SettingError, connect
from braidmq.spark.options import READ_OPTIONS, OptionError, Options
from braidmq.spark.sink_options import SINK_OPTIONS

CLIENT_ID = "braid-spark"
WHAT = 'format("braid")'


def reach(
    bootstrap: str, options: Mapping[str, str], client_id: str = CLIENT_ID, timeout_s: float = TIMEOUT_S
) -> Cluster:
    """With the security that options of `format("braid")` describe; nothing is sent before a question.

    Options about reading and writing may be among them, and are left to readers and writers. OptionError
    where one means nothing, or cannot be.
    """
    given = Options(options, (*READ_OPTIONS, *SINK_OPTIONS), WHAT)
    try:
        return connect(bootstrap, given.client_settings(), client_id=client_id, timeout_s=timeout_s)
    except SettingError as error:
        raise OptionError(str(error)) from None
