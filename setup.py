"""Compiles the record kernels where that is possible; everything else about the package is in pyproject.toml.

Without Cython or a C compiler the package installs all the same and runs their sources as Python: a build
that fails is only a warning. `BRAID_PURE=1` leaves it out on purpose.
"""

from __future__ import annotations

import os

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

KERNELS = ("braidmq.wire.kernel", "braidmq.wire.batch_walker", "braidmq.wire.column_writer")
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
            self.warn(f"the record kernels are not compiled and run as Python: {error}")
            self.extensions = []


def kernels() -> list[Extension]:
    """The extensions, translated to C; none when they cannot be or are not wanted."""
    if os.environ.get("BRAID_PURE"):
        return []
    try:
        from Cython.Build import cythonize
    except ImportError:
        return []
    translated: list[Extension] = cythonize(
        [extension(name) for name in KERNELS], build_dir="build/cython", compiler_directives=DIRECTIVES
    )
    return translated


def extension(name: str) -> Extension:
    source = f"src/{name.replace('.', '/')}.py"
    return Extension(
        name,
        [source],
        depends=[source.replace(".py", ".pxd")],
        # Debug symbols make it five times as large; -O3 makes wide moves of loops that copy bytes.
        extra_compile_args=["-g0", "-O3"],
        # A compiler left to itself does not inline what is called six times a record: a fifth of the time.
        define_macros=[("CYTHON_INLINE", "inline __attribute__((always_inline))")],
        optional=True,
    )


setup(ext_modules=kernels(), cmdclass={"build_ext": BuildIfPossible})
