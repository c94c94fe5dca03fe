"""Origin of the names of code in a configuration. Names of code come from the user's own configuration, or from another
user's file. If another user's file names code, the code is refused, or must equal the copy in the other user's file."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

from grsgd.errors import ConfigError
from grsgd.outside.sources import SourceFile


class Origin(NamedTuple):
    """A file whose configuration names code to import, such as a run file with ``model.name = "mine.py:Net"``.

    ``own`` has the names that the present user has given on the command line or in a configuration; names in ``own``
    are always accepted. ``remedy`` is the advice at the end of the error message about a refused name. If ``remedy`` is
    "", all names are accepted. ``sha256`` has the attributes of the file, among them SHA-256 digests of the code with
    which the file was made.
    """

    file: str
    own: Collection[str]
    remedy: str
    sha256: Mapping[str, object]

    def check_name(self, name: str):
        """Raise ConfigError if the file's configuration names the code ``name``, and this code must not be imported."""
        if self.remedy and name not in self.own:
            raise ConfigError(f"{self.file}: its configuration names code, {name!r}, which would run: {self.remedy}")

    def check_source(self, name: str, record: str, source: SourceFile | None):
        """Raise ConfigError if the code ``source`` has another SHA-256 digest than the file has recorded in its
        attribute ``<record>_sha256``."""
        recorded = self.sha256.get(f"{record}_sha256")
        if name in self.own or recorded is None or source is None or recorded == source.sha256:
            return
        raise ConfigError(
            f"{self.file}: {source.path} is not the code with which this file was made: the SHA-256 is "
            f"{source.sha256[:16]}..., recorded is {str(recorded)[:16]}... "
            f"(the attribute {record}_source holds the recorded code)"
        )


OURS = Origin("", (), "", {})
"""Origin of names in the user's own configuration, in which all names of code are accepted."""
_now: ContextVar[Origin] = ContextVar("origin", default=OURS)


def origin() -> Origin:
    """Return the `Origin` that applies now to names of code: the user's own configuration, or another user's file."""
    return _now.get()


@contextmanager
def names_from(
    file, *, own: Collection[str] = (), remedy: str = "", sha256: Mapping[str, object] | None = None
) -> Iterator[None]:
    """Inside the ``with`` block, treat all names of code that are looked up as names from the configuration in
    ``file``. The parameters ``file``, ``own``, ``remedy`` and ``sha256`` are the fields of `Origin`."""
    before = _now.set(Origin(str(file), own, remedy, sha256 or {}))
    try:
        yield
    finally:
        _now.reset(before)
