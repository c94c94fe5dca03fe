"""The codec's GPU kernels give the CPU's results, bit for bit."""

import pytest

from tests.support.coding_on_gpu import test_combinations, test_fixed_point, test_packets, test_sums  # noqa: F401

pytestmark = pytest.mark.gpu


@pytest.fixture
def cupy(gpu):
    import cupy

    return cupy
