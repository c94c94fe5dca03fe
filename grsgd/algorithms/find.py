"""Look-up of an algorithm by name, among the algorithms of this package and classes in a user's files and packages
(`grsgd.outside`)."""

from collections.abc import Iterable

from grsgd import outside
from grsgd.algorithms.base import ALGORITHMS, Algorithm
from grsgd.errors import ConfigError, did_you_mean


def find(name: str, allowed: Iterable[str] = ALGORITHMS) -> type[Algorithm]:
    """Return the class of the algorithm called ``name``. Raises ConfigError if no algorithm is called ``name``.

    Parameters
    ----------
    name
        A key of `ALGORITHMS`, ``FILE.py:CLASS``, ``PACKAGE.MODULE:CLASS``, or the name of a plug-in. FILE is a path
        relative to the working directory. allowed The keys of `ALGORITHMS` that an error message lists as allowed.
    """
    if name in ALGORITHMS:
        return ALGORITHMS[name]
    place = outside.place_of(name, "algorithms")
    if place is None:
        known = f"{', '.join(sorted(allowed))}, FILE.py:CLASS or PACKAGE.MODULE:CLASS"
        raise ConfigError(f"{name!r}: unknown{did_you_mean(name, allowed)}; allowed: {known}")
    found = outside.load(place, "algorithms", is_plugin=place != name)
    if not hasattr(found, "name"):
        raise ConfigError(
            f"{name!r}: the class was defined without name=, as base classes are; give a derived class that has a name"
        )
    return found
