"""The replica on a GPU: one memory for torch and CuPy, and the CPU's results to float tolerance."""

import copy

import pytest
import torch

from grsgd.models import zoo as models
from grsgd.models.mixing import add_difference, mix
from grsgd.models.replica import Replica

pytestmark = pytest.mark.gpu


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
def test_same_memory_before_and_after_steps(gpu, name):
    replica = steps(models.build(name, (1, 28, 28), 10), gpu)
    assert replica.params.array.data.ptr == replica.params.tensor.data_ptr()
    assert next(replica.model.parameters()).data_ptr() == replica.params.tensor.data_ptr()
    assert next(replica.model.parameters()).grad.data_ptr() == replica.grads.array.data.ptr


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_same_result_as_on_the_cpu(gpu, name):
    torch.manual_seed(0)
    model = models.build(name, (1, 28, 28), 10)
    on_gpu = steps(copy.deepcopy(model), gpu)
    on_cpu = steps(model, torch.device("cpu"))
    assert torch.allclose(on_gpu.params.tensor.cpu(), on_cpu.params.tensor, atol=1e-4)


def test_convolutions_that_are_repeatable(gpu, monkeypatch):
    """As algorithms need them in which several ranks compute the gradient of one block."""
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    model = models.build("cnn", (1, 28, 28), 10)
    first, second = (steps(copy.deepcopy(model), gpu) for _ in range(2))
    assert torch.equal(first.params.tensor, second.params.tensor)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("others", [0, 1, 2, 7])
def test_mix(gpu, others, dtype):
    x, *ys = torch.randn(others + 1, 100_001, dtype=dtype)
    weights = [1 / (k + 2) for k in range(others)]
    on_gpu = x.to(gpu)
    mix(on_gpu, 0.25, [(weight, y.to(gpu)) for weight, y in zip(weights, ys, strict=True)])
    mix(x, 0.25, list(zip(weights, ys, strict=True)))
    torch.testing.assert_close(on_gpu.cpu(), x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_add_difference(gpu, dtype):
    x, y, s = torch.randn(3, 100_001, dtype=dtype)
    on_gpu = x.to(gpu)
    add_difference(on_gpu, y.to(gpu), s.to(gpu), 0.5)
    add_difference(x, y, s, 0.5)
    torch.testing.assert_close(on_gpu.cpu(), x)
