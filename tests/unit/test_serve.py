"""Running a broker process: how few files it can do with."""

from __future__ import annotations

import pytest

from braidmq.config import ConfigError, configure
from braidmq.serve import share_files


def shared(files_max: int, **options: object) -> tuple[int, int]:
    given = {name.replace("_", "."): value for name, value in options.items()}
    config = share_files(configure(given), files_max)
    return config.net_connections_max, config.log_files_open_max


def test_with_files_in_plenty_nothing_is_changed() -> None:
    """W1 L12: the options count as they are given."""
    config = configure({})
    assert share_files(config, 1 << 20) is not None
    assert shared(1 << 20) == (config.net_connections_max, config.log_files_open_max)


@pytest.mark.parametrize("files_max", [128, 256, 1024, 1088, 4096])
def test_a_low_hard_limit_is_shared_by_connections_and_segments(
    files_max: int, caplog: pytest.LogCaptureFixture
) -> None:
    """W1 L12: neither starves, both fit, and the log says so."""
    connections, segments = shared(files_max)
    assert connections + segments <= files_max - 64
    assert min(connections, segments) >= min(configure({}).log_files_open_max, (files_max - 64) // 2)
    assert f"may open {files_max} files" in caplog.text


def test_who_wants_fewer_leaves_the_rest_to_the_other() -> None:
    """W1 L12: ten connections do not take half of the files."""
    assert shared(1024, net_connections_max=10) == (10, 950)
    assert shared(1024, log_files_open_max=100) == (860, 100)


def test_too_few_files_to_serve_anybody_are_refused_with_the_reason() -> None:
    """W1: a broker that could hold one connection does not start."""
    with pytest.raises(ConfigError, match="may open 100 files but needs 128"):
        shared(100)
