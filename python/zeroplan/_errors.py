"""Errors raised for requests."""

from __future__ import annotations

from typing import Any


class Error(ValueError):
    """A request that cannot be answered. The text is the command line's message: it names option or file, value,
    and what to do."""

    exit_code: int
    """The command line's exit code: 2 for wrong input, 3 if nothing fits, 4 for an unreadable file."""

    def __init__(self, message: str, exit_code: int = 2) -> None:
        super().__init__(message)
        self.exit_code = exit_code

    def __reduce__(self) -> Any:
        return type(self), (str(self), self.exit_code)


class NothingFits(Error):
    """No choice fits. The text names the smallest change that would fit, if one was found."""
