"""Own training loops that block elsewhere, or run two algorithms: messages move whatever else a rank does."""

import itertools

import pytest
import torch

from grsgd import distribute
from grsgd.algorithms import ALGORITHMS, lasgd

NAMES = sorted(name for name, cls in ALGORITHMS.items() if not cls.traits.decides_who_computes)
OPTIONS = {"gossip": {"period": 1}, "easgd": {"period": 2}, "adpsgd": {"topology": "full"}, "local_sgd": {"H": 2}}
"""So that a rank needs the others in nearly every step."""
PAIRS = list(itertools.combinations_with_replacement(NAMES, 2))
MODES = "inline", "thread"
TIMEOUT = 30.0


def learner(world, name, progress, seed=0, **options):
    torch.manual_seed(seed)
    model = torch.nn.Linear(6, 3).double()
    sgd = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)
    options = OPTIONS.get(name, {}) | options
    return model, distribute(model, sgd, name, world, timeout=TIMEOUT, progress_mode=progress, **options)


def take_step(model, optimizer, step):
    noise = torch.Generator().manual_seed(step)
    optimizer.zero_grad()
    model(torch.randn(4, 6, generator=noise, dtype=torch.float64)).square().mean().backward()
    optimizer.step()


def equal_on_all_ranks(world, model):
    models = world.allgather([p.detach().numpy().tobytes() for p in model.parameters()])
    return all(one == models[0] for one in models)


@pytest.mark.ranks(2, 3, 4)
@pytest.mark.parametrize("progress", MODES)
@pytest.mark.parametrize("name", NAMES)
def test_a_barrier_between_epochs(world, name, progress):
    """Where the algorithm lets ranks run ahead, they take different numbers of steps: who is in the barrier must go on
    answering the others."""
    model, optimizer = learner(world, name, progress)
    uneven = 0 if optimizer.algorithm.traits.synchronous else 7 * world.rank
    for epoch in range(3):
        for step in range(5 + uneven):
            take_step(model, optimizer, step)
        world.Barrier()
        assert world.allreduce(epoch) == epoch * world.size
    optimizer.finish()
    assert equal_on_all_ranks(world, model)


@pytest.mark.ranks(3)
@pytest.mark.parametrize("options", [{"resync": 2}, {"Hmax": 2}, {"merge": "cocod", "Hmin": 2}, {"warmup": 20}])
def test_a_barrier_where_training_waits_for_averages(world, monkeypatch, options):
    """A rank in the barrier joins the rounds that others wait for."""
    monkeypatch.setattr(lasgd, "IDLE_SECONDS", 0.05)
    model, optimizer = learner(world, "lasgd", "inline", **options)
    for _ in range(2):
        for step in range(4 + 3 * world.rank):
            take_step(model, optimizer, step)
        world.Barrier()
    optimizer.finish()
    assert equal_on_all_ranks(world, model)


@pytest.mark.ranks(2, 3, 4)
@pytest.mark.parametrize("first, second", PAIRS)
def test_two_algorithms_in_one_script(world, first, second):
    """Each in turn, after the first step in another order on every other rank where none is bound to the others'."""
    progress = itertools.islice(itertools.product(MODES, MODES), PAIRS.index((first, second)) % 4, None)
    learners = [learner(world, *pair) for pair in zip((first, second), next(progress), strict=True)]
    free = not any(optimizer.algorithm.traits.synchronous for _, optimizer in learners)
    for step in range(8):
        for model, optimizer in reversed(learners) if free and step and world.rank % 2 else learners:
            take_step(model, optimizer, step)
    for model, optimizer in learners:
        optimizer.finish()
        assert equal_on_all_ranks(world, model)
