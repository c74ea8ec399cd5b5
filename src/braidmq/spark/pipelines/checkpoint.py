"""The directory a pipeline keeps between runs.

    pipeline.json       what the checkpoint was made by (`compatibility`)
    status.json         how the last run stands (`status`)
    schemas/<source>    a schema found by looking at records: found once, then kept
    registry/<source>   the registry id that the values of a source must have, found in the same way
    starts/<source>     where its queries begin, until each has finished its first batch
    queries/<query>/    Spark's own checkpoint of each query

One run at a time: a lock, which the kernel lets go of when its holder dies, keeps a second one out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from braidmq.platform.disk import RealDisk
from braidmq.platform.lock import DirectoryInUse, DirectoryLock
from braidmq.spark.pipelines.mistakes import PipelineError

Offsets = dict[str, dict[str, int]]
"""topic → partition → the next offset to read, as the source writes it."""
_URL = re.compile(r"[a-z][a-z0-9+.-]+:/")


def local_directory(given: Path | str, beside: Path | None = None) -> Path:
    """Where a checkpoint is to be; a URL would silently become a directory of that name."""
    if _URL.match(str(given)):
        raise PipelineError(f"the checkpoint {given} must be a directory of a file system, not a URL")
    return (beside or Path.cwd()) / given


@contextmanager
def holding(directory: Path, others: str) -> Iterator[None]:
    """Keeps others out of a directory; `others` says who they are, and what to do about them."""
    try:
        RealDisk().makedirs(directory)
        lock = DirectoryLock(directory)
    except DirectoryInUse:
        raise PipelineError(f"{directory} is in use by {others}") from None
    except OSError as error:
        raise PipelineError(f"{directory} cannot be written: {error.strerror}") from error
    try:
        yield
    finally:
        lock.release()


class Checkpoint:
    """Files of one version of one pipeline."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._disk = RealDisk()

    def held(self) -> AbstractContextManager[None]:
        """Keeps other runs out until the end of the block."""
        return holding(self.directory, "another run of this pipeline; stop it, or give --checkpoint")

    def query(self, name: str) -> Path:
        """Spark's checkpoint of a query."""
        return self.directory / "queries" / name

    def read(self, name: str) -> dict[str, Any] | None:
        try:
            written = json.loads(self._disk.read_file(self.directory / name))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise PipelineError(f"{self.directory / name} is damaged: {error}") from None
        return written if isinstance(written, dict) else None

    def write(self, name: str, content: dict[str, Any]) -> None:
        text = json.dumps(content, indent=1, default=str)
        self._disk.makedirs((self.directory / name).parent)
        self._disk.write_atomically(self.directory / name, text.encode())

    def schema(self, source: str) -> str | None:
        """The schema found for a source by an earlier run."""
        found = self.read(f"schemas/{source}")
        return found["ddl"] if found else None

    def keep_schema(self, source: str, ddl: str) -> None:
        self.write(f"schemas/{source}", {"ddl": ddl})

    def registry_id(self, source: str) -> int | None:
        """The id in a schema registry that an earlier run found in the values of a source."""
        found = self.read(f"registry/{source}")
        return found["id"] if found else None

    def keep_registry_id(self, source: str, found: int) -> None:
        self.write(f"registry/{source}", {"id": found})

    def start(self, source: str) -> tuple[list[str], Offsets] | None:
        """Where which queries of a source were to begin, as the last run decided that had new ones."""
        kept = self.read(f"starts/{source}")
        return (kept["queries"], kept["offsets"]) if kept else None

    def keep_start(self, source: str, queries: list[str], offsets: Offsets) -> None:
        self.write(f"starts/{source}", {"queries": queries, "offsets": offsets})

    def has_begun(self, query: str) -> bool:
        """Whether a batch of the query has been planned; until then its checkpoint binds nobody."""
        planned = self.query(query) / "offsets"
        return planned.is_dir() and any(file.name.isdigit() for file in planned.iterdir())

    def positions(self, query: str) -> list[Offsets | None]:
        """The offsets of a query's sources after its last finished batch, in Spark's order; [] before one."""
        batch = self.last_batch(query)
        if batch is None:
            return []
        # The log of offsets: a line with its format, one with metadata, then one for each source.
        lines = (self.query(query) / "offsets" / str(batch)).read_text().splitlines()[2:]
        return [_offsets(line) for line in lines]

    def last_batch(self, query: str) -> int | None:
        """The number of the last batch that was finished."""
        done = self.query(query) / "commits"
        numbers = [int(file.name) for file in done.iterdir() if file.name.isdigit()] if done.is_dir() else []
        planned = self.query(query) / "offsets"
        return max((number for number in numbers if (planned / str(number)).is_file()), default=None)


def _offsets(line: str) -> Offsets | None:
    """A source's offsets, where they are those of topics."""
    try:
        found = json.loads(line)
    except ValueError:
        return None
    if not isinstance(found, dict) or not all(isinstance(each, dict) for each in found.values()):
        return None
    return found
