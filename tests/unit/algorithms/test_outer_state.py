"""Outer state in host memory: the same models as in the memory of the device, for which a double stands."""

import pytest
import torch

from grsgd.algorithms import ALGORITHMS
from grsgd.algorithms.outer_state import HostMemory, OuterMemory, outer_memory
from grsgd.models.flat import Flat
from grsgd.own_loop.distribute import distribute
from tests.support.device_double import Memory, place_outer_state
from tests.support.own_loop import leaves_nothing, loss, network, plain, sgd, vector
from tests.support.threads import on_threads

pytestmark = pytest.mark.usefixtures("leaves_nothing")
__all__ = ["leaves_nothing"]
CASES = [
    ("diloco", {"H": 2}),
    ("diloco", {"H": 4, "fragments": 2, "mix": 0.3}),
    ("diloco", {"H": 4, "fragments": 2, "delay": 1}),
    ("diloco", {"H": 3, "delay": 2, "mix": 0.5}),
    ("diloco", {"H": 2, "compression": "int8"}),
    ("noloco", {"H": 2}),
    ("lasgd", {"merge": "cocod", "Hmin": 2}),
    ("lasgd", {"merge": "anchor", "Hmax": 1}),
    ("lasgd", {"warmup": 4, "merge": "cocod", "Hmin": 3}),
    ("gradient_tracking", {}),
    ("exact_diffusion", {}),
    ("choco_sgd", {}),
    ("ring_allreduce", {"compression": "top-k", "ratio": 0.3}),
    ("ring_allreduce", {"compression": "power-sgd", "matrix_rank": 1}),
    ("parameter_server", {"strategy": "bsp", "server": "shared", "compression": "sign"}),
]


@pytest.mark.parametrize(("algorithm", "options"), CASES)
def test_the_place_of_the_outer_state_changes_no_bit(algorithm, options, monkeypatch):
    """Copies of the double happen late, so a model that changes too early would be seen."""

    def work(mpi):
        model = network()
        optimizer = distribute(model, sgd(model), algorithm, mpi, timeout=20.0, progress_mode="inline", **options)
        found = []
        for k in range(9):
            plain(model, optimizer, lambda k: loss(model, mpi.rank, k), k)
            found.append(vector(model))
        optimizer.finish()
        return torch.stack([*found, vector(model)])

    here = on_threads(monkeypatch, 2, work)
    place_outer_state(monkeypatch, lambda x, place: HostMemory(Memory()))
    there = on_threads(monkeypatch, 2, work)
    assert all(torch.equal(one, other) for one, other in zip(here, there, strict=True))


CPU = torch.device("cpu")


def test_a_model_in_host_memory_has_one_place_for_all():
    x = Flat.zeros(3, torch.float32, CPU)
    assert type(outer_memory(x, "host")) is type(outer_memory(x, None)) is OuterMemory


def test_a_model_without_parameters_in_a_part_needs_no_memory():
    x = Flat.zeros(0, torch.float32, CPU)
    assert HostMemory(Memory()).like(x).array.size == 0


@pytest.mark.parametrize("algorithm", ["ring_allreduce", "parameter_server", "asgd"])
def test_without_a_compression_nothing_is_kept(algorithm):
    Options = ALGORITHMS[algorithm].Options
    assert Options(outer_state="host", compression="int8").outer_state == "host"
    with pytest.raises(ValueError, match='outer_state = "host": needs a compression'):
        Options(outer_state="host")


def tensors(dtype):
    """Tensors of all shapes that gradients have: a number, nothing, a matrix in another order of its elements."""
    shapes = (), (0, 3), (5,), (4, 3)
    return [torch.randn(shape).to(dtype) for shape in shapes] + [torch.randn(3, 4).T.to(dtype)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_gradients_come_back_as_they_were(dtype):
    memory, found = HostMemory(Memory()), tensors(dtype)
    wanted = [2 * tensor for tensor in found]
    room = Flat.zeros(sum(tensor.numel() for tensor in found), torch.promote_types(dtype, torch.float32), CPU)
    held = result_of(memory.take_all(found, room))
    assert all(y.data_ptr() != tensor.data_ptr() for y, tensor in zip(held, found, strict=True) if tensor.numel())
    for y in held:
        y.mul_(2)
    memory.put_all(held, found)
    assert all(torch.equal(tensor, want) for tensor, want in zip(found, wanted, strict=True))


def result_of(schedule):
    """The result of a schedule whose pollables become true when they are tested."""
    while True:
        try:
            pollable = next(schedule)
        except StopIteration as end:
            return end.value
        while not pollable.Test():
            pass
