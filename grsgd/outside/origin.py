"""Origin of names: code that a stranger's file names is refused, or compared with the file's record of it."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

from grsgd.errors import ConfigError
from grsgd.outside.sources import SourceFile


class Origin(NamedTuple):
    """File from which names come.

    ``own`` has names that the user has given, too. ``remedy`` is advice about a refused name; "" if all names are
    accepted. ``sha256`` has the digests of code that the file has recorded, by its names for them.
    """

    file: str
    own: Collection[str]
    remedy: str
    sha256: Mapping[str, object]

    def check_name(self, name: str):
        """Raise ConfigError for a name of code that is not to be imported."""
        if self.remedy and name not in self.own:
            raise ConfigError(f"{self.file}: its configuration names code, {name!r}, which would run: {self.remedy}")

    def check_source(self, name: str, record: str, source: SourceFile | None):
        """Raise ConfigError for code that differs from the file's record."""
        recorded = self.sha256.get(f"{record}_sha256")
        if name in self.own or recorded is None or source is None or recorded == source.sha256:
            return
        raise ConfigError(
            f"{self.file}: {source.path} is not the code that it was made with: its SHA-256 is "
            f"{source.sha256[:16]}..., recorded is {str(recorded)[:16]}... "
            f"(the attribute {record}_source holds the recorded code)"
        )


OURS = Origin("", (), "", {})
"""Origin of names in the user's own configuration, which may name anything."""
_now: ContextVar[Origin] = ContextVar("origin", default=OURS)


def origin() -> Origin:
    """Return the `Origin` (the user's own configuration, or a stranger's file) of the names that are being looked
    up."""
    return _now.get()


@contextmanager
def names_from(
    file, *, own: Collection[str] = (), remedy: str = "", sha256: Mapping[str, object] | None = None
) -> Iterator[None]:
    """Look up names, in the block, as from a stranger's file; the parameters are the fields of `Origin`."""
    before = _now.set(Origin(str(file), own, remedy, sha256 or {}))
    try:
        yield
    finally:
        _now.reset(before)
