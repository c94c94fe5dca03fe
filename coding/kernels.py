"""Choice of the kernels (compiled loops) for an array by the array's type: kernels of the CPU, or kernels of the
GPU."""

import numpy as np

_registered: dict[type, object] = {}


def register(kind: type, kernels):
    """Register ``kernels``, which must have the functions of `coding.cpu`, for arrays of type ``kind``."""
    _registered[kind] = kernels


def kernels(array):
    """Return the module with the kernels for ``array``, which may be of NumPy, CuPy, or a registered type. Raise
    TypeError if the type of ``array`` is neither of NumPy, nor of CuPy, nor registered.

    All modules with kernels have the same functions as `coding.cpu`. Kernels write into given arrays and never check
    lengths.
    """
    if isinstance(array, np.ndarray):
        from coding import cpu

        return cpu
    if type(array).__module__.partition(".")[0] == "cupy":
        from coding import gpu

        return gpu
    if type(array) in _registered:
        return _registered[type(array)]
    raise TypeError(f"an array of type {type(array).__name__}: it must be a NumPy or CuPy array")
