"""Average over ranks of the state that an optimizer keeps for each parameter, if ranks keep different state."""

import pytest
import torch

from grsgd.algorithms.averaging import exact_average
from grsgd.training.momenta import agree, momenta, set_momenta
from tests.support.polled_ranks import Post

CPU = torch.device("cpu")


class Counting(torch.optim.Optimizer):
    """Optimizer that counts its steps per parameter in an int, and keeps further state from its third step on."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1})

    def step(self):
        for p in self.param_groups[0]["params"]:
            if p.grad is not None:
                state = self.state[p]
                state["count"] = state.get("count", 0) + 1
                state["sum"] = state.get("sum", torch.zeros_like(p)) + p.grad
                if state["count"] >= 3:
                    state["late"] = torch.ones(5)


KINDS = {
    "adam": torch.optim.Adam,
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1),
    "own": Counting,
}


def trained(kind: str, *steps: int):
    """Return an optimizer of a frozen parameter and of others, each of which has had that number of steps."""
    parameters = [torch.nn.Parameter(torch.full((9,), 2.0), requires_grad=False)]
    parameters += [torch.nn.Parameter(torch.full((size,), 2.0)) for size in range(1, 1 + len(steps))]
    optimizer = KINDS[kind](parameters)
    for step in range(max(steps)):
        for parameter, count in zip(parameters[1:], steps, strict=True):
            parameter.grad = torch.ones_like(parameter) if step < count else None
        optimizer.step()
    return optimizer


def averaged(optimizers: list, weights: list[float]) -> list[torch.Tensor]:
    """Average the state of the ranks' optimizers; return the flat state of each rank."""

    def schedule(comm, optimizer, weight):
        yield from agree(comm, optimizer, weight)
        flat = momenta(optimizer, CPU)
        yield from exact_average(comm, flat, weight, root=weights.index(1.0))
        set_momenta(optimizer, flat.tensor)

    post = Post(len(optimizers))
    post.finish(map(schedule, post.communicators(), optimizers, weights))
    return [momenta(optimizer, CPU).tensor for optimizer in optimizers]


@pytest.mark.parametrize("kind", KINDS)
def test_a_rank_that_has_just_joined_takes_over_the_state(kind):
    """Its model and its gradients are not touched."""
    giver, other, new = trained(kind, 2, 0, 2), trained(kind, 2, 0, 2), trained(kind, 0, 0, 0)
    before = momenta(giver, CPU).tensor.clone()
    gradient = new.param_groups[0]["params"][1].grad = torch.ones(1)
    for found in averaged([giver, new, other], [1.0, 0.0, 1.0]):
        assert torch.equal(found, before) and found.numel() > 0
    assert all((p == 2).all() for p in new.param_groups[0]["params"])
    assert new.param_groups[0]["params"][1].grad is gradient and new.param_groups[0]["params"][3].grad is None
    first, third = (new.state[new.param_groups[0]["params"][number]] for number in (1, 3))
    assert set(first) == set(third) == set(giver.state[giver.param_groups[0]["params"][1]])
    assert kind != "own" or first["count"] == 2


@pytest.mark.parametrize("kind", KINDS)
def test_parameters_that_only_some_ranks_have_trained(kind):
    """Where no counted rank has trained a parameter, its state from a step that was broken off goes."""
    ranks = [trained(kind, 2, 2, 0), trained(kind, 2, 0, 0), trained(kind, 2, 0, 1)]
    found = averaged(ranks, [1.0, 1.0, 0.0])
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])
    for optimizer in ranks:
        kept = [number for number, p in enumerate(optimizer.param_groups[0]["params"]) if p in optimizer.state]
        assert kept == [1, 2]


def test_state_of_different_keys_begins_anew():
    ranks = [trained("own", 3, 2), trained("own", 2, 2)]
    found = averaged(ranks, [1.0, 1.0])
    assert torch.equal(found[0], found[1]) and found[0].tolist() == [2.0, 2.0, 2.0]  # a count, and the sum of size 2


def test_counters_are_exact_with_models_of_16_bits():
    def optimizer():
        parameter = torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
        adam = torch.optim.Adam([parameter])
        parameter.grad = torch.ones_like(parameter)
        for _ in range(301):
            adam.step()
        return adam

    found = averaged([optimizer(), optimizer()], [1.0, 1.0])
    assert torch.equal(found[0], found[1]) and 301.0 in found[0].tolist()


def test_an_optimizer_without_state():
    ranks = [torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1) for _ in range(2)]
    assert [found.numel() for found in averaged(ranks, [1.0, 0.0])] == [0, 0]
