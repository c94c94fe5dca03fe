"""The compiled loops for an array: on the CPU or on the GPU, by its type."""

import numpy as np


def kernels(array):
    """The module with the kernels for ``array``: NumPy or CuPy; raises TypeError for anything else.

    Both have the same functions. They write into arrays that they are given, and never check lengths.
    """
    if isinstance(array, np.ndarray):
        from coding import cpu

        return cpu
    if type(array).__module__.partition(".")[0] == "cupy":
        from coding import gpu

        return gpu
    raise TypeError(f"an array of type {type(array).__name__}: it must be a NumPy or CuPy array")
