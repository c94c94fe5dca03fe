"""All tests here are skipped, with the reason, where torch or CuPy find no GPU."""

import pytest
import torch

from grsgd.errors import ConfigError
from grsgd.training.device import pick_device, use


@pytest.fixture(scope="session", autouse=True)
def gpu():
    """The first GPU, for torch and CuPy alike; convolutions with all digits, to be compared with those of the CPU."""
    try:
        device = pick_device("cuda")
    except ConfigError as error:
        pytest.skip(str(error))
    use(device)
    torch.backends.cudnn.allow_tf32 = False
    return device
