"""Loops of one's own over the blocks of a common batch, on real MPI."""

import numpy as np
import pytest
import torch
from torch import nn

import grsgd

STEPS, SAMPLES = 5, 24


def batch(step):
    return torch.randn(SAMPLES, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(step))


def take_step(model, optimizer, step):
    x = batch(step)
    optimizer.zero_grad()
    for block in optimizer.blocks(SAMPLES):
        model(x[block]).square().mean().backward()
    optimizer.step()


def trained(world, algorithm, dropout=0.0, loop=take_step, **options):
    torch.manual_seed(world.rank)
    model = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Dropout(dropout), nn.Linear(4, 2)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = grsgd.distribute(model, optimizer, algorithm, world, timeout=20.0, **options)
    first = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    for step in range(STEPS):
        loop(model, optimizer, step)
        models = world.allgather(nn.utils.parameters_to_vector(model.parameters()).detach().numpy().tobytes())
        assert all(other == models[0] for other in models), "replicas are bit-identical after each step"
    optimizer.finish()
    return first, nn.utils.parameters_to_vector(model.parameters()).detach()


@pytest.mark.ranks(2, 3, 4)
@pytest.mark.parametrize("algorithm", ["cssgd", "ssgd"])
def test_blocks_make_the_gradient_of_the_whole_batch(world, algorithm):
    first, found = trained(world, algorithm, **({"r": 2} if algorithm == "cssgd" else {}))
    model = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    nn.utils.vector_to_parameters(first, model.parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(STEPS):
        optimizer.zero_grad()
        model(batch(step)).square().mean().backward()
        optimizer.step()
    np.testing.assert_allclose(found, nn.utils.parameters_to_vector(model.parameters()).detach(), rtol=0, atol=1e-7)


@pytest.mark.ranks(3)
def test_all_ranks_that_compute_a_block_draw_the_same_dropout(world):
    """The draws of the script itself, outside of the blocks, stay the same on all ranks, too."""
    draws = []

    def loop(model, optimizer, step):
        if step == 0:
            torch.manual_seed(5)
        take_step(model, optimizer, step)
        draws.append(torch.rand(1).item())

    _, coded = trained(world, "cssgd", dropout=0.5, loop=loop)
    torch.manual_seed(5)
    assert draws == [torch.rand(1).item() for _ in range(STEPS)]
    _, plain = trained(world, "ssgd", dropout=0.5, r=2)
    assert coded.numpy().tobytes() == plain.numpy().tobytes()
