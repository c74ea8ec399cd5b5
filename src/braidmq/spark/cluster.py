"""The cluster that a job's driver asks for topics, offsets and groups, with the settings of its tasks."""

from __future__ import annotations

from collections.abc import Mapping

from braidmq.client.cluster import Cluster
from braidmq.client.connection import TIMEOUT_S
from braidmq.client.settings import SettingError, connect
from braidmq.spark.options import READ_OPTIONS, OptionError, Options
from braidmq.spark.sink.options import SINK_OPTIONS

CLIENT_ID = "braid-spark"
WHAT = 'format("braid")'


def open_cluster(
    bootstrap: str, options: Mapping[str, str], client_id: str = CLIENT_ID, timeout_s: float = TIMEOUT_S
) -> Cluster:
    """A client with the security settings among the options of `format("braid")`; it connects on first use.

    Options for reading and writing are allowed and ignored here. OptionError for an unknown option or a
    wrong value.
    """
    given = Options(options, (*READ_OPTIONS, *SINK_OPTIONS), WHAT)
    try:
        return connect(bootstrap, given.client_settings(), client_id=client_id, timeout_s=timeout_s)
    except SettingError as error:
        raise OptionError(str(error)) from None
