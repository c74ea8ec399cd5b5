"""kcat, the command-line client, where it is installed (Debian: `apt install kcat`)."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest
from tests.compat.samples import CODECS

KCAT = shutil.which("kcat") or shutil.which("kafkacat")
WAIT_S = 30

pytestmark = pytest.mark.skipif(KCAT is None, reason="kcat is not installed (Debian: apt install kcat)")


def kcat(bootstrap: str, *arguments: str, stdin: str = "") -> str:
    assert KCAT is not None
    done = subprocess.run(
        [KCAT, "-b", bootstrap, *arguments], input=stdin, capture_output=True, text=True, timeout=WAIT_S
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("codec", CODECS)
def test_lines_piped_in_come_out_with_key_and_header(bootstrap: str, topic: str, codec: str) -> None:
    """F1 P5: produce from stdin and read back with every codec."""
    lines = "".join(f"key{number}:value {number}\n" for number in range(50))
    produce = ("-P", "-t", topic, "-p", "0", "-K:", "-z", codec, "-H", "source=pipe")
    kcat(bootstrap, *produce, stdin=lines)
    out = kcat(bootstrap, "-C", "-t", topic, "-p", "0", "-o", "beginning", "-e", "-q", "-f", "%o %k:%s %h\n")
    assert out.splitlines() == [f"{number} key{number}:value {number} source=pipe" for number in range(50)]


def test_reading_from_an_offset_and_from_the_end(bootstrap: str, topic: str) -> None:
    """C7: -o with an offset, and relative to the end."""
    kcat(bootstrap, "-P", "-t", topic, "-p", "0", stdin="a\nb\nc\nd\n")
    read = ("-C", "-t", topic, "-p", "0", "-e", "-q", "-o")
    assert kcat(bootstrap, *read, "2").split() == ["c", "d"]
    assert kcat(bootstrap, *read, "-1").split() == ["d"]


def test_the_metadata_lists_broker_and_topic(bootstrap: str, topic: str) -> None:
    """F1: -L."""
    listed = json.loads(kcat(bootstrap, "-L", "-J", "-t", topic))
    assert [broker["name"] for broker in listed["brokers"]] == [bootstrap]
    assert len(listed["topics"][0]["partitions"]) == 2


def test_an_offset_is_found_by_time(bootstrap: str, topic: str) -> None:
    """C7: -Q with a timestamp."""
    kcat(bootstrap, "-P", "-t", topic, "-p", "0", stdin="a\nb\n")
    assert kcat(bootstrap, "-Q", "-t", f"{topic}:0:1").strip().endswith("offset 0")
