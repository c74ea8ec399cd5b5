"""What can go wrong between a client and a broker, beside the errors a broker itself reports (`ApiError`)."""

from __future__ import annotations

from braidmq.wire.errors import ApiError


class ClientError(Exception):
    """Anything this client raises that is not an answer of the broker."""


class Unreachable(ClientError):
    """No connection to a broker could be made, or it broke."""


class TimedOut(ClientError):
    """The broker, or the cluster as a whole, did not do it in time."""


class AuthenticationFailed(ClientError):
    """The broker was reached and does not let us in, or is not who it should be."""


class DeliveryFailed(ClientError):
    """Records that were not acknowledged; `cause` is what happened to the first of them."""

    def __init__(self, count: int, cause: ApiError | ClientError) -> None:
        super().__init__(f"{count} record{'s' if count != 1 else ''} not delivered: {cause}")
        self.count = count
        self.cause = cause
