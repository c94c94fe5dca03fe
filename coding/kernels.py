"""The compiled loops for an array: on the CPU or on the GPU, by its type."""

import numpy as np


def kernels(array):
    """What has the kernels for ``array``: NumPy, CuPy, or a type that brings ``kernels`` of its own; else TypeError.

    All have the functions of `coding.cpu`. They write into arrays that they are given, and never check lengths.
    """
    if isinstance(array, np.ndarray):
        from coding import cpu

        return cpu
    if type(array).__module__.partition(".")[0] == "cupy":
        from coding import gpu

        return gpu
    if hasattr(array, "kernels"):
        return array.kernels
    raise TypeError(f"an array of type {type(array).__name__}: it must be a NumPy or CuPy array")
