"""Reading, writing and checks of run files. A run file is an HDF5 file with the measurements of one training run.

The attributes of a run are attributes of the file's root group. ``curve``, ``ranks``, ``traffic`` and ``staleness`` are
groups of datasets, listed in `grsgd.runs.layout`. Every dataset has the attributes ``unit`` and ``description``.
"""

import math
import os
import re
import secrets
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import h5py
import numpy as np

from grsgd.files import atomic_write, remove_leftovers, temporary_beside
from grsgd.runs import about
from grsgd.runs.hdf5 import Hdf5Reader, plain
from grsgd.runs.layout import ATTRIBUTES, FORMAT, KNOWN, LAYOUT, UNITS
from grsgd.runs.old_format import from_format_1
from grsgd.runs.targets import check_replaceable, naming, reason_of, stamp, target_of
from grsgd.runs.trial import is_good, try_reading
from grsgd.text import printable


@dataclass(repr=False)
class Run:
    """Content of a run file: a training run of n ranks with s snapshots.

    - ``attributes``: values of type str, int, float or bool, or lists of such values, by name. Attributes whose names
    are in ``ATTRIBUTES`` are required. An attribute that is None is not known, and is not written to the file.
      ``final_test_accuracy`` (a fraction of 1), or
      ``final_test_`` and the name of the run's metric, is NaN if not known.
    - ``curve``: arrays [s], one value per snapshot: int64 for ``step`` and ``samples``, else float64, with NaN for a
      value that was not measured.
    - ``ranks``: arrays [n], one value per rank: int64 for ``steps`` and ``samples``, else float64, in seconds.
    - ``traffic``: ``sent``, ``messages`` and ``headers``, int64 [n, n], element i, j from rank i to rank j;
      ``sent_once``, int64 [n]; ``interface``, float64 [n, 2], NaN if not counted.
    - ``staleness``: ``value``, int64 [k], in steps, ascending; ``count``, int64 [n, k], the number of models of each
      staleness that each rank has merged.
    - ``extra``: further groups, which users add, as nested dicts. Reading and saving keeps users' groups. In the HDF5
      file a dict becomes a group, an array becomes a dataset, and any other value becomes an attribute of its group. A
      user's group inside ``curve``, ``ranks``, ``traffic`` or ``staleness`` is stored under the name of the outer
      group: ``extra["traffic"]["eth0"]``.
    - ``units``: unit and description of each dataset that ``LAYOUT`` does not list, by the path of the dataset, such
      as ``units["traffic/eth0/sent"]``.
    """

    attributes: dict
    curve: dict[str, np.ndarray]
    ranks: dict[str, np.ndarray]
    traffic: dict[str, np.ndarray]
    staleness: dict[str, np.ndarray] = field(default_factory=dict)
    extra: dict = field(default_factory=dict)
    units: dict[str, tuple[str, str]] = field(default_factory=dict)

    def to_pandas(self, which: str = "curve"):
        """Return a pandas.DataFrame of a part of the run, with the names and units of the run file.

        ``which`` is "curve" (a row per snapshot), "ranks" (a row per rank), or "traffic" (a row per pair of sender and
        receiver).

        Raises ImportError if the package pandas is missing.
        """
        from grsgd.runs.views import frame

        return frame(self, which)

    def plot(self):
        """Return the figure that ``grsgd plot`` draws of this run: a matplotlib.figure.Figure, which notebooks
        display."""
        from grsgd.runs.views import figure

        return figure(self)

    def __repr__(self) -> str:
        from grsgd.runs.views import line

        return line(self)

    def _repr_html_(self) -> str:
        from grsgd.runs.views import page

        return page(self)


def save_run(path: str | os.PathLike, run: Run) -> None:
    """Write ``run`` to the file ``path``. An existing file is replaced only when the new file is complete.

    HDF5 builds the file in memory, because HDF5 ends the process if the disk becomes full. Raises RunFileError if a
    required attribute or dataset of ``run`` is missing or has a wrong type or shape, or if the file cannot be written.
    """
    with naming(path):
        run, target = _as_written(run), target_of(path)
        with _in_memory() as file:
            _fill(file, run)
            file.flush()
            image = file.id.get_file_image()
        with atomic_write(target) as temporary:
            temporary.write_bytes(image)
        is_good(target)
        if target in _seen:
            _seen[target] = stamp(target)


def check_content(path: str | os.PathLike, attributes: dict) -> None:
    """Check before training whether a run file can hold ``attributes``.

    The attributes are written to an HDF5 file in memory with the code of `save_run`, and read back.

    Raises RunFileError, whose message names ``path``, for an attribute that HDF5 cannot store or would change.
    """
    attributes = {name: plain(value) for name, value in attributes.items() if value is not None}
    with naming(path):
        _check_types(attributes)
        with _in_memory() as file:
            _write(file, attributes, {})
            found, _ = Hdf5Reader(file, file.id.get_filesize()).tree()
        for name, value in attributes.items():
            if repr(found.get(name)) != repr(value):
                raise ValueError(_unfit(name, value, "it would be changed"))


def why_unfit(name: str, array: np.ndarray, unit: tuple[str, str] = ("1", "")) -> str | None:
    """Return the reason why a run file cannot hold the dataset ``array`` with this ``name`` and ``unit`` (unit,
    description); None if the dataset fits. The function writes the dataset to a file in memory to find the reason."""
    if not isinstance(array, np.ndarray):
        return f"{type(array).__name__}, expected a NumPy array"
    try:
        with _in_memory() as file:
            _write(file, {name: array}, {name: unit})
            _, found = Hdf5Reader(file, file.id.get_filesize()).tree()
    except (RuntimeError, TypeError, ValueError) as error:
        return reason_of(error)
    return None if list(found) == [name] else "its name would be changed"


def check_writable(path: str | os.PathLike, size: int = 0) -> None:
    """Check before training whether ``save_run`` can write the file ``path``. An existing file stays unchanged.

    ``size`` is the approximate number of bytes of the run file. Temporary files that killed processes have left in the
    folder of ``path`` are removed.

    Raises RunFileError if the file cannot be written.
    """
    with naming(path):
        target = target_of(path)
        # Writing is tried, because permission bits do not show the effects of root, quotas and read-only file systems.
        if target.exists():
            open(target, "r+b").close()
            check_replaceable(target)
            with suppress(OSError, ValueError):
                try_reading(target)  # test reading, because the old file is read when the run ends
        with temporary_beside(target) as temporary:
            with open(temporary, "xb") as file:
                os.posix_fallocate(file.fileno(), 0, min(max(size, 1), MAX_TRIED_BYTES))
        remove_leftovers(target.parent)
        _seen[target] = stamp(target)


_seen: dict[Path, tuple[int, int] | None] = {}
"""Dictionary from the path of each run file that this process will write to a `stamp` of the file. The stamp is the
file's state when this process last checked or wrote the file."""


def was_replaced(path: str | os.PathLike) -> bool:
    """Return whether another process has written the file ``path`` since this process called `check_writable` with this
    path."""
    with naming(path):
        target = target_of(path)
    return target in _seen and _seen[target] != stamp(target)


def load_run(path: str | os.PathLike) -> Run:
    """Read a run file. The run's arrays are NumPy arrays with the shapes and dtypes that `Run` lists, and its
    attributes are plain Python values.

    Raises RunFileError if the file is missing, damaged, no run file, or of a newer format. Raises RunFileError if the
    file uses features of HDF5 that run files never need, such as data in other files (`grsgd.runs.hdf5`).
    """
    with naming(path):
        target = target_of(path)
        open(target, "rb").close()  # open() has clearer error messages than h5py
        if not h5py.is_hdf5(target):
            raise ValueError("not an HDF5 file")
        try_reading(target)
        try:
            with h5py.File(target, "r", locking=False) as file:
                run = _gather(Hdf5Reader(file, os.path.getsize(target)))
        except ValueError:
            raise
        except Exception as error:  # h5py raises errors of many classes for damaged files
            raise ValueError(f"truncated or damaged HDF5 file: {reason_of(error)}") from error
        return _checked(run)


MAX_TRIED_BYTES = 2**28
"""Largest number of bytes that `check_writable` reserves to find out whether the disk has enough space for the run
file."""


# ---- conversion between a Run and an open HDF5 file

LIBVER = "v108"
"""Version of the HDF5 file format that is written. From version 1.8 of the format on, attributes such as the host names
of many ranks may be larger than 64 KiB."""


def _in_memory() -> h5py.File:
    """Return a new HDF5 file that exists only in memory. The file's name is random, because names of open HDF5 files
    must be unique in a process."""
    return h5py.File(secrets.token_hex(), "w", libver=LIBVER, driver="core", backing_store=False)


def _as_written(run: Run) -> Run:
    """Return a copy of ``run`` that can be written to a file: with checked and converted content, and without optional
    datasets that were not measured."""
    checked = _checked(run)
    for group in LAYOUT:
        given, arrays = getattr(run, group), getattr(checked, group)
        setattr(checked, group, {name: value for name, value in arrays.items() if name in given})
    return checked


def _fill(file: h5py.File, run: Run) -> None:
    attributes = {"format": FORMAT, **run.attributes}
    _write(file, attributes | {about.GROUP: about.described(attributes)}, {})
    units = UNITS | run.units
    for group in LAYOUT:
        _write(file.create_group(group), getattr(run, group), units)
    _write(file, run.extra, units)


def _gather(reader: Hdf5Reader) -> Run:
    attributes, extra = reader.tree()
    version = attributes.pop("format", None)
    extra.pop(about.GROUP, None)
    if not isinstance(version, int):
        raise ValueError("not a run file: attribute 'format' is missing")
    if version > FORMAT:
        raise ValueError(f"format {version} is newer than this program, which reads up to {FORMAT}")
    sections = {}
    for name in LAYOUT:
        content = extra.pop(name, {})
        if not isinstance(content, dict):
            raise ValueError(f"not a run file: {name!r} is no group")
        sections[name] = {key: value for key, value in content.items() if isinstance(value, np.ndarray)}
        if rest := {key: value for key, value in content.items() if key not in sections[name]}:
            extra[name] = rest
    units = {name: unit for name, unit in reader.units.items() if name not in UNITS and unit != ("1", "")}
    if version == 1:
        attributes = from_format_1(attributes)
    return Run(attributes, **sections, extra=extra, units=units)


def _write(group: h5py.Group, tree: dict, units: dict[str, tuple[str, str]]) -> None:
    for name, value in tree.items():
        if isinstance(value, dict):
            _write(group.require_group(name), value, units)
        elif isinstance(value, np.ndarray):
            dataset = group.create_dataset(name, data=_storable(value))
            dataset.attrs["unit"], dataset.attrs["description"] = units.get(dataset.name.strip("/"), ("1", ""))
        elif value is not None:
            try:
                group.attrs[name] = _storable(value)
            except (TypeError, ValueError) as error:
                raise ValueError(_unfit(name, value, error)) from None


def _unfit(name: str, value, reason) -> str:
    """Return an error message, of one line, about the attribute ``name`` that HDF5 cannot store because of
    ``reason``."""
    text = f"{value!r}"
    found = NOT_TEXT.search(text)
    begin = max(found.start() - 40, 0) if found else 0
    part = f"{'...' * (begin > 0)}{text[begin : begin + 100]}{'...' * (begin + 100 < len(text))}"
    remedy = "give text in UTF-8 without NUL, and whole numbers below 2^63"
    return f"{name} = {part}: does not fit into a run file ({printable(str(reason))}): {remedy}"


NOT_TEXT = re.compile(r"\\x00|\\ud[89a-f]")
"""Pattern of a character that HDF5 cannot store, in the form that `repr` gives to the character."""


def _storable(value):
    """Return ``value`` in a form that h5py can write. Texts and lists of texts become variable-length UTF-8 strings;
    h5py itself converts only a single str."""
    return np.asarray(value, h5py.string_dtype()) if np.asarray(value).dtype.kind == "U" else value


# ---- checks of the content of a Run


def _checked(run: Run) -> Run:
    """Return a copy of ``run`` whose attributes are plain Python values, and whose arrays have the dtypes of
    ``LAYOUT``. Missing optional datasets are filled with NaN or 0. Raises ValueError for a missing attribute or
    dataset, a wrong type, or a wrong shape."""
    attributes = {name: plain(value) for name, value in run.attributes.items() if name != "format"}
    final = f"final_test_{attributes.get('metric') or 'accuracy'}"
    attributes.setdefault(final, math.nan)
    for name in ATTRIBUTES:
        if attributes.get(name) is None:
            raise ValueError(f"attribute {name!r} is missing")
    _check_types(attributes)
    if attributes["ranks"] < 1:
        raise ValueError(f"attribute 'ranks' is {attributes['ranks']}, but must be 1 or more")
    if loose := [name for name, value in run.extra.items() if not isinstance(value, dict | np.ndarray)]:
        raise ValueError(f"{loose[0]!r} in extra is neither a group nor an array: it belongs to the attributes")
    sizes = {"rank": attributes["ranks"], "way": 2}
    if len(attributes["hosts"]) != sizes["rank"]:
        raise ValueError(f"attribute 'hosts' has {len(attributes['hosts'])} names for {sizes['rank']} ranks")
    sections = {group: _section(group, getattr(run, group), sizes) for group in LAYOUT}
    if (sections["staleness"]["count"] < 0).any():
        raise ValueError("dataset 'staleness/count' must hold 0 or more")
    return Run(attributes, **sections, extra=run.extra, units=run.units)


def _check_types(attributes: dict) -> None:
    final = f"final_test_{attributes.get('metric') or 'accuracy'}"
    for name, kind in (ATTRIBUTES | KNOWN | {final: float}).items():
        _check_type(name, attributes.get(name), kind)


def _check_type(name: str, value, kind: type) -> None:
    if value is None:
        return
    if not isinstance(value, (int, float) if kind is float else kind) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"attribute {name!r} must be {kind.__name__}, not {type(value).__name__}")
    if kind is list and not all(isinstance(one, str) for one in value):
        raise ValueError(f"attribute {name!r} must be a list of text")


def _section(group: str, given: dict, sizes: dict[str, int]) -> dict[str, np.ndarray]:
    arrays = {}
    for name, column in LAYOUT[group].items():
        if name in given:
            arrays[name] = _cast(f"{group}/{name}", given[name], column.dtype)
        elif column.optional:
            shape = tuple(sizes.get(axis, 0) for axis in column.axes)
            arrays[name] = np.full(shape, math.nan if column.dtype is np.float64 else 0, column.dtype)
        else:
            raise ValueError(f"dataset '{group}/{name}' is missing")
        _check_shape(f"{group}/{name}", arrays[name].shape, column.axes, sizes)
    return arrays | {name: np.asarray(value) for name, value in given.items() if name not in arrays}


def _check_shape(name: str, shape: tuple[int, ...], axes: tuple[str, ...], sizes: dict[str, int]) -> None:
    """Raise ValueError if ``shape``, the shape of a dataset, does not fit the sizes of the dataset's axes. The first
    dataset with an axis of some name sets the size of this axis, and later datasets must have the same size."""
    if len(shape) == len(axes):
        expected = tuple(sizes.setdefault(axis, size) for axis, size in zip(axes, shape, strict=True))
        if shape == expected:
            return
    needed = ", ".join(f"{axis}: {sizes[axis]}" if axis in sizes else axis for axis in axes)
    raise ValueError(f"dataset {name!r} has shape {shape}, but ({needed}) is needed")


def _cast(name: str, values, dtype: type) -> np.ndarray:
    array = np.asarray(values)
    if array.dtype.kind not in "biuf":
        raise ValueError(f"dataset {name!r} must hold numbers")
    with np.errstate(invalid="ignore"):
        cast = array.astype(dtype, copy=False)
    if dtype is np.int64 and not np.array_equal(cast, array):
        raise ValueError(f"dataset {name!r} must hold whole numbers")
    return cast
