"""Arrays without content, for runs that only simulate times. An array without content corresponds to a tensor on
torch's device ``meta``."""

import numpy as np

PREFIX_BYTES = 16
"""Number of bytes at the beginning of a ``ShapeOnlyArray`` that have content, so that algorithms can read the headers
of messages."""


WITHOUT_CONTENT = (
    "with --check and --timing-only arrays have no content, and no NumPy function works on them: create memory for a "
    "model by self.x.like(), compute with its .tensor, and send its .array"
)


class ShapeOnlyArray:
    """One-dimensional array that has a length and a dtype, but no content except its first ``PREFIX_BYTES`` bytes.

    Slices of this array within its first ``PREFIX_BYTES`` bytes are NumPy arrays. All other slices of this array are
    `ShapeOnlyArray` objects, too. The slice of all elements is this array itself. Arithmetic in place on this array
    does nothing.
    """

    __slots__ = ("size", "dtype", "itemsize", "nbytes", "prefix")

    def __init__(self, size: int, dtype, real_prefix: bool = True):
        self.size = size
        self.dtype = dtype = np.dtype(dtype)
        self.itemsize = dtype.itemsize
        self.nbytes = size * dtype.itemsize
        self.prefix = np.zeros(min(PREFIX_BYTES, self.nbytes), np.uint8) if real_prefix else None

    def __len__(self):
        return self.size

    def __array__(self, *_, **__):
        raise TypeError(WITHOUT_CONTENT)

    def __getitem__(self, part: slice):
        if not isinstance(part, slice):
            raise TypeError(WITHOUT_CONTENT)
        begin, end, _ = part.indices(self.size)
        if self.prefix is not None and end * self.itemsize <= PREFIX_BYTES:
            return self.prefix[begin * self.itemsize : end * self.itemsize].view(self.dtype)
        if (begin, end) == (0, self.size):
            return self
        return ShapeOnlyArray(max(end - begin, 0), self.dtype, real_prefix=False)

    def __setitem__(self, part, value):
        pass

    def __iadd__(self, other):
        return self

    __isub__ = __imul__ = __itruediv__ = __iadd__

    def reshape(self, *shape) -> "ShapeOnlyArray":
        return self

    def fill(self, value):
        pass

    def view(self, dtype) -> "ShapeOnlyArray":
        same = ShapeOnlyArray(self.nbytes // np.dtype(dtype).itemsize, dtype, real_prefix=False)
        same.prefix = self.prefix
        return same

    def copy(self) -> "ShapeOnlyArray":
        copy = ShapeOnlyArray(self.size, self.dtype, real_prefix=False)
        copy.prefix = None if self.prefix is None else self.prefix.copy()
        return copy

    def receive(self, message):
        """Copy the first ``PREFIX_BYTES`` bytes of ``message`` into this array. All other bytes of this array still
        have no content.

        ``message`` is a `ShapeOnlyArray` or a NumPy array.
        """
        prefix = message.prefix if isinstance(message, ShapeOnlyArray) else message.reshape(-1).view(np.uint8)
        if self.prefix is not None and prefix is not None:
            length = min(len(self.prefix), len(prefix))
            self.prefix[:length] = prefix[:length]
