"""Errors that users can cause. Each message is one line that names the error and, if that helps, the allowed values."""


import difflib
from collections.abc import Iterable


def did_you_mean(word: str, allowed: Iterable[str]) -> str:
    """Return a hint at the allowed word nearest to ``word``; an empty text if none is near."""
    near = difflib.get_close_matches(word, list(allowed), 1)
    return f" (did you mean {near[0]}?)" if near else ""


class UsageError(ValueError):
    """Error that the user can correct; commands print it and end with exit code 2."""


class ConfigError(UsageError):
    """Error in a configuration or an argument: the message names the key, its value and the allowed values."""


class DataError(UsageError):
    """Error of a data set that cannot be loaded or downloaded."""


class RunFileError(UsageError):
    """Error of a run file, or a figure of runs, that cannot be read or written: the message names the path and the
    reason."""


class ModelError(UsageError):
    """Error of a model file that cannot be read, or does not fit the model: the message names the path and the
    reason."""


class SetupError(UsageError):
    """Error of a job that cannot start: every rank raises the same error.

    ``is_printed`` says whether this rank prints the error.
    """

    def __init__(self, message: str, is_printed: bool = True):
        super().__init__(message)
        self.is_printed = is_printed


class MissingLibrary(SetupError, ImportError):
    """Error of an import: a library is not installed. The message has the command that installs the library."""
