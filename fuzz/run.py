"""Runs the fuzzers: `fuzz/run.py --seconds 60 [--target frames|batches|messages] [--engine atheris|random]`.

With atheris installed inputs are guided by the code they reach; without, sound inputs are damaged at random,
from a printed seed. A finding is written to `fuzz/findings`; `fuzz/run.py --target frames FILE …` runs inputs
once, to look into one. The input of a finding that was fixed moves to `fuzz/corpus`, which the tests replay.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import logging
import random
import re
import resource
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(ROOT / "src")]

# Nothing of Braid is imported up here: atheris must see its first import, to instrument what it guides by.
TARGETS = ("batches", "messages", "frames")
CORPUS = ROOT / "fuzz" / "corpus"
FINDINGS = ROOT / "fuzz" / "findings"
LEARNED = ROOT / "build" / "fuzz"
GROWTH_MIB_MAX = 96
REPORT_S = 10.0


def load(target: str) -> object:
    """The function to be fuzzed; imported late, because a broker is not needed for batches."""
    if target == "frames":
        from fuzz.broker import frames

        return frames
    from fuzz import targets

    return getattr(targets, target)


def corpus(target: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((CORPUS / target).iterdir())}


def attempt(target: str, content: bytes) -> str | None:
    """None when all promises held, else the traceback of what broke."""
    function = load(target)
    assert callable(function)
    try:
        function(content)
    except Exception:
        return traceback.format_exc()
    return None


def keep(target: str, content: bytes, what: str) -> Path:
    """Writes a finding where it can be run again."""
    FINDINGS.mkdir(parents=True, exist_ok=True)
    path = FINDINGS / f"{target}-{hashlib.sha256(content).hexdigest()[:16]}"
    path.write_bytes(content)
    print(f"{target}: a promise is broken by {path.relative_to(ROOT)}\n{what}", flush=True)
    return path


def run_random(target: str, seconds: float, seed: int) -> int:
    """Damages seeds until the time is over; the number of findings, at most one per kind of error."""
    chance = random.Random(seed)
    make = _maker(target, chance)
    kinds: set[str] = set()
    cases = 0
    started = reported = time.monotonic()
    before_mib = peak_mib()
    while (now := time.monotonic()) - started < seconds:
        content = make()
        cases += 1
        broken = attempt(target, content)
        if broken is None and peak_mib() - before_mib > GROWTH_MIB_MAX:
            broken = f"memory grew by more than {GROWTH_MIB_MAX} MiB"
            before_mib = peak_mib()
        if broken is not None and (kind := re.sub(r"-?\d+", "", broken.splitlines()[-1])) not in kinds:
            kinds.add(kind)
            keep(target, content, broken)
        if now - reported > REPORT_S:
            reported = now
            print(f"{target}: {cases} inputs, {len(kinds)} findings", flush=True)
    grown = peak_mib() - before_mib
    print(
        f"{target}: {cases} inputs in {seconds:.0f} s, {len(kinds)} findings, {grown} MiB more (seed {seed})"
    )
    return len(kinds)


def _maker(target: str, chance: random.Random) -> Callable[[], bytes]:
    """What makes the next input: damage for all, and for frames also well-formed, strange requests."""
    from fuzz.mutate import mutated, reframed

    seeds = list(corpus(target).values())
    if target != "frames":
        return lambda: mutated(chance, seeds)
    from fuzz.broker import SERVED
    from fuzz.invent import request

    def stream() -> bytes:
        strange = [request(chance, SERVED) for _ in range(chance.choice((0, 1, 1, 2, 4)))]
        damaged = reframed(chance, strange or seeds) if not strange or chance.random() < 0.3 else b""
        return b"".join(strange) + damaged

    return stream


def peak_mib() -> int:
    """The most memory this process ever held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def run_guided(target: str, seconds: float) -> int:
    """A process of its own for atheris, which ends the process it runs in."""
    learned = LEARNED / target
    learned.mkdir(parents=True, exist_ok=True)
    FINDINGS.mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable, str(Path(__file__)), "--guided", target, f"-max_total_time={max(1, round(seconds))}",
        f"-artifact_prefix={FINDINGS}/{target}-", "-max_len=16384", "-rss_limit_mb=512", "-timeout=30",
        "-print_final_stats=1", str(learned), str(CORPUS / target),
    ]  # fmt: skip
    return 1 if subprocess.run(command, check=False).returncode else 0


def guided(target: str, arguments: Sequence[str]) -> None:
    """Inside that process: everything of ours is instrumented as it is imported."""
    import atheris

    with atheris.instrument_imports(include=["braidmq"]):
        function = load(target)
    atheris.Setup([sys.argv[0], *arguments], function)
    atheris.Fuzz()


def main() -> int:
    if sys.argv[1:2] == ["--guided"]:
        guided(sys.argv[2], sys.argv[3:])
        return 0
    parser = argparse.ArgumentParser(description="Fuzzes what reads bytes from outside.")
    parser.add_argument("--seconds", type=float, default=60, help="time in all, shared by the targets")
    parser.add_argument("--target", choices=TARGETS, action="append", help="which ones; all by default")
    parser.add_argument("--engine", choices=("auto", "atheris", "random"), default="auto")
    parser.add_argument("--seed", type=int, help="of the random engine; a new one each time by default")
    parser.add_argument("--write-seeds", action="store_true", help="write the sound inputs and stop")
    parser.add_argument("inputs", nargs="*", type=Path, help="run these files once instead")
    options = parser.parse_args()
    targets = options.target or TARGETS
    # Refusals are what is wanted here; only errors matter, and they are findings.
    logging.getLogger("braid").setLevel(logging.ERROR)
    logging.getLogger("braid").propagate = False
    if options.write_seeds:
        from fuzz.seeds import write

        print(f"{write()} seeds written")
        return 0
    if options.inputs:
        broken = [attempt(target, path.read_bytes()) for target in targets for path in options.inputs]
        print("\n".join(filter(None, broken)) or "all promises held")
        return 1 if any(broken) else 0
    engine = options.engine
    if engine == "auto":
        engine = "atheris" if importlib.util.find_spec("atheris") else "random"
    share = options.seconds / len(targets)
    seed = random.SystemRandom().randrange(2**32) if options.seed is None else options.seed
    if engine == "atheris":
        findings = sum(run_guided(target, share) for target in targets)
    else:
        findings = sum(run_random(target, share, seed) for target in targets)
    if "frames" in targets and engine == "random":
        from fuzz.broker import close

        close()
    return 1 if findings else 0


if __name__ == "__main__":
    raise SystemExit(main())
