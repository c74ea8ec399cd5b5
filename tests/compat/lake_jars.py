"""The jars of Delta Lake and Iceberg for a version of Spark, through Maven into a cache.

Each project publishes an artifact for a line of Spark (4.2, …), often months after that Spark: what there is
not is left out. Only jars of the projects themselves are taken; what else they need is in Spark already.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

ARTIFACTS = {
    "delta": ("io.delta", "delta-spark_{line}_2.13", "io.delta,io.unitycatalog"),
    "iceberg": ("org.apache.iceberg", "iceberg-spark-runtime-{line}_2.13", "org.apache.iceberg"),
}
POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>braid.compat</groupId>
  <artifactId>lake</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>{group}</groupId>
      <artifactId>{artifact}</artifactId>
      <version>[1.0,)</version>
    </dependency>
  </dependencies>
</project>
"""
MAVEN_SECONDS_MAX = 300


class LakeJarsUnavailableError(Exception):
    """No format can be tried here; the text says why."""


def obtain(given: Path | None, spark_version: str) -> Path:
    """A folder with the jars of each format in a subfolder of its name: the given one, or one from Maven."""
    libs = given or _cached(spark_version)
    if not any(libs.glob("*/*.jar")):
        raise LakeJarsUnavailableError(f"Maven is not there or found none, and there are no jars in {libs}/*")
    return libs


def describe(libs: Path) -> str:
    """What there is, and what there is not."""
    told = []
    for name in ARTIFACTS:
        jars = [jar.stem for jar in sorted((libs / name).glob("*.jar")) if "spark" in jar.stem]
        told.append(", ".join(jars) or f"no {name}: there is none for this Spark")
    return "; ".join(told)


def _cached(spark_version: str) -> Path:
    line = ".".join(spark_version.split(".")[:2])
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "braid-bench"
    libs = cache / f"lake-{line}"
    maven = shutil.which("mvn")
    for name in ARTIFACTS:
        if maven is not None and not any((libs / name).glob("*.jar")):
            _ask(maven, name, line, libs / name)
    return libs


def _ask(maven: str, name: str, line: str, folder: Path) -> None:
    """Fills the folder, if there is such an artifact: a failure is not told from its absence."""
    group, artifact, groups = ARTIFACTS[name]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pom.xml").write_text(POM.format(group=group, artifact=artifact.format(line=line)))
    command = [maven, "--batch-mode", "--quiet", "dependency:copy-dependencies"]
    command += ["-DoutputDirectory=.", "-DincludeScope=runtime", f"-DincludeGroupIds={groups}"]
    try:
        subprocess.run(command, cwd=folder, capture_output=True, timeout=MAVEN_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        raise LakeJarsUnavailableError(f"Maven did not finish within {MAVEN_SECONDS_MAX} s") from None
