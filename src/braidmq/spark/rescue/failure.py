"""What stops a rescue job, in the user's words."""

from __future__ import annotations


class RescueError(Exception):
    """A job that cannot be done as it stands; one line that says what to do."""
