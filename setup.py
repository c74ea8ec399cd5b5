"""Compiles the record kernel where that is possible; everything else about the package is in pyproject.toml.

Without Cython or a C compiler the package installs all the same and runs `kernel.py` as Python: a build that
fails is only a warning. `BRAID_PURE=1` leaves it out on purpose.
"""

from __future__ import annotations

import os

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

DIRECTIVES = {
    "language_level": "3",
    "annotation_typing": False,
    "boundscheck": False,
    "wraparound": False,
    "initializedcheck": False,
    "cdivision": True,
}


class BuildIfPossible(build_ext):
    """setuptools forgives compilers that fail; this also forgives one that is not there at all."""

    def run(self) -> None:
        try:
            super().run()
        except Exception as error:
            self.warn(f"the record kernel is not compiled and runs as Python: {error}")
            self.extensions = []


def kernel() -> list[Extension]:
    """The one extension, translated to C; none when it cannot be or is not wanted."""
    if os.environ.get("BRAID_PURE"):
        return []
    try:
        from Cython.Build import cythonize
    except ImportError:
        return []
    source = "src/braidmq/wire/kernel.py"
    extension = Extension(
        "braidmq.wire.kernel",
        [source],
        depends=[source.replace(".py", ".pxd")],
        extra_compile_args=["-g0"],  # debug symbols make it five times as large
        optional=True,
    )
    translated: list[Extension] = cythonize(
        [extension], build_dir="build/cython", compiler_directives=DIRECTIVES
    )
    return translated


setup(ext_modules=kernel(), cmdclass={"build_ext": BuildIfPossible})
