"""A user's mistake: shown as one line on stderr with exit code 2, never as a traceback."""

from __future__ import annotations


class UserMistake(Exception):
    """What the user has to change, in one line."""
