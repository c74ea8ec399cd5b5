"""The directory that a pipeline keeps between runs.

    pipeline.json       the pipeline that made the checkpoint (`compatibility`)
    status.json         the status of the last run (`status`)
    schemas/<source>    a schema that was inferred from records: inferred once, then kept
    registry/<source>   the registry id that the values of a source must have, found in the same way
    starts/<source>     where its queries begin, until each has finished its first batch
    queries/<query>/    Spark's own checkpoint of each query

One run at a time: a lock keeps a second one out; the kernel releases it when its holder dies.
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
    """The directory of a checkpoint; a URL is an error, since it would become a directory of that name."""
    if _URL.match(str(given)):
        raise PipelineError(f"the checkpoint {given} must be a directory, not a URL")
    return (beside or Path.cwd()) / given


@contextmanager
def holding(directory: Path, others: str) -> Iterator[None]:
    """Locks a directory; `others` says in an error who holds it, and what to do."""
    try:
        RealDisk().makedirs(directory)
        lock = DirectoryLock(directory)
    except DirectoryInUse:
        raise PipelineError(f"{directory} is in use by {others}") from None
    except OSError as error:
        raise PipelineError(f"cannot write {directory}: {error.strerror}") from error
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
        """Keeps other runs out during the block."""
        return holding(self.directory, "another run of this pipeline; stop it, or use another --checkpoint")

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
        """The schema of a source that an earlier run inferred."""
        found = self.read(f"schemas/{source}")
        return found["ddl"] if found else None

    def keep_schema(self, source: str, ddl: str) -> None:
        self.write(f"schemas/{source}", {"ddl": ddl})

    def registry_id(self, source: str) -> int | None:
        """The schema registry id that an earlier run found in the values of a source."""
        found = self.read(f"registry/{source}")
        return found["id"] if found else None

    def keep_registry_id(self, source: str, found: int) -> None:
        self.write(f"registry/{source}", {"id": found})

    def start(self, source: str) -> tuple[list[str], Offsets] | None:
        """Where the new queries of a source begin, from the last run that had new ones."""
        kept = self.read(f"starts/{source}")
        return (kept["queries"], kept["offsets"]) if kept else None

    def keep_start(self, source: str, queries: list[str], offsets: Offsets) -> None:
        self.write(f"starts/{source}", {"queries": queries, "offsets": offsets})

    def has_begun(self, query: str) -> bool:
        """Whether a batch of the query was planned; before that, its checkpoint does not matter."""
        planned = self.query(query) / "offsets"
        return planned.is_dir() and any(file.name.isdigit() for file in planned.iterdir())

    def positions(self, query: str) -> list[Offsets | None]:
        """The offsets of a query's sources after its last finished batch, in Spark's order; else []."""
        batch = self.last_batch(query)
        if batch is None:
            return []
        # The file has a line with its format, one with metadata, then one for each source.
        lines = (self.query(query) / "offsets" / str(batch)).read_text().splitlines()[2:]
        return [_offsets(line) for line in lines]

    def last_batch(self, query: str) -> int | None:
        """The number of the last finished batch."""
        done = self.query(query) / "commits"
        numbers = [int(file.name) for file in done.iterdir() if file.name.isdigit()] if done.is_dir() else []
        planned = self.query(query) / "offsets"
        return max((number for number in numbers if (planned / str(number)).is_file()), default=None)


def _offsets(line: str) -> Offsets | None:
    """A source's offsets, if they are those of topics."""
    try:
        found = json.loads(line)
    except ValueError:
        return None
    if not isinstance(found, dict) or not all(isinstance(each, dict) for each in found.values()):
        return None
    return found
