"""Starter files for `braid pipeline init`, with comments; each runs as it is."""

from __future__ import annotations

import re
from importlib import resources

from braidmq.spark.pipelines.mistakes import PipelineError, suggestion

_FILES = resources.files("braidmq.spark.pipelines") / "templates"


def names() -> dict[str, str]:
    """Each template with its purpose, which is its first line."""
    found = {}
    for file in sorted(_FILES.iterdir(), key=lambda each: each.name):
        if file.name.endswith(".yaml"):
            first = file.read_text(encoding="utf-8").splitlines()[0]
            found[file.name.removesuffix(".yaml")] = first.removeprefix("# ")
    return found


def fill(template: str, name: str, topic: str, bootstrap: str) -> str:
    """A template with the user's names."""
    if template not in names():
        raise PipelineError(f"there is no template {template}{suggestion(template, names())}")
    text = (_FILES / f"{template}.yaml").read_text(encoding="utf-8")
    words = {"NAME": name, "TOPIC": topic, "BOOTSTRAP": bootstrap}
    return re.sub(r"\b(NAME|TOPIC|BOOTSTRAP)\b", lambda found: words[found[1]], text)
