"""Imports of libraries that are optional dependencies of grsgd, with a one-line error for a missing library."""

import sys
from contextlib import contextmanager

from grsgd.errors import MissingLibrary
from grsgd.job import launch
from grsgd.text import printable


@contextmanager
def needed(extra: str):
    """Run a block of imports. Raises MissingLibrary if an import fails. If the script does not catch the error, the
    script ends with one line and exit code 2.

    ``extra`` is the optional dependency of grsgd that installs the libraries, such as "lightning".
    """
    try:
        yield
    except ImportError as error:
        if isinstance(error, MissingLibrary):
            raise
        if "mpi4py.MPI" not in sys.modules:  # after the start of MPI, the handler of `abort_on_error` is in place
            launch.explain_setup_errors()
        raise MissingLibrary(f'{reason(error)} "grsgd[{extra}]"') from None


def reason(error: ImportError) -> str:
    """Return the reason of a failed import and the beginning of the command that installs the library."""
    if not isinstance(error, ModuleNotFoundError):
        return f"{printable(str(error), 300)}: pip install --upgrade"
    library = error.name.partition(".")[0]
    if library != error.name:
        return f"the installed version of {library} has no module {error.name}: pip install --upgrade"
    return f"the library {library} is not installed: pip install"
