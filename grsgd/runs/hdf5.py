"""Safe reading of an HDF5 file that another user may have written. The file is read into nested dicts, within limits of
size. Reading an HDF5 file with `Hdf5Reader` opens no other file.

The HDF5 format can refer to other files by external links and external storage. A file can refer to itself by circular
links. A file can also describe much data in few bytes, by data that was never written, one group under many names, or
compression. Files that `grsgd.runs.run_file.save_run` writes have no links, external storage or compression.
`Hdf5Reader` refuses files with links, groups under two names, external storage or compression.
"""

import h5py
import numpy as np

MAX_OBJECTS = 10_000
"""Largest number of groups and datasets together in a file, and largest number of attributes of a group or dataset."""
MAX_LEVELS = 8
MAX_BYTES = 64 * 2**20
"""Largest number of bytes of all arrays of a file together. If the file is larger than `MAX_BYTES`, the file's size is
the limit."""
MAX_TEXTS = 2**16
"""Largest number of elements in an array of texts. The number of texts is limited because each text may be as long as
the file."""


class Hdf5Reader:
    """Reader of one open HDF5 file of ``bytes`` bytes. ``units`` is a dictionary from the path of each dataset that was
    read to its (unit, description)."""

    def __init__(self, file: h5py.File, bytes: int):
        self.file = file
        self.units: dict[str, tuple] = {}
        self._bytes, self._objects, self._seen = max(bytes, MAX_BYTES), MAX_OBJECTS, set()

    def tree(self) -> tuple[dict, dict]:
        """Return the attributes of the root, and the root's content as nested dicts. In the nested dicts a group is a
        dict, a dataset is an array, and any other value is an attribute of its group. Raises ValueError for a file that
        is too large, or that uses features of HDF5 which `Hdf5Reader` refuses."""
        self._count(self.file, "/")
        return self._attributes(self.file, "/"), self._members(self.file, "", MAX_LEVELS)

    def _members(self, group: h5py.Group, path: str, levels: int) -> dict:
        if not levels:
            raise ValueError(f"{path!r}: groups are nested more than {MAX_LEVELS} levels deep")
        return {name: self._member(group, name, f"{path}/{name}".strip("/"), levels) for name in group}

    def _member(self, group: h5py.Group, name: str, path: str, levels: int):
        if group.id.links.get_info(name.encode()).type != h5py.h5l.TYPE_HARD:
            raise ValueError(f"{path!r} is a link to another object or file")
        item = group[name]
        self._count(item, path)
        if isinstance(item, h5py.Group):
            return self._attributes(item, path) | self._members(item, path, levels - 1)
        if not isinstance(item, h5py.Dataset):
            raise ValueError(f"{path!r} is neither a group nor a dataset")
        attributes = self._attributes(item, path)
        self.units[path] = tuple(attributes.get(key, default) for key, default in (("unit", "1"), ("description", "")))
        return self._array(item, path)

    def _count(self, item, path: str):
        address = h5py.h5o.get_info(item.id).addr
        if address in self._seen:
            raise ValueError(f"{path!r} has two names")
        self._seen.add(address)
        self._objects -= 1
        if not self._objects:
            raise ValueError(f"more than {MAX_OBJECTS} groups and datasets")

    def _attributes(self, item, path: str) -> dict:
        if len(item.attrs) > MAX_OBJECTS:
            raise ValueError(f"{path!r} has more than {MAX_OBJECTS} attributes")
        return {name: self._attribute(item, name, f"attribute {name!r} of {path!r}") for name in item.attrs}

    def _attribute(self, item, name: str, what: str):
        """Return the value of the attribute ``name`` of ``item``. The lengths of texts are checked after reading,
        because HDF5 does not tell these lengths before reading."""
        found = item.attrs.get_id(name)
        self._check(what, found.dtype, int(np.prod(found.shape, dtype=float)))
        value = item.attrs[name]
        if found.dtype.hasobject:
            self._bytes -= sum(map(len, np.ravel(value))) if isinstance(value, np.ndarray) else len(value)
            if self._bytes < 0:
                raise ValueError(f"{what} claims to be longer than the whole file")
        return plain(value)

    def _array(self, item: h5py.Dataset, path: str) -> np.ndarray:
        made = item.id.get_create_plist()
        if made.get_layout() not in (h5py.h5d.COMPACT, h5py.h5d.CONTIGUOUS, h5py.h5d.CHUNKED):
            raise ValueError(f"dataset {path!r} lies in other files")
        if made.get_external_count():
            raise ValueError(f"dataset {path!r} lies in another file")
        if made.get_nfilters():
            raise ValueError(f"dataset {path!r} is compressed; `h5repack -f NONE` makes a file in which none is")
        if item.shape is None:
            raise ValueError(f"dataset {path!r} is empty")
        larger = max(int(np.prod(shape, dtype=float)) for shape in (item.shape, item.chunks or ()))
        self._check(f"dataset {path!r}", item.dtype, larger)
        return self._texts(item, path) if h5py.check_string_dtype(item.dtype) else np.asarray(item[()])

    def _texts(self, item: h5py.Dataset, path: str) -> np.ndarray:
        """Return a dataset of texts as an array. The texts of the dataset are read one by one. In the file many
        elements may refer to one long text. In the array each element takes the space of the longest text."""
        texts, longest = np.empty(item.shape, object), 1
        for place in np.ndindex(item.shape):
            texts[place] = item.asstr()[place]
            longest = max(longest, len(texts[place]))
            if 4 * longest * texts.size > self._bytes:
                raise ValueError(f"dataset {path!r} holds {texts.size} texts, one of {longest} characters")
        self._bytes -= 4 * longest * texts.size
        return texts.astype(str)

    def _check(self, what: str, dtype: np.dtype, size: int):
        """Raise ValueError if the dtype of an attribute or dataset is not allowed, or its size is too large. This
        method must be called before the content of the attribute or dataset is read."""
        if dtype.hasobject:
            if not h5py.check_string_dtype(dtype):
                raise ValueError(f"{what} holds neither numbers nor text")
            if size > MAX_TEXTS:
                raise ValueError(f"{what} holds {size} texts, more than {MAX_TEXTS}")
        self._bytes -= size * dtype.itemsize
        if self._bytes < 0:
            raise ValueError(f"{what} is larger than the file: {size} elements")


def plain(value):
    """Return a NumPy scalar or array as a plain Python value or list, and bytes as str."""
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    return value.decode() if isinstance(value, bytes) else value
