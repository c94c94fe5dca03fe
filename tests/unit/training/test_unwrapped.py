"""Steps of torch optimizers without what torch wraps around them: the same steps, and whoever is to see one does."""

import subprocess
import sys

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from grsgd.training import unwrapped


class Own(torch.optim.SGD):
    """One whose methods are its own."""

    cleared = 0

    def step(self, closure=None):
        with torch.no_grad():
            for p in self.param_groups[0]["params"]:
                p.sub_(1)

    def zero_grad(self, set_to_none=True):
        self.cleared += 1
        super().zero_grad(set_to_none)


def trained(cls, step, steps=3, **options):
    torch.manual_seed(0)
    model = torch.nn.Linear(5, 3)
    optimizer = cls(model.parameters(), lr=0.1, **options)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(2, 5)).square().sum().backward()
        step(optimizer)
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize("cls, options", [(torch.optim.SGD, {"momentum": 0.9}), (torch.optim.AdamW, {}), (Own, {})])
def test_the_same_step(cls, options):
    assert torch.equal(trained(cls, unwrapped.step, **options), trained(cls, lambda o: o.step(), **options))


def linear():
    model = torch.nn.Linear(5, 3)
    model(torch.ones(2, 5)).sum().backward()
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


@pytest.mark.parametrize("register", ["register_step_pre_hook", "register_step_post_hook"])
def test_hooks_see_it(register):
    _, optimizer = linear()
    seen = []
    getattr(optimizer, register)(lambda *_: seen.append("this one"))
    unwrapped.step(optimizer)
    assert seen == ["this one"]


@pytest.mark.parametrize("register", [register_optimizer_step_pre_hook, register_optimizer_step_post_hook])
def test_hooks_of_all_optimizers_see_it(register):
    _, optimizer = linear()
    seen = []
    handle = register(lambda *_: seen.append("any"))
    try:
        unwrapped.step(optimizer)
    finally:
        handle.remove()
    unwrapped.step(optimizer)
    assert seen == ["any"]


def test_a_profiler_sees_both():
    _, optimizer = linear()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        unwrapped.step(optimizer)
        unwrapped.zero_grad(optimizer, True)
    names = {event.key for event in profile.key_averages()}
    assert {"Optimizer.step#SGD.step", "Optimizer.zero_grad#SGD.zero_grad"} <= names


def test_a_scheduler_knows_of_it(recwarn):
    _, optimizer = linear()
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    unwrapped.step(optimizer)
    scheduler.step()
    assert not recwarn and optimizer.param_groups[0]["lr"] == 0.05


def test_gradients_are_cleared():
    model, optimizer = linear()
    unwrapped.zero_grad(optimizer, False)
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters())
    unwrapped.zero_grad(optimizer, True)
    assert all(p.grad is None for p in model.parameters())
    own = Own(model.parameters(), lr=0.1)
    unwrapped.zero_grad(own, True)
    assert own.cleared == 1


def test_operations_are_counted_without_loading_the_compiler():
    """Of a model without content, as the simulator has it, in a fresh process."""
    program = """
import sys
import torch
from torch.utils.flop_counter import FlopCounterMode
from grsgd.simulator.compute import flops

layers = torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Flatten(), torch.nn.Linear(144, 3)
model = torch.nn.Sequential(*layers)
state = torch.random.get_rng_state()
found = flops(model.to("meta"), torch.zeros(1, 8, 8), 16)
assert torch.equal(state, torch.random.get_rng_state())
assert "torch._dynamo" not in sys.modules
with FlopCounterMode(display=False) as counter:
    model(torch.zeros(16, 1, 8, 8, device="meta")).sum().backward()
assert found == counter.get_total_flops() > 0
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=100)
