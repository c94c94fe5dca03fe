"""Origin of the names of code in a configuration: the user, or another user's file. Code that another user's file names
is refused, or must equal the copy that this file has recorded."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

from grsgd.errors import ConfigError
from grsgd.outside.sources import SourceFile


class Origin(NamedTuple):
    """A file that names code to import, such as a run file with ``model.name = "mine.py:Net"`` in its configuration.

    ``own`` has names that this user has given, which are always accepted. ``remedy`` is advice for the error message
    about a refused name; if ``remedy`` is "", all names are accepted. ``sha256`` has the attributes of the file, among
    them the SHA-256 digests of the code that the file has recorded.
    """

    file: str
    own: Collection[str]
    remedy: str
    sha256: Mapping[str, object]

    def check_name(self, name: str):
        """Raise ConfigError if code that the file calls ``name`` must not be imported."""
        if self.remedy and name not in self.own:
            raise ConfigError(f"{self.file}: its configuration names code, {name!r}, which would run: {self.remedy}")

    def check_source(self, name: str, record: str, source: SourceFile | None):
        """Raise ConfigError if the code ``source`` differs from the code that the file has recorded under
        ``record``."""
        recorded = self.sha256.get(f"{record}_sha256")
        if name in self.own or recorded is None or source is None or recorded == source.sha256:
            return
        raise ConfigError(
            f"{self.file}: {source.path} is not the code with which this file was made: the SHA-256 is "
            f"{source.sha256[:16]}..., recorded is {str(recorded)[:16]}... "
            f"(the attribute {record}_source holds the recorded code)"
        )


OURS = Origin("", (), "", {})
"""Origin of names in the user's own configuration, which may name anything."""
_now: ContextVar[Origin] = ContextVar("origin", default=OURS)


def origin() -> Origin:
    """Return the `Origin` of the names that are being looked up now: the user's own configuration, or another user's
    file."""
    return _now.get()


@contextmanager
def names_from(
    file, *, own: Collection[str] = (), remedy: str = "", sha256: Mapping[str, object] | None = None
) -> Iterator[None]:
    """Treat all names that are looked up in the block as names from ``file``. The parameters are the fields of
    `Origin`."""
    before = _now.set(Origin(str(file), own, remedy, sha256 or {}))
    try:
        yield
    finally:
        _now.reset(before)
