"""A double of CuPy for machines without a GPU. The double compiles kernels as C++ for the CPU, and uses arrays in host
memory.

The double has only the functions that the project uses. A kernel computes one element after another. So the double
shows whether the arithmetic of a kernel is right, but not whether a GPU finishes the kernel in time.
"""

import ctypes
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import numpy as np

int32, int64, uint64 = np.int32, np.int64, np.uint64
C = {"int32": "int", "int64": "long long", "uint64": "unsigned long long", "float32": "float", "float64": "double"}
PRELUDE = """
#include <cmath>
#include <cstring>
using std::isfinite; using std::isnan;
typedef unsigned long long word;
static word atomicAdd(word* at, word value) { word old = *at; *at += value; return old; }
static word atomicMax(word* at, word value) { word old = *at; if (value > old) *at = value; return old; }
static long long __double_as_longlong(double x) { long long bits; memcpy(&bits, &x, 8); return bits; }
static int __double2int_rn(double x) {
    x = std::nearbyint(x);
    return x >= 2147483647.0 ? 2147483647 : x <= -2147483648.0 ? -2147483647 - 1 : (int)x;
}
"""


class ndarray:
    """An array with which only kernels can compute, like an array in GPU memory."""

    def __init__(self, host: np.ndarray):
        self.host = host

    dtype = property(lambda self: self.host.dtype)
    shape = property(lambda self: self.host.shape)
    size = property(lambda self: self.host.size)

    def get(self) -> np.ndarray:
        return self.host.copy()

    def __getitem__(self, key):
        return ndarray(self.host[key])

    def reshape(self, shape):
        return ndarray(self.host.reshape(shape))


ndarray.__module__ = "cupy"  # the project recognises CuPy's arrays by this name


def asarray(host, dtype=None):
    return ndarray(np.array(host, dtype))


def empty(shape, dtype):
    return ndarray(np.full(shape, 77, dtype))


def zeros(shape, dtype):
    return ndarray(np.zeros(shape, dtype))


def from_dlpack(tensor):
    return ndarray(tensor.numpy())


class ElementwiseKernel:
    """A kernel. Call the kernel with its input arrays, then its output arrays; the kernel neither makes nor casts
    arrays.

    ``size`` is the number of elements, and must be given if all arrays are declared as raw.
    """

    def __init__(self, in_params: str, out_params: str, operation: str, name: str):
        self.operation = operation
        self.params = [param.split() for params in (in_params, out_params) for param in params.split(",")]
        self.outputs = len(out_params.split(","))

    def __call__(self, *arguments, size: int | None = None):
        assert len(arguments) == len(self.params)
        types: dict[str, str] = {}
        """Element type of the arrays, by the letter that stands for the type in the kernel's parameters."""
        sizes, declared, bound, passed = set() if size is None else {size}, [], [], []
        for place, ((*raw, kind, name), argument) in enumerate(zip(self.params, arguments, strict=True)):
            if not isinstance(argument, ndarray):
                assert place < len(self.params) - self.outputs and isinstance(argument, (int, float))
                declared.append(f"{C[kind]} {name}")
                passed.append({"int64": ctypes.c_longlong, "float64": ctypes.c_double}[kind](argument))
                continue
            actual = argument.dtype.name
            expected = types.setdefault(kind, actual) if len(kind) == 1 else kind
            if actual != expected:
                raise TypeError(f"{name}: {actual} instead of {expected}")
            assert argument.host.flags.c_contiguous
            declared.append(f"{C[actual]}* {name}{'' if raw else '_all'}")
            passed.append(ctypes.c_void_p(argument.host.ctypes.data))
            if not raw:
                assert size is None
                bound.append(f"{C[actual]}& {name} = {name}_all[i];")
                sizes.add(argument.size)
        (size,) = sizes
        names = "".join(f"typedef {C[actual]} {letter};\n" for letter, actual in types.items() if len(letter) == 1)
        function = compiled(
            f"{PRELUDE}{names}extern \"C\" void kernel(long long size, {', '.join(declared)}) {{\n"
            f"for (long long i = 0; i < size; ++i) {{ {' '.join(bound)}\n{self.operation};\n}} }}\n"
        )
        function(ctypes.c_longlong(size), *passed)


@cache
def compiled(source: str):
    with tempfile.TemporaryDirectory() as folder:
        text, library = Path(folder, "kernel.cpp"), Path(folder, "kernel.so")
        text.write_text(source)
        warnings = ["-Wall", "-Werror", "-Wno-unused", "-Wno-unknown-pragmas"]
        flags = ["-O1", "-ffp-contract=off", "-shared", "-fPIC", *warnings]
        done = subprocess.run(["c++", *flags, "-o", library, text], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"{done.stderr}\n{source}"
        return ctypes.CDLL(str(library)).kernel
