"""The gradients of somebody else's loop, as `distribute` takes and returns them, without MPI."""

import torch
from torch import nn

from grsgd.models.replica import Replica
from grsgd.own_loop.gradients import NOTICING_EVERY, NOTICING_STEPS, Gradients


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))


def backward(model):
    model(torch.randn(5, 4)).square().sum().backward()


def gradients_of(model):
    return Gradients(Replica(model, flat_gradients=False))


def test_gradients_are_torchs_until_they_are_sent():
    model = network()
    gradients = gradients_of(model)
    assert all(p.grad is None for p in model.parameters())
    backward(model)
    found = [p.grad for p in model.parameters()]
    model[0].bias.grad = None
    gradients.collect()
    sent = gradients.flat.array
    assert sent[-4:].tolist() == [1, 0, 1, 1]
    assert (sent[12:15] == 0).all()
    assert torch.equal(torch.from_numpy(sent[:12]), found[0].flatten())
    sent[:] /= 2
    gradients.take()
    assert gradients.taken()
    assert model[0].bias.grad is None
    assert torch.equal(model[0].weight.grad, found[0] / 2)


def test_a_gradient_that_another_rank_has():
    model = network()
    gradients = gradients_of(model)
    gradients.collect()
    gradients.flat.array[12:15] = 3
    gradients.flat.array[-3] = 0.5
    gradients.take()
    assert [p.grad is None for p in model.parameters()] == [True, False, True, True]
    assert (model[0].bias.grad == 3).all()


def test_changes_are_noticed_in_the_first_steps_and_now_and_then():
    def step(change):
        for p in model.parameters():
            p.grad = None
        gradients.forget()
        backward(model)
        backward(model)
        change()
        found = gradients.changed()
        gradients.collect()
        gradients.take()
        gradients.forget()
        return found

    model = network()
    gradients = gradients_of(model)
    for _ in range(3):
        assert not step(lambda: None)
    assert step(lambda: model[0].weight.grad.mul_(0.5))
    assert not step(lambda: model[0].weight.grad.mul_(0.5)), "once is enough"
    model = network()
    gradients = gradients_of(model)
    for _ in range(NOTICING_STEPS + 2 * NOTICING_EVERY):
        assert not step(lambda: None)
    found = [step(lambda: model[0].weight.grad.mul_(0.5)) for _ in range(NOTICING_EVERY)]
    assert sum(found) == 1


def test_no_change_is_seen_in_gradients_that_are_kept():
    """`zero_grad(set_to_none=False)`, and a layer that only some steps use."""
    model = network()
    gradients = gradients_of(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        optimizer.zero_grad(set_to_none=False)
        gradients.forget()
        (backward(model) if step % 2 == 0 else model[2](torch.randn(5, 3)).sum().backward())
        assert not gradients.changed()
        gradients.collect()
        gradients.take()
        optimizer.step()
        gradients.forget()


def test_compiled_models():
    model = network()
    gradients = gradients_of(model)
    compiled = torch.compile(model, backend="eager")
    compiled(torch.randn(5, 4)).sum().backward()
    assert not gradients.changed()
    gradients.collect()
    assert gradients.flat.array[-4:].tolist() == [1, 1, 1, 1]
