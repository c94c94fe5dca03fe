"""Algorithms by name: those of this package, and any other's class (`grsgd.outside`)."""

from collections.abc import Iterable

from grsgd import outside
from grsgd.algorithms.base import ALGORITHMS, Algorithm
from grsgd.errors import ConfigError, did_you_mean


def find(name: str, allowed: Iterable[str] = ALGORITHMS) -> type[Algorithm]:
    """Return the algorithm of this name; a path is relative to the working directory. Raises ConfigError.

    Parameters
    ----------
    name
        A key of `ALGORITHMS`, ``FILE.py:CLASS``, ``PACKAGE.MODULE:CLASS``, or the name of a plug-in.
    allowed
        The keys that an error names.
    """
    if name in ALGORITHMS:
        return ALGORITHMS[name]
    place = outside.place_of(name, "algorithms")
    if place is None:
        known = f"{', '.join(sorted(allowed))}, FILE.py:CLASS or PACKAGE.MODULE:CLASS"
        raise ConfigError(f"{name!r}: unknown{did_you_mean(name, allowed)}; allowed: {known}")
    found = outside.load(place, _is_algorithm, "class")
    if not _is_algorithm(found):
        wanted = place.rpartition(":")[2]
        raise ConfigError(f'{name!r}: not an algorithm; write class {wanted}(grsgd.algorithms.Algorithm, name="...")')
    return found


def _is_algorithm(value) -> bool:
    return isinstance(value, type) and issubclass(value, Algorithm) and hasattr(value, "name")
