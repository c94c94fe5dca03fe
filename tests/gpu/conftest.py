"""Fixtures of tests on a GPU: all tests here are skipped, with the reason, if torch or CuPy find no GPU."""

import pytest
import torch

from grsgd.errors import ConfigError
from grsgd.training.device import pick_device, use


@pytest.fixture(scope="session", autouse=True)
def gpu():
    """Return the first GPU, for torch and CuPy; convolutions keep full float32 precision, to be compared with
    the CPU."""
    try:
        device = pick_device("cuda")
    except ConfigError as error:
        pytest.skip(str(error))
    use(device)
    torch.backends.cudnn.allow_tf32 = False
    return device
