"""Loops of one's own on a GPU that two ranks share: whole models, adapters, and parameters of bfloat16."""

import pytest
import torch

from tests.gpu.on_ranks import on_ranks
from tests.gpu.train_own_loops import LOOPS

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """The parameters of all loops, trained on the GPU and on the CPU."""
    folder = tmp_path_factory.mktemp("own-loops")
    for device in ("cpu", "cuda"):
        on_ranks(2, "train_own_loops.py", device, folder)
    return folder


@pytest.mark.parametrize("name", LOOPS)
def test_an_own_loop_trains_as_on_the_cpu(folder, name):
    on_cpu, on_gpu = (torch.load(folder / f"{device}-{name}.pt", weights_only=True) for device in ("cpu", "cuda"))
    _, dtype, _, _ = LOOPS[name]
    # The CPU sends bfloat16, and the GPU float32, so that their roundings differ in each step.
    tolerance = 0.05 if dtype is torch.bfloat16 else 1e-6
    assert on_cpu.keys() == on_gpu.keys()
    for key, expected in on_cpu.items():
        torch.testing.assert_close(on_gpu[key].double(), expected.double(), rtol=tolerance, atol=tolerance)
