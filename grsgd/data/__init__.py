"""Data sets: ``load`` loads a data set by its name, and ``status`` lists all data sets.

| name | samples | of | from |
|---|---|---|---|
| digits | 1,437 + 360 | 1x8x8 | inside scikit-learn, comes with the extra ``data`` |
| mnist-5k | 4,000 + 1,000 | 1x28x28 | inside this package |
| mnist | 60,000 + 10,000 | 1x28x28 | ``grsgd data fetch mnist`` |
| fashion-mnist | 60,000 + 10,000 | 1x28x28 | ``grsgd data fetch fashion-mnist`` |
| cifar-10 | 50,000 + 10,000 | 3x32x32 | ``grsgd data fetch cifar-10`` |
| moby-dick | 8,472 + 941 | text, 128 bytes | ``grsgd data fetch moby-dick`` |
| text | any | text | your own file |
| imagefolder | any | 3 x size x size | your own train/<class>/* and val/<class>/* |
| synthetic | any | any | generated; never replaces another set |

To add a data set, write a file in the folder ``sets`` that decorates a loader function with ``base.dataset``.
"""

from pathlib import Path
from typing import NamedTuple

from grsgd import outside
from grsgd.data import sets  # noqa: F401  the import of the folder `sets` registers all loaders
from grsgd.data.base import REGISTER, DamagedData, Dataset, Entry, MissingData, Split
from grsgd.data.map_style import dataset_of
from grsgd.errors import DataError

__all__ = ["NAMES", "DataError", "Dataset", "DataSetRow", "Split", "load", "status"]

NAMES = tuple(sorted(REGISTER, key=lambda name: REGISTER[name].values))
"""Names of all registered data sets, from the data set with the fewest pixel values to the largest data set."""

_kept: dict[tuple, Dataset] | None = None


def load(name: str, directory: str | Path, /, *, seed: int = 0, **options) -> Dataset:
    """Return the data set ``name``, loaded from ``directory``.

    The data sets have these ``options``, with defaults in brackets. "imagefolder" takes ``size`` (224 pixels).
    "moby-dick" and "text" take ``block`` (128), the number of bytes of a sample. "text" also takes ``file``
    ("input.txt"). "synthetic" takes ``samples`` (2000), ``shape`` ((1, 28, 28)) and ``classes`` (10). Only "synthetic"
    uses ``seed``.

    Raises DataError, with a message of one line, if the name or an option is unknown, or if files are missing,
    truncated or corrupt. If files of the data set are missing, no other data are loaded in their place.
    """
    key = name, Path(directory).expanduser().absolute(), repr(sorted(options.items()))
    if _kept is not None and key in _kept:
        return _kept[key]
    entry = find(name)
    if unknown := sorted(options.keys() - entry.options.keys()):
        raise DataError(f"{name}: unknown option {unknown[0]}; allowed: {', '.join(entry.options) or 'none'}")
    try:
        found = dataset_of(name, entry.make(Path(directory).expanduser(), seed, options))
        if _kept is not None and entry.samples is not None:
            _kept[key] = found
        return found
    except (MissingData, DamagedData) as error:
        raise type(error)(f"{name}: {error}; {entry.hint}") from error
    except (DataError, OSError) as error:
        raise DataError(f"{name}: {error}") from error
    except TypeError as error:
        if name in REGISTER:
            raise
        raise DataError(f"{name}: {outside.fault_in(entry.load, error) or error}") from error
    except Exception as error:
        if (fault := outside.fault_in(entry.load, error)) is None:
            raise
        raise DataError(f"{name}: {fault}") from error


def keep_loaded():
    """Let `load` keep all data sets that it has loaded in memory. A program that makes many runs calls this function to
    read the files of each data set only once."""
    global _kept
    _kept = {} if _kept is None else _kept


def find(name: str) -> Entry:
    """Return the `Entry` (loader function and known facts) of the data set called ``name``. ``name`` may name a data
    set of this package, a function in a user's file or module (`grsgd.outside`), or a data set of a plug-in.

    Raises DataError if there is no data set called ``name``.
    """
    if name in REGISTER:
        return REGISTER[name]
    make = outside.loaded(name, "data")
    if make is None:
        raise DataError(f"unknown data set {name}; there are {', '.join(NAMES)}, FILE.py:NAME and PACKAGE.MODULE:NAME")
    return Entry(make, None, None, None, "the data set is your own")


class DataSetRow(NamedTuple):
    """Row about one data set in the table that ``grsgd data list`` prints."""

    name: str
    samples: tuple[int, int] | None
    """Numbers of training and test samples; None if the numbers depend on the user's files."""
    shape: tuple[int, ...] | None
    classes: int | None
    state: str
    """State of the data set: "present", "absent", "damaged" or "plug-in"."""
    where: str
    """Text that depends on ``state``. For a present data set, the text is `Dataset.source`, such as a folder. For an
    absent data set, the text says how to get the data set. For a damaged data set, the text is the error message."""


def status(directory: str | Path) -> list[DataSetRow]:
    """Return the rows of the table that ``grsgd data list`` prints, one row for each data set. To find out the state of
    a data set, this function tries to load the data set from ``directory``. Data sets of plug-ins are not loaded. If a
    data set cannot be loaded, its row shows the problem, and no DataError is raised."""
    others = outside.plugins_beside("data", NAMES)
    return [
        *(_row(name, directory) for name in NAMES),
        *(DataSetRow(name, None, None, None, "plug-in", place) for name, place in others.items()),
    ]


def _row(name: str, directory: str | Path) -> DataSetRow:
    entry = REGISTER[name]
    known = (name, entry.samples, entry.shape, entry.classes)
    try:
        data = load(name, directory)
    except MissingData:
        return DataSetRow(*known, "absent", entry.hint)
    except DataError as error:
        return DataSetRow(*known, "damaged", str(error))
    return DataSetRow(name, (len(data.train), len(data.test)), data.shape, data.classes, "present", data.source)
