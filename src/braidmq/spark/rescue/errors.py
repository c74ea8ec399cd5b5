"""The error of rescue jobs."""

from __future__ import annotations

from braidmq.spark.errors import UserError


class RescueError(UserError):
    """A job cannot run as asked; one line that says why and what to do."""
