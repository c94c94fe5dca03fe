"""The arithmetic of the GPU's kernels: their C++ is compiled for the CPU and must give the CPU's results."""

import shutil
import sys

import pytest
import torch

import coding
from grsgd.models import mixing
from tests.support import cupy_double
from tests.support.coding_on_gpu import test_combinations, test_fixed_point, test_packets, test_sums  # noqa: F401

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")


class OnGpu(torch.Tensor):
    is_cuda = True


@pytest.fixture(autouse=True)
def cupy(monkeypatch):
    """The double, for all who import CuPy during a test."""

    def forget():
        sys.modules.pop("coding.gpu", None)
        vars(coding).pop("gpu", None)
        mixing._weighted_sum.cache_clear()
        mixing._difference.cache_clear()

    monkeypatch.setitem(sys.modules, "cupy", cupy_double)
    forget()
    yield cupy_double
    forget()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("others", [0, 1, 2, 7])
def test_mix(others, dtype):
    x, *ys = torch.randn(others + 1, 1001, dtype=dtype)
    weights = [1 / (k + 2) for k in range(others)]
    with_kernel = x.clone().as_subclass(OnGpu)
    mixing.mix(with_kernel, 0.25, list(zip(weights, ys, strict=True)))
    mixing.mix(x, 0.25, list(zip(weights, ys, strict=True)))
    torch.testing.assert_close(torch.Tensor(with_kernel), x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_add_difference(dtype):
    x, y, s = torch.randn(3, 1001, dtype=dtype)
    with_kernel = x.clone().as_subclass(OnGpu)
    mixing.add_difference(with_kernel, y, s, 0.5)
    mixing.add_difference(x, y, s, 0.5)
    torch.testing.assert_close(torch.Tensor(with_kernel), x)
