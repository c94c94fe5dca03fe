"""The errors that users meet: each says in one line what is wrong and, where that helps, what is allowed."""


import difflib
from collections.abc import Iterable


def did_you_mean(word: str, allowed: Iterable[str]) -> str:
    """Return a hint for a word that is not allowed: the nearest one that is, if any is near."""
    near = difflib.get_close_matches(word, list(allowed), 1)
    return f" (did you mean {near[0]}?)" if near else ""


class UsageError(ValueError):
    """Something that the user can mend; commands print it and end with exit code 2."""


class ConfigError(UsageError):
    """A configuration that cannot be run: the key, its value and what is allowed."""


class DataError(UsageError):
    """A data set that cannot be loaded or fetched."""


class RunFileError(UsageError):
    """A run file, or a figure of runs, that cannot be read or written: the path and the reason."""


class ModelError(UsageError):
    """A file that does not hold the weights that are asked for: the path and what is wrong."""


class SetupError(UsageError):
    """A job that cannot start: every rank raises the same one.

    ``is_printed``: whether this rank is the one that prints it.
    """

    def __init__(self, message: str, is_printed: bool = True):
        super().__init__(message)
        self.is_printed = is_printed
