"""Loads a pipeline from its file: YAML, or a Python program with decorators."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

from braidmq.spark.pipelines.assembly import assemble
from braidmq.spark.pipelines.builder import PipelineBuilder, is_loading
from braidmq.spark.pipelines.document import parse_yaml
from braidmq.spark.pipelines.mistakes import Notebook, PipelineError, where_it_failed
from braidmq.spark.pipelines.model import Pipeline


def load(path: str | Path, options: Mapping[str, str] | None = None) -> Pipeline:
    """The pipeline of a file; `PipelineMistakes` with every wrong line.

    `options` are for every topic, and win over those at the top of the file.
    """
    file = Path(path)
    if not file.is_file():
        raise PipelineError(f"there is no file {file}; braid pipeline init writes one for you")
    if file.suffix == ".py":
        return _from_program(file, options)
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise PipelineError(f"{file} is not UTF-8 text: {error.reason} at byte {error.start}") from None
    notebook = Notebook(str(file))
    return assemble(parse_yaml(text, notebook), file.parent, notebook, options)


def loads(text: str, directory: Path, file: str = "pipeline.yaml") -> Pipeline:
    """The pipeline a YAML text describes."""
    notebook = Notebook(file)
    return assemble(parse_yaml(text, notebook), directory, notebook)


def _from_program(file: Path, options: Mapping[str, str] | None) -> Pipeline:
    builders = [each for each in vars(load_module(file)).values() if isinstance(each, PipelineBuilder)]
    if len(builders) != 1:
        raise PipelineError(
            f"{file} has {len(builders) or 'no'} pipelines; it must have one: pipe = pipeline('name')"
        )
    return builders[0].build(options)


def load_module(file: Path) -> ModuleType:
    """Imports a Python file as a module; its directory is on the path, as with `python FILE`."""
    directory = str(file.resolve().parent)
    if directory not in sys.path:
        sys.path.insert(0, directory)
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise PipelineError(f"{file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    before = is_loading.set(True)
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise PipelineError(f"{file}:{error.lineno}: {error.msg}") from error
    except PipelineError:
        raise
    except Exception as error:
        raise PipelineError(where_it_failed(error, str(file))) from error
    finally:
        is_loading.reset(before)
    return module
