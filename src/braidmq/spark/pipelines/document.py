"""A pipeline as written: a tree of plain values in which every value knows its line.

YAML files and Python programs both become such a tree, so that one `parser` turns it into the model and every
error can show its line. `${NAME}` and `${NAME:-otherwise}` come from the environment; SQL is left as it is.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from braidmq.spark.pipelines.mistakes import Notebook, PipelineError

FILE_BYTES_MAX = 1_000_000
DEPTH_MAX = 20
Scalar = str | int | float | bool | None
_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")
_PLAIN_TAGS = "tag:yaml.org,2002:"
_NULL = f"{_PLAIN_TAGS}null"
VERBATIM = frozenset({"sql"})
"""Keys whose text may contain ${...} with another meaning."""


@dataclass(frozen=True, slots=True)
class Node:
    """A value and its line. Scalars of a file are strings; Python programs have other types too."""

    line: int
    value: Scalar | list[Node] | dict[str, Node] | Callable[..., Any]

    @classmethod
    def of(cls, value: Any, line: int) -> Node:
        """Plain Python values, all on one line."""
        if isinstance(value, Node):
            return value
        if isinstance(value, Mapping):
            return cls(line, {str(key): cls.of(each, line) for key, each in value.items()})
        if isinstance(value, list | tuple):
            return cls(line, [cls.of(each, line) for each in value])
        return cls(line, value)


def parse_yaml(text: str, notebook: Notebook) -> Node:
    """The tree of a YAML document; an error of YAML is raised with the mistakes so far."""
    try:
        import yaml
    except ImportError:
        raise PipelineError("pipelines need PyYAML; install it with: pip install 'braidmq[spark]'") from None
    if len(text) > FILE_BYTES_MAX:
        raise PipelineError(f"{notebook.file} is larger than {FILE_BYTES_MAX:,} characters")
    try:
        loader = yaml.SafeLoader(text)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        notebook.note(line, f"not YAML: the character U+{error.character:04X} is not allowed")
        notebook.raise_if_any()
        raise
    try:
        root = loader.get_single_node()
        if root is None:
            notebook.note(1, "the file is empty; braid pipeline init shows how a pipeline is written")
            notebook.raise_if_any()
        return _tree(root, notebook, 0)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        notebook.note(line, f"not YAML: {error.problem or error.context}{_hint(text, line, error)}")
        notebook.raise_if_any()
        raise
    except yaml.YAMLError as error:
        notebook.note(1, f"not YAML: {error}")
        notebook.raise_if_any()
        raise
    finally:
        loader.dispose()


def _hint(text: str, line: int, error: Any) -> str:
    """Explains tabs, indents, brackets and unquoted colons, where YAML's own messages do not help."""
    lines = ["", *text.splitlines()]
    written = lines[line] if line < len(lines) else ""
    if "\t" in written:
        return "; indent with spaces, not with tabs"
    begun = error.context_mark.line + 1 if error.context_mark else line
    if "'}'" in str(error.problem) or "']'" in str(error.problem):
        if sum(map(lines[begun].count, "{[")) > sum(map(lines[begun].count, "}]")):
            return f"; the bracket opened on line {begun} is not closed"
    elif "block end" in str(error.problem):
        return f"; its indent differs from that of line {begun}; they must be the same"
    if written.count(": ") > 1:
        return '; quote a text that contains ": ", or write it below a "|"'
    above = next((at for at in range(line - 1, 0, -1) if _says_something(lines[at])), None)
    if above is not None and error.problem == "mapping values are not allowed here":
        if ":" not in lines[above]:
            return f"; line {above} has no colon after its name"
        if _indent(written) > _indent(lines[above]):
            return f"; it is indented further than line {above}, which has a value already"
    return ""


def _says_something(line: str) -> bool:
    return bool(line.strip()) and not line.lstrip().startswith("#")


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _tree(node: Any, notebook: Notebook, depth: int, verbatim: bool = False) -> Node:
    line = node.start_mark.line + 1
    if depth > DEPTH_MAX:
        notebook.note(line, f"nested more than {DEPTH_MAX} levels deep")
        return Node(line, None)
    if node.id == "mapping":
        return Node(line, _mapping(node, notebook, depth))
    if node.id == "sequence":
        return Node(line, [_tree(each, notebook, depth + 1, verbatim) for each in node.value])
    if not node.tag.startswith(_PLAIN_TAGS):
        notebook.note(line, f"the tag {node.tag} is not supported; remove it")
    if node.tag == _NULL:
        return Node(line, None)
    # As a string: YAML would turn the password 0123456 into 42798, and NO into false.
    return Node(line, node.value if verbatim else _filled(node.value, line, notebook))


def _mapping(node: Any, notebook: Notebook, depth: int) -> dict[str, Node]:
    entries: dict[str, Node] = {}
    for key_node, value_node in node.value:
        key, line = str(key_node.value), key_node.start_mark.line + 1
        if key in entries:
            notebook.note(line, f"{key} is given twice")
        # A value has the line of its key: users look for it there.
        entries[key] = Node(line, _tree(value_node, notebook, depth + 1, key in VERBATIM).value)
    return entries


def _filled(text: str, line: int, notebook: Notebook) -> str:
    def value_of(found: re.Match[str]) -> str:
        name, otherwise = found[1], found[2]
        if name not in os.environ and otherwise is None:
            notebook.note(line, f"variable {name} is not set; set it, or write ${{{name}:-otherwise}}")
        return os.environ.get(name, otherwise or "")

    return _VARIABLE.sub(value_of, text)
