"""Whole runs, one after the other in one job."""

import pytest
import torch
from mpi4py import MPI

import grsgd
from grsgd import load_run
from grsgd.config import parse
from grsgd.run import run


class Counted(MPI.Intracomm):
    """Counts the communicators that are made out of it and not freed."""

    alive = 0

    def Dup(self):
        Counted.alive += 1
        return type(self)(super().Dup())

    def Create_group(self, group):
        Counted.alive += 1
        return type(self)(super().Create_group(group))

    def Free(self):
        Counted.alive -= 1
        super().Free()


@pytest.fixture
def counted(world):
    Counted.alive = 0
    return Counted(world)


@pytest.mark.parametrize("name", ["grsgd", "cssgd"])
def test_a_complete_run_leaves_no_communicator(name, counted, tmp_path_factory):
    out = tmp_path_factory.getbasetemp() / f"{name}.h5" if counted.rank == 0 else None
    content = {
        "algorithm": {"name": name},
        "model": {"name": "mlp", "hidden": [4]},
        "data": {"name": "synthetic", "samples": 80, "shape": [1, 4, 4], "classes": 2, "batch_size": 4},
        "train": {"steps": 3, "snapshots": 2},
    }
    if name == "cssgd" and counted.size == 1:
        content["algorithm"]["r"] = 1
    out = counted.bcast(out)
    ending = run(counted, parse(content), out)
    assert ending.stopped == "steps" and ending.living.size == counted.size
    assert Counted.alive == 0
    if counted.rank == 0:
        assert load_run(out).attributes["stopped"] == "steps"


def test_an_own_loop_leaves_no_communicator(counted):
    model = torch.nn.Linear(2, 1)
    optimizer = grsgd.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1), "grsgd", counted)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    assert Counted.alive > 0
    optimizer.finish()
    optimizer.finish()
    assert Counted.alive == 0
