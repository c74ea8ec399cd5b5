"""`braid doctor`: is everything on disk what it was when it was written?

It reads every segment, index and checkpoint of a broker that is stopped. Without --repair nothing is changed.
What a repair does is told file by file, and where records are lost, which ones.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from braidmq.cli.mistake import UserMistake
from braidmq.cli.options import AsJson
from braidmq.cli.output import print_json

if TYPE_CHECKING:
    from braidmq.log.doctor import Finding
    from braidmq.platform.lock import DirectoryLock

EXIT_DAMAGED = 1


def doctor(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The broker's data directory.")],
    repair: Annotated[bool, typer.Option("--repair", help="Mend what can be mended.")] = False,
    as_json: AsJson = False,
) -> None:
    """Verify every segment, index and checkpoint of a stopped broker; mend them with --repair.

    Exit code 0: nothing is wrong, or all of it was mended. 1: something is damaged.

    Examples: braid doctor braid-data · braid doctor braid-data --repair --json
    """
    lock = _lock(directory)
    from braidmq.log import doctor as log_doctor
    from braidmq.platform.disk import RealDisk

    disk = RealDisk()
    partitions = _partitions(directory)
    found: list[tuple[Path, Finding]] = []
    done: list[tuple[Path, str]] = []
    for path in _with_progress(partitions, "mending" if repair else "verifying", as_json):
        findings = log_doctor.verify(disk, path)
        found += [(path, finding) for finding in findings]
        if repair and findings:
            done += [(path, deed) for deed in log_doctor.repair(disk, path)]
    lock.release()
    damaged = bool(found) and not repair
    if as_json:
        print_json(_as_json(directory, partitions, found, done))
    else:
        _print(directory, partitions, found, done)
    if damaged:
        raise typer.Exit(EXIT_DAMAGED)


def _lock(directory: Path) -> DirectoryLock:
    """Makes sure that this is a broker's directory and that the broker is stopped."""
    from braidmq.platform.lock import DirectoryInUse, DirectoryLock

    if not directory.is_dir():
        raise UserMistake(f"{directory} is not a directory")
    if not (directory / "metadata.journal").exists():
        raise UserMistake(f"{directory} holds no broker's data; give the directory of braid serve --data")
    try:
        return DirectoryLock(directory)
    except DirectoryInUse:
        raise UserMistake(f"{directory} is in use by a broker; stop it first") from None


def _partitions(directory: Path) -> list[Path]:
    """Directories with segments in them, without those of deleted topics that wait to be removed."""
    found = {path.parent for path in (directory / "topics").rglob("*.log")}
    return sorted(path for path in found if not any(part.endswith(".deleted") for part in path.parts))


def _with_progress(partitions: list[Path], doing: str, as_json: bool) -> Iterator[Path]:
    if as_json or not sys.stderr.isatty():
        yield from partitions
        return
    from rich.console import Console
    from rich.progress import track

    yield from track(partitions, doing, console=Console(stderr=True), transient=True)


def _as_json(
    directory: Path, partitions: list[Path], found: list[tuple[Path, Finding]], done: list[tuple[Path, str]]
) -> dict[str, Any]:
    return {
        "directory": str(directory),
        "partitions": len(partitions),
        "findings": [
            {"partition": str(path.relative_to(directory)), "file": at.file, "byte": at.byte, "what": at.what}
            for path, at in found
        ],
        "repaired": [{"partition": str(path.relative_to(directory)), "what": deed} for path, deed in done],
    }


def _print(
    directory: Path, partitions: list[Path], found: list[tuple[Path, Finding]], done: list[tuple[Path, str]]
) -> None:
    for path, at in found:
        print(f"{path.relative_to(directory)}/{at.file}: byte {at.byte}: {at.what}")
    for path, deed in done:
        print(f"{path.relative_to(directory)}: {deed}")
    if not found:
        print(f"{len(partitions)} partitions verified, nothing is wrong")
    elif not done:
        print(f"{len(found)} findings in {len(partitions)} partitions; --repair mends what can be mended")
