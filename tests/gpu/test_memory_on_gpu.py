"""One memory for torch and CuPy: the same addresses, one pool, and no copy that nobody asked for."""

import pytest
import torch

from grsgd.models.flat import Flat
from grsgd.models.replica import Replica
from grsgd.training.device import use

pytestmark = pytest.mark.gpu


def test_arrays_come_from_torchs_pool(gpu):
    before = torch.cuda.memory_allocated()
    flat = Flat.zeros(2**20, torch.float32, gpu)
    assert torch.cuda.memory_allocated() == before + 4 * 2**20
    del flat
    assert torch.cuda.memory_allocated() == before


def test_what_one_frees_the_other_can_have(gpu):
    torch.cuda.empty_cache()
    reserved = torch.cuda.memory_reserved()
    for _ in range(5):
        flat = Flat.zeros(2**26, torch.float32, gpu)
        del flat
        tensor = torch.zeros(2**26, device=gpu)
        del tensor
    assert torch.cuda.memory_reserved() - reserved <= 4 * 2**26 + 2**21


def test_using_a_device_again_changes_nothing(gpu):
    flat = Flat.zeros(10, torch.float32, gpu)
    use(gpu)
    other = flat.like()
    assert other.array.device.id == flat.array.device.id == gpu.index


def test_an_empty_array(gpu):
    flat = Flat.zeros(0, torch.float32, gpu)
    assert flat.tensor.numel() == flat.array.size == 0
    assert flat.tensor.device == gpu


def test_what_one_writes_the_other_reads_at_once(gpu):
    """Both queue their work on one stream."""
    flat = Flat.zeros(2**22, torch.float32, gpu)
    array = flat.array
    for k in range(1, 50):
        flat.tensor.fill_(k)
        array += 1
        assert float(flat.tensor.sum(dtype=torch.float64)) == 2**22 * (k + 1)


def test_gradients_are_accumulated_in_place(gpu):
    """Autograd writes into the flat gradients: no new memory for them, and `collect_gradients` moves nothing."""
    model = torch.nn.Sequential(torch.nn.Linear(100, 50), torch.nn.Linear(50, 10)).to(gpu)
    replica = Replica(model)
    places = [p.grad.data_ptr() for p in model.parameters()]
    for _ in range(3):
        replica.zero_gradients()
        model(torch.randn(8, 100, device=gpu)).sum().backward()
        assert [p.grad.data_ptr() for p in model.parameters()] == places
        replica.collect_gradients()
        assert [p.grad.data_ptr() for p in model.parameters()] == places
    assert places[0] == replica.grads.array.data.ptr
    assert float(abs(replica.grads.array).sum()) > 0
