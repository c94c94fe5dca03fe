"""Models of bfloat16 on the ranks of an MPI job: own loops and runs, with messages of 16 bits."""

import pytest
import torch
from torch import nn

from grsgd import load_run
from grsgd.config import parse
from grsgd.job.run import run
from grsgd.own_loop.distribute import distribute
from tests.mpi.ranks.conftest import WORLD

STEPS = 8


def train(algorithm: str, dtype: torch.dtype, **options) -> torch.Tensor:
    """Train a model on each rank's own data, or with ``ssgd`` on one batch of all ranks, and return its parameters."""
    torch.manual_seed(0)
    coded = algorithm == "ssgd"
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)).to(dtype)
    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(0 if coded else WORLD.rank)).to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    optimizer = distribute(model, optimizer, algorithm, WORLD, timeout=20.0, **options)
    for _ in range(STEPS):
        optimizer.zero_grad()
        for block in optimizer.blocks(len(x)) if coded else [slice(None)]:
            (model(x[block]).float() - 1).square().mean().backward()
        optimizer.step()
    optimizer.finish()
    return nn.utils.parameters_to_vector(model.parameters()).detach()


@pytest.mark.parametrize(
    "algorithm, options",
    [
        ("ring_allreduce", {}),
        ("local_sgd", {"H": 4}),
        ("diloco", {"H": 4}),
        ("lasgd", {}),
        ("dpsgd", {}),
        ("grsgd", {}),
        ("sgp", {}),
        ("parameter_server", {"strategy": "bsp", "server": "shared"}),
        ("ssgd", {}),
    ],
)
def test_own_loops(algorithm, options):
    found, right = (train(algorithm, dtype, **options) for dtype in (torch.bfloat16, torch.float32))
    assert found.dtype == torch.bfloat16
    assert len(set(WORLD.allgather(found.view(torch.uint8).numpy().tobytes()))) == 1
    if algorithm not in ("lasgd", "grsgd"):  # whose messages arrive at other times in each training
        assert (found.float() - right).norm() < STEPS * 2**-8 * right.norm()


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("algorithm", ["ring_allreduce", "grsgd"])
def test_runs(algorithm, world, tmp_path_factory):
    out = world.bcast(tmp_path_factory.mktemp("bfloat16")) / "run.h5"
    content = {
        "algorithm": {"name": algorithm},
        "model": {"name": "mlp", "hidden": [10]},
        "data": {"name": "synthetic", "samples": 120, "shape": [1, 4, 4], "classes": 3, "batch_size": 6},
        "train": {"steps": 12, "snapshots": 3},
        "comm": {"timeout": 60.0},
        "dtype": "bfloat16",
    }
    assert run(world, parse(content), out).reason == "steps"
    world.Barrier()
    losses = load_run(out).curve["train_loss"]
    assert losses[-1] < losses[1] * 1.1
