"""Loops of one's own with a parameter server, on real MPI."""

import pytest
import torch
from torch import nn

import grsgd

STEPS = 6


def loss(model, rank, step):
    noise = torch.Generator().manual_seed(100 * step + rank)
    return model(torch.randn(4, 6, dtype=torch.float64, generator=noise)).square().mean()


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 2)).double()


def started(world, algorithm, progress, **options):
    model = network(seed=world.rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    options |= {"timeout": 20.0, "progress_mode": progress}
    return model, grsgd.distribute(model, optimizer, algorithm, world, **options)


def values(model):
    return nn.utils.parameters_to_vector(model.parameters()).detach().clone()


def alone(workers, first, steps):
    model = network()
    nn.utils.vector_to_parameters(first.clone(), model.parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(steps):
        optimizer.zero_grad()
        (sum(loss(model, rank, step) for rank in range(workers)) / workers).backward()
        optimizer.step()
    return values(model)


@pytest.mark.ranks(2, 3, 4)
@pytest.mark.parametrize("server", ["dedicated", "shared"])
@pytest.mark.parametrize("progress", ["inline", "thread"])
def test_synchronous_steps_are_those_of_a_plain_script(world, server, progress):
    """Each epoch has an average and a rest within the loop, and a barrier of the script after the loop."""
    model, optimizer = started(world, "parameter_server", progress, strategy="bsp", server=server)
    first = values(model)
    for epoch in range(2):
        for step in optimizer.batches(range(STEPS)):
            optimizer.zero_grad()
            loss(model, world.rank, STEPS * epoch + step).backward()
            optimizer.step()
            if step == 2:
                optimizer.averaged_model()
                optimizer.rest()
        world.Barrier()
        averaged = values(optimizer.averaged_model())
        expected = alone(optimizer.workers, first, STEPS * (epoch + 1))
        torch.testing.assert_close(averaged, expected, rtol=1e-12, atol=1e-14)
    optimizer.finish()
    torch.testing.assert_close(values(model), expected, rtol=1e-12, atol=1e-14)
    assert optimizer.steps == (2 * STEPS if world.rank < optimizer.workers else 0)


@pytest.mark.ranks(2, 4)
@pytest.mark.parametrize("progress", ["inline", "thread"])
@pytest.mark.parametrize(
    "algorithm, options",
    [
        ("parameter_server", {}),
        ("parameter_server", {"server": "shared", "servers": 2, "compression": "int8"}),
        ("parameter_server", {"strategy": "asp", "compensation": 0.04}),
        ("asgd", {}),
        ("decoupled", {"H": 3}),
    ],
)
def test_all_ranks_end_with_the_model_of_the_server(world, tmp_path, algorithm, options, progress):
    """Workers take different numbers of steps, and the run file has the bytes of the ranks that serve, too."""
    model, optimizer = started(world, algorithm, progress, **options)
    path = world.bcast(str(tmp_path / "run.h5"))
    with grsgd.recording(path, optimizer, batch_size=4, metric=grsgd.Metric("mse")) as run:
        for step in optimizer.batches(range(STEPS + 3 * world.rank)):
            optimizer.zero_grad()
            loss(model, world.rank, step).backward()
            optimizer.step()
        optimizer.finish()
        run.log(mse=loss(model, 0, 0))
    models = world.allgather(values(model).numpy().tobytes())
    assert all(other == models[0] for other in models) and values(model).isfinite().all()
    if world.rank == 0:
        serving = optimizer.workers < world.size
        steps = [STEPS + 3 * rank for rank in range(optimizer.workers)]
        assert list(run.result.ranks["steps"]) == steps + [0] * serving
        assert (run.result.traffic["sent"].sum(axis=1) > 0).all()
