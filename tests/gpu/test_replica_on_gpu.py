"""The replica on a GPU: one memory for torch and CuPy, and the CPU's results to float tolerance."""

import copy

import pytest
import torch

from grsgd import models
from grsgd.mixing import mix
from grsgd.replica import Replica

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def gpu():
    if not torch.cuda.is_available():
        pytest.skip("torch finds no GPU")
    pytest.importorskip("cupy", reason="CuPy is not installed")


def steps(model, device, count=5):
    replica = Replica(model.to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    random = torch.Generator().manual_seed(0)
    for _ in range(count):
        x = torch.randn(16, 1, 28, 28, generator=random).to(device)
        y = torch.randint(10, (16,), generator=random).to(device)
        replica.zero_gradients()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        replica.collect_gradients()
        optimizer.step()
    return replica


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_same_memory_before_and_after_steps(name):
    replica = steps(models.build(name, (1, 28, 28), 10), torch.device("cuda"))
    assert replica.params.array.data.ptr == replica.params.tensor.data_ptr()
    assert next(replica.model.parameters()).data_ptr() == replica.params.tensor.data_ptr()
    assert next(replica.model.parameters()).grad.data_ptr() == replica.grads.array.data.ptr


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_same_result_as_on_the_cpu(name):
    model = models.build(name, (1, 28, 28), 10)
    on_gpu = steps(copy.deepcopy(model), torch.device("cuda"))
    on_cpu = steps(model, torch.device("cpu"))
    assert torch.allclose(on_gpu.params.tensor.cpu(), on_cpu.params.tensor, atol=1e-4)


def test_mix():
    x, y = torch.randn(100_000), torch.randn(100_000)
    expected = 0.25 * x + 0.75 * y
    on_gpu = x.cuda()
    mix(on_gpu, 0.25, [(0.75, y.cuda())])
    assert torch.allclose(on_gpu.cpu(), expected, atol=1e-6)
