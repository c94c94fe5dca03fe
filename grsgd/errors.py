"""Errors that users can cause. Each error's message is one line that names the mistake and, if helpful, the allowed
values."""


import difflib
from collections.abc import Iterable


def did_you_mean(word: str, allowed: Iterable[str]) -> str:
    """Return a hint at the word in ``allowed`` that is most similar to ``word``; an empty text if no word is
    similar."""
    near = difflib.get_close_matches(word, list(allowed), 1)
    return f" (did you mean {near[0]}?)" if near else ""


class UsageError(ValueError):
    """Error that the user can correct. Commands print a UsageError and end with exit code 2."""


class ConfigError(UsageError):
    """Error in a configuration or an argument. The message of a ConfigError names the key, the key's value and the
    allowed values."""


class DataError(UsageError):
    """Error of a data set that cannot be loaded or downloaded."""


class RunFileError(UsageError):
    """Error of a run file, or of a figure of runs, that cannot be read or written. The message of a RunFileError names
    the path and the reason."""


class ModelError(UsageError):
    """Error of a model file that cannot be read, or does not fit the model. The message of a ModelError names the path
    and the reason."""


class SetupError(UsageError):
    """Error of a job that cannot start. Every rank of the job raises an error with the same message.

    ``is_printed`` says whether this rank prints the error.
    """

    def __init__(self, message: str, is_printed: bool = True):
        super().__init__(message)
        self.is_printed = is_printed


class MissingLibrary(SetupError, ImportError):
    """Error of an import: a library is not installed. The message has the command that installs the library."""
