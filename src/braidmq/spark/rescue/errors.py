"""What stops a rescue job, in the user's words."""

from __future__ import annotations

from braidmq.spark.errors import UserError


class RescueError(UserError):
    """A job that cannot be done as it stands; one line that says what to do."""
