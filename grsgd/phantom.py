"""Arrays without content, for runs in which only time matters: the NumPy side of torch's device ``meta``."""

import numpy as np

HEAD = 16
"""Bytes at the beginning of a `Phantom` that are real memory: a message's header can be read."""


class Idle:
    """Kernels of `coding` for arrays without content: they do nothing, and find every value within its range."""

    def __getattr__(self, name):
        return lambda *arguments: (0, 0, 0.0) if name == "quantise" else (0, 0)


class Phantom:
    """A one-dimensional array that has a length and a dtype and takes no memory.

    Slices are phantoms too, but for those inside the first `HEAD` bytes, which are NumPy arrays. Arithmetic in place
    does nothing.
    """

    __slots__ = ("size", "dtype", "itemsize", "nbytes", "head")
    kernels = Idle()

    def __init__(self, size: int, dtype, head: bool = True):
        self.size = size
        self.dtype = dtype = np.dtype(dtype)
        self.itemsize = dtype.itemsize
        self.nbytes = size * dtype.itemsize
        self.head = np.zeros(min(HEAD, self.nbytes), np.uint8) if head else None

    def __len__(self):
        return self.size

    def __getitem__(self, part: slice):
        begin, end, _ = part.indices(self.size)
        if self.head is not None and end * self.itemsize <= HEAD:
            return self.head[begin * self.itemsize : end * self.itemsize].view(self.dtype)
        return Phantom(max(end - begin, 0), self.dtype, head=False)

    def __setitem__(self, part, value):
        pass

    def __iadd__(self, other):
        return self

    __isub__ = __imul__ = __itruediv__ = __iadd__

    def reshape(self, *shape) -> "Phantom":
        return self

    def fill(self, value):
        pass

    def view(self, dtype) -> "Phantom":
        same = Phantom(self.nbytes // np.dtype(dtype).itemsize, dtype, head=False)
        same.head = self.head
        return same

    def copy(self) -> "Phantom":
        copy = Phantom(self.size, self.dtype, head=False)
        copy.head = None if self.head is None else self.head.copy()
        return copy

    def receive(self, message):
        """Take over what is real of ``message``, another phantom or a NumPy array."""
        head = message.head if isinstance(message, Phantom) else message.reshape(-1).view(np.uint8)
        if self.head is not None and head is not None:
            length = min(len(self.head), len(head))
            self.head[:length] = head[:length]
