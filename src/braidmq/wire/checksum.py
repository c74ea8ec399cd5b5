"""CRC-32C, the checksum of record batches and small files, by the `crc32c` package.

Only the package's compiled module is loaded. Its `__init__` looks up its own version through
`importlib.metadata`, which brings in the mail, zip and CSV modules: a seventh of a broker's start-up time and
several megabytes that it would hold for ever. Where the compiled module is not found that way, the package is
imported as usual.
"""

from __future__ import annotations

from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, FileFinder
from importlib.util import find_spec, module_from_spec
from typing import Protocol

Buffer = bytes | bytearray | memoryview


class Checksum(Protocol):
    def __call__(self, content: Buffer, seed: int = 0, /) -> int: ...


def _load() -> Checksum:
    package = find_spec("crc32c")
    for location in package.submodule_search_locations or () if package is not None else ():
        found = FileFinder(location, (ExtensionFileLoader, EXTENSION_SUFFIXES)).find_spec("_crc32c")
        if found is not None and found.loader is not None:
            module = module_from_spec(found)
            found.loader.exec_module(module)
            return module.crc32c  # type: ignore[no-any-return]
    import crc32c

    return crc32c.crc32c


crc32c = _load()
"""(content, seed=0) to the checksum of `content`, continuing from `seed`."""

_SEAL_BYTES = 9


def seal(body: bytes) -> bytes:
    """A line of text with its checksum before it, as small files hold it."""
    return b"%08x %s\n" % (crc32c(body), body)


def unseal(content: bytes) -> bytes | None:
    """The line that was sealed; None if it is not whole."""
    body = content[_SEAL_BYTES:-1]
    return body if seal(body) == content else None
