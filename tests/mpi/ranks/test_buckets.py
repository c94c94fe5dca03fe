"""Buckets of gradients on the ranks of an MPI job, whose backward passes finish them in an order of their own."""

import time

import numpy as np
import pytest
import torch
from torch import nn

from grsgd import load_run
from grsgd.config import parse
from grsgd.job.run import run
from grsgd.own_loop.distribute import distribute
from tests.mpi.ranks.conftest import WORLD

STEPS = 4
BRANCHES = 6


class Branches(nn.Module):
    """Layers side by side. ``order``: in which this rank goes through them; backward finishes the last one first."""

    def __init__(self, order):
        super().__init__()
        self.order = order
        self.layers = nn.ModuleList([nn.Linear(5, 4 + i) for i in range(BRANCHES)])

    def forward(self, x):
        return sum(self.layers[i](x).square().sum() for i in self.order)


def train(buckets: int, progress_mode: str, seed: int) -> torch.Tensor:
    """Train with one loss for each rank and step, and hold each mean gradient against the ranks' own; returns the
    model."""
    random = np.random.default_rng((seed, WORLD.rank))
    torch.manual_seed(0)
    model = Branches(random.permutation(BRANCHES).tolist()).double()
    finished = []
    for i, layer in enumerate(model.layers):
        layer.weight.register_post_accumulate_grad_hook(lambda p, i=i: finished.append(i))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    options = {"buckets": buckets, "progress_mode": progress_mode, "timeout": 20.0}
    optimizer = distribute(model, optimizer, "ring_allreduce", WORLD, **options)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = model(torch.from_numpy(random.standard_normal((3, 5))))
        time.sleep(random.choice([0, 0, 0.01]))
        loss.backward()
        assert finished == model.order[::-1]
        finished.clear()
        means = [mean(p.grad) for p in model.parameters()]
        optimizer.synchronize()
        for p, expected in zip(model.parameters(), means, strict=True):
            found = p.grad.numpy()
            assert np.abs(found - expected).max() < 1e-12 and (WORLD.size > 2 or (found == expected).all())
            assert len(set(WORLD.allgather(found.tobytes()))) == 1, "bit-identical on all ranks"
        optimizer.step()
    optimizer.finish()
    return nn.utils.parameters_to_vector(model.parameters()).detach()


def mean(gradient) -> np.ndarray:
    return sum(WORLD.allgather(gradient.numpy().copy())) / WORLD.size


@pytest.mark.ranks(1, 2, 3, 4)
@pytest.mark.parametrize("progress_mode", ["inline", "thread"])
@pytest.mark.parametrize("buckets", [1, 3, 100])
def test_gradients_that_come_in_another_order_on_each_rank(buckets, progress_mode):
    first, second = (train(buckets, progress_mode, seed=1) for _ in range(2))
    assert torch.equal(first, second), "bit-identical in all runs"
    assert len(set(WORLD.allgather(first.numpy().tobytes()))) == 1


CONFIG = {
    "model": {"name": "mlp", "hidden": [20, 10]},
    "data": {"name": "synthetic", "samples": 120, "shape": [1, 4, 4], "classes": 3, "batch_size": 6},
    "optimizer": {"lr": 0.1, "momentum": 0.9, "clip": 0.5},
    "train": {"steps": 12, "snapshots": 3},
    "comm": {"timeout": 60.0},
}


@pytest.mark.ranks(2, 3, 4)
@pytest.mark.parametrize(
    "further",
    [{}, {"train": CONFIG["train"] | {"compute_seconds": 2e-3}}, {"gradient": {"micro_batch": 4}}],
    ids=["", "prolonged", "micro-batches"],
)
@pytest.mark.parametrize("progress_mode", ["inline", "thread"])
def test_runs_are_those_without_buckets(progress_mode, further, world, tmp_path_factory):
    """Where an all-reduce sums all elements in one order, bit for bit."""
    folder = world.bcast(tmp_path_factory.mktemp("buckets"))
    losses = []
    for options in ({}, {"buckets": 1}, {"buckets": 4}):
        algorithm = {"name": "ring_allreduce", "variant": "halving-doubling"} | options
        comm, out = CONFIG["comm"] | {"progress_mode": progress_mode}, folder / f"{len(losses)}.h5"
        assert run(world, parse(CONFIG | {"algorithm": algorithm, "comm": comm} | further), out).reason == "steps"
        world.Barrier()
        losses.append(load_run(out).curve["train_loss"])
    assert np.isfinite(losses[0][1:]).all()
    np.testing.assert_array_equal(losses[0], losses[1])
    np.testing.assert_array_equal(losses[0], losses[2])
