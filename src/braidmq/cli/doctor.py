"""`braid doctor`: is everything on disk what it was when it was written?

It reads every segment, index, checkpoint and snapshot, and the metadata store, of a stopped broker. Only
--repair and --adopt change anything; they print what they do file by file, and which records are lost.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from braidmq.cli.cluster_transfer import TokenFile
from braidmq.cli.mistake import UserMistake
from braidmq.cli.options import Yes, confirm
from braidmq.cli.output import AsJson, print_json

if TYPE_CHECKING:
    from braidmq.cluster.node_file import NodeFile
    from braidmq.log.doctor import Finding
    from braidmq.platform.lock import DirectoryLock

EXIT_DAMAGED = 1
METADATA = ("metadata.store", "metadata.journal")
"""Today's name, and that of release 0.x."""
EXAMPLES = (
    "braid doctor braid-data",
    "braid doctor braid-data --repair",
    "braid doctor braid-data --adopt orders",
    "braid doctor braid-data --store etcd://etcd1:2379",
)


class Report(NamedTuple):
    """What was found in one place of the data directory, what was done, and what is still wrong."""

    place: str
    findings: list[Finding]
    deeds: list[str]
    left: list[Finding]


def doctor(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The broker's data directory.")],
    repair: Annotated[
        bool, typer.Option("--repair", help="Repair what can be repaired; damaged records are removed.")
    ] = False,
    adopt: Annotated[
        list[str] | None,
        typer.Option(
            "--adopt",
            metavar="NAME",
            help="Bring back a topic that is missing from the metadata; all: every one. May repeat.",
        ),
    ] = None,
    replace: Annotated[
        bool,
        typer.Option("--replace", help="With --adopt: set aside an existing topic of the same name."),
    ] = False,
    adopt_as: Annotated[
        str | None, typer.Option("--adopt-as", metavar="NAME", help="With --adopt: use another name.")
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(
            "--store", metavar="URL", help="The metadata store of the cluster that the directory belongs to."
        ),
    ] = None,
    token_file: TokenFile = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Verify every segment, index and checkpoint of a stopped broker; --repair repairs them.

    Directories of topics that are missing from the metadata are kept and reported; --adopt brings them back.
    --repair and --replace ask first.

    The directory of a broker in a cluster is compared with the metadata if --store says where that is; other
    brokers that are down, clocks that differ and dangerous versions of etcd are reported as warnings.

    Exit code 0: nothing is wrong, or all of it was repaired. 1: something is still damaged.
    """
    lock = _lock(directory)
    try:
        if repair or (adopt and replace):
            confirm(yes, f"Change files in {directory}? Copy the directory first if you can.")
        found = _examine_shared(directory, store, token_file, bool(adopt))
        reports = found.reports or _examine_own(directory, repair, adopt, adopt_as, replace)
        partitions = _partitions(directory)
        for path in _with_progress(partitions, "repairing" if repair else "verifying", as_json):
            reports.append(_examine_partition(directory, path, repair))
    finally:
        lock.release()
    if as_json:
        print_json({**_as_json(directory, len(partitions), reports), **found.for_json()})
    else:
        for line in found.lines():
            print(line)
        _print(len(partitions), reports, repair)
    if any(report.left for report in reports):
        raise typer.Exit(EXIT_DAMAGED)


class Shared(NamedTuple):
    """What was found about the cluster that a directory belongs to; nothing if it has its own store."""

    reports: list[Report]
    node: NodeFile | None = None
    warnings: Sequence[str] = ()

    def for_json(self) -> dict[str, Any]:
        if self.node is None:
            return {}
        belongs = {"name": self.node.cluster_name, "id": self.node.cluster_id, "node": self.node.node_id}
        return {"cluster": belongs, "warnings": list(self.warnings)}

    def lines(self) -> Iterator[str]:
        if self.node is not None:
            yield f"node {self.node.node_id} of cluster {self.node.cluster_name}, id {self.node.cluster_id}"
        yield from (f"warning: {warning}" for warning in self.warnings)


def _examine_shared(directory: Path, store: str | None, token_file: Path | None, adopting: bool) -> Shared:
    from braidmq.cli import doctor_cluster
    from braidmq.cli.store_access import shared_store

    node = doctor_cluster.shared_node(directory)
    if node is None:
        if store is not None:
            raise UserMistake(f"{directory} has metadata of its own; --store is for a broker of a cluster")
        return Shared([])
    if adopting:
        raise UserMistake("--adopt needs metadata of one's own; this directory belongs to a cluster")
    if store is None:
        url = shared_store(directory) or "URL"
        hint = f"the metadata is in the cluster's store; --store {url} compares this directory with it"
        return Shared([Report(".", [], [], [])], node, [hint])
    check = doctor_cluster.examine(directory, node, store, token_file)
    return Shared([Report("topics", check.findings, [], check.findings)], node, check.warnings)


def _examine_own(
    directory: Path, repair: bool, adopt: list[str] | None, adopt_as: str | None, replace: bool
) -> list[Report]:
    from braidmq.cli.doctor_metadata import adopt as bring_back
    from braidmq.cli.doctor_metadata import examine_directories, examine_store

    reports = [Report(".", *examine_store(directory, repair, adopting=bool(adopt)))]
    deeds = bring_back(directory, adopt, adopt_as, replace) if adopt else []
    unknown = [] if reports[0].left else examine_directories(directory)
    return [*reports, Report("topics", unknown, deeds, unknown)]


def _lock(directory: Path) -> DirectoryLock:
    """Makes sure that this is a broker's directory and that the broker is stopped."""
    from braidmq.platform.lock import DirectoryInUse, DirectoryLock

    if not directory.is_dir():
        raise UserMistake(f"{directory} is not a directory")
    if not any((directory / name).exists() for name in (*METADATA, "topics")):
        raise UserMistake(f"{directory} is not a data directory; give the one of braid serve --data")
    try:
        return DirectoryLock(directory)
    except DirectoryInUse:
        raise UserMistake(f"{directory} is in use by a broker; stop it first") from None


def _partitions(directory: Path) -> list[Path]:
    """Directories of partitions, except those of deleted topics that are still to be removed.

    One that has lost all its segments still has its checkpoint.
    """
    root = directory / "topics"
    found = {path.parent for name in ("*.log", "checkpoint") for path in root.rglob(name)}
    return sorted(
        path for path in found if not any(part.endswith(".deleted") for part in path.relative_to(root).parts)
    )


def _examine_partition(directory: Path, path: Path, repair: bool) -> Report:
    from braidmq.log.doctor import repair as repair_partition
    from braidmq.log.doctor import verify
    from braidmq.platform.disk import RealDisk

    disk = RealDisk()
    findings = verify(disk, path)
    deeds, left = [], findings
    if repair and findings:
        deeds = repair_partition(disk, path)
        left = verify(disk, path)
    return Report(str(path.relative_to(directory)), findings, deeds, left)


def _with_progress(partitions: list[Path], doing: str, as_json: bool) -> Iterator[Path]:
    if as_json or not sys.stderr.isatty():
        yield from partitions
        return
    from rich.console import Console
    from rich.progress import track

    yield from track(partitions, doing, console=Console(stderr=True), transient=True)


def _as_json(directory: Path, partitions: int, reports: list[Report]) -> dict[str, Any]:
    def rows(kind: str) -> list[dict[str, Any]]:
        return [{"place": each.place, **at._asdict()} for each in reports for at in getattr(each, kind)]

    return {
        "directory": str(directory),
        "partitions": partitions,
        "findings": rows("findings"),
        "repaired": [{"place": each.place, "what": deed} for each in reports for deed in each.deeds],
        "left": rows("left"),
    }


def _print(partitions: int, reports: list[Report], repair: bool) -> None:
    found = sum(len(report.findings) for report in reports)
    left = sum(len(report.left) for report in reports)
    for report in reports:
        for at in report.findings:
            print(f"{report.place}/{at.file}: byte {at.byte}: {at.what}")
        for deed in report.deeds:
            print(f"{report.place}: repaired: {deed}")
        for at in report.left if repair else ():
            print(f"{report.place}/{at.file}: still wrong: {at.what}")
    if not found:
        print(f"{partitions} partitions verified, nothing is wrong")
    elif not repair:
        print(f"{found} findings in {partitions} partitions; --repair repairs what can be repaired")
    else:
        print(f"{found} findings, {left} left")
