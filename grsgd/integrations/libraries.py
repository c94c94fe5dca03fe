"""Imports of libraries that are optional dependencies of grsgd, with a one-line error for a missing library."""

from contextlib import contextmanager

from grsgd.errors import MissingLibrary
from grsgd.job import launch
from grsgd.mpi_environment import rank
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
        is_missing = isinstance(error, ModuleNotFoundError)
        what = f"the library {error.name} is not installed" if is_missing else printable(str(error), 300)
        launch.explain_setup_errors()
        raise MissingLibrary(f'{what}: pip install "grsgd[{extra}]"', is_printed=rank() in (None, "0")) from None
