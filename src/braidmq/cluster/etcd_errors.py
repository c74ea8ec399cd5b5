"""What an error of etcd means for a request: whether it can have happened, and what people should know.

gRPC gives a status code and a text; etcd's texts are part of its interface (`rpctypes`), and say more than
the code.
"""

from __future__ import annotations

from enum import Enum

from braidmq.cluster.metadata_store import Expired, Refused, StoreError, StoreFull


class Fate(Enum):
    """What is known of a request that failed."""

    NOT_DONE = "it did not happen; another endpoint may do it"
    UNSURE = "it may have happened"
    NEW_TOKEN = "it did not happen; it needs a new token"
    COMPACTED = "it names a revision that is compacted"
    TOO_LARGE = "its answer is larger than a message may be"
    FINAL = "it cannot be done"


NO_LEADER = "etcd has no leader: a majority of its members is down or cut off"
FULL = (
    "etcd is full (NOSPACE): compact and defragment it, raise --quota-backend-bytes if need be, then run"
    " etcdctl alarm disarm"
)

_BY_TEXT = (
    ("no leader", Fate.NOT_DONE),
    ("too many requests", Fate.NOT_DONE),
    ("invalid auth token", Fate.NEW_TOKEN),
    ("revision of auth store is old", Fate.NEW_TOKEN),
    ("required revision has been compacted", Fate.COMPACTED),
    ("message larger than max", Fate.TOO_LARGE),
    ("database space exceeded", Fate.FINAL),
)
_NOT_APPLIED = {
    "ALREADY_EXISTS",
    "FAILED_PRECONDITION",
    "INVALID_ARGUMENT",
    "NOT_FOUND",
    "OUT_OF_RANGE",
    "PERMISSION_DENIED",
    "UNAUTHENTICATED",
    "UNIMPLEMENTED",
}
"""Status codes with which etcd refuses a request before it does anything."""


def fate(code: str, text: str) -> Fate:
    for part, meaning in _BY_TEXT:
        if part in text.lower():
            return meaning
    return Fate.FINAL if code in _NOT_APPLIED else Fate.UNSURE


def final_error(code: str, text: str) -> StoreError:
    """The error of a request whose fate is FINAL."""
    if "database space exceeded" in text:
        return StoreFull(FULL)
    if "requested lease not found" in text:
        return Expired("the lease has ended")
    if code == "PERMISSION_DENIED":
        hint = "grant the user readwrite on the prefix, or name one with ?user=NAME&password-file=FILE"
        return Refused(f"etcd denies it: {text}; {hint}")
    if "user name is empty" in text:
        return Refused("etcd wants a user: add ?user=NAME&password-file=FILE to its address")
    if "invalid user ID or password" in text:
        return Refused("etcd does not know this user and password")
    return Refused(f"etcd refuses it: {text or code}")


def explain(code: str, text: str) -> str:
    """Why etcd did not answer, for people."""
    return NO_LEADER if "no leader" in text else f"{text or 'no answer'} ({code})"


def version_warning(endpoint: str, version: str) -> str | None:
    """A word about versions that may corrupt a member that is killed under load (etcd issue 13766)."""
    if version in ("3.5.0", "3.5.1", "3.5.2"):
        return (
            f"etcd {version} at {endpoint} can corrupt its data when it is killed; upgrade to 3.5.3 or newer"
        )
    return None
