"""Outer state in host memory: the same models as in the memory of the device, for which a double stands."""

import pytest
import torch

from grsgd.algorithms import ALGORITHMS, diloco, noloco
from grsgd.algorithms.outer_state import HostMemory, OuterMemory, outer_memory
from grsgd.models.flat import Flat
from grsgd.own_loop.distribute import distribute
from tests.support.device_double import Memory
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
    for module in (diloco, noloco):
        monkeypatch.setattr(module, "outer_memory", lambda x, place: HostMemory(Memory()))
    there = on_threads(monkeypatch, 2, work)
    assert all(torch.equal(one, other) for one, other in zip(here, there, strict=True))


def test_a_model_in_host_memory_has_one_place_for_all():
    x = Flat.zeros(3, torch.float32, torch.device("cpu"))
    assert type(outer_memory(x, "host")) is type(outer_memory(x, None)) is OuterMemory


def test_a_model_without_parameters_in_a_part_needs_no_memory():
    x = Flat.zeros(0, torch.float32, torch.device("cpu"))
    assert HostMemory(Memory()).like(x).array.size == 0


class Counting(Memory):
    """Memory that counts the bytes that it lends."""

    def __init__(self):
        super().__init__()
        self.lent = 0

    def borrow(self, nbytes):
        self.lent += nbytes
        return super().borrow(nbytes)


@pytest.mark.parametrize(("algorithm", "arrays"), [("diloco", 3), ("noloco", 4)])
def test_the_whole_outer_state_lies_in_host_memory(algorithm, arrays, monkeypatch):
    memory = Counting()
    for module in (diloco, noloco):
        monkeypatch.setattr(module, "outer_memory", lambda x, place: HostMemory(memory))

    def work(mpi):
        model = network()
        optimizer = distribute(model, sgd(model), algorithm, mpi, timeout=20.0, progress_mode="inline", H=2)
        assert memory.lent == arrays * optimizer.replica.nbytes
        assert ALGORITHMS[algorithm].arrays_held(optimizer.algorithm.options, 1) == arrays
        optimizer.finish()

    on_threads(monkeypatch, 1, work)
