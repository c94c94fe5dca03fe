"""Vectors in the memory of a GPU are compressed as those of the CPU are, random rounding included."""

import numpy as np
import pytest
import torch

from grsgd.comm.compression.compressors import BLOCK, COMPRESSORS, CompressionOptions, make_compressor
from grsgd.models.flat import Flat

pytestmark = pytest.mark.gpu


def there_and_back(name: str, values: torch.Tensor, device) -> np.ndarray:
    """What a receiver makes of the values, on a device."""
    x = Flat.zeros(len(values), values.dtype, torch.device(device))
    x.tensor.copy_(values)
    compressor = make_compressor(CompressionOptions(compression=name), x.tensor)
    payload = compressor.payload()
    compressor.encode(x.tensor, payload.tensor, (7, 1, 3))
    compressor.decode(payload.tensor, x.tensor)
    return x.tensor.cpu().numpy()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1, BLOCK, 100 * BLOCK + 5])
@pytest.mark.parametrize("name", COMPRESSORS)
def test_as_on_the_cpu(gpu, name, size, dtype):
    values = torch.from_numpy(np.random.default_rng(0).standard_normal(size)).to(dtype)
    on_cpu, on_gpu = (there_and_back(name, values, device) for device in ("cpu", gpu))
    if name == "sign":  # of which the mean magnitude is summed up in another order
        np.testing.assert_allclose(on_gpu, on_cpu, rtol=1e-6)
    else:
        np.testing.assert_array_equal(on_gpu, on_cpu)
