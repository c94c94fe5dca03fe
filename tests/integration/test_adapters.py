"""Adapters of a frozen base: the base is sent once at most, and neither averages nor saved states copy it."""

import io

import pytest
import torch
from torch import nn

from grsgd.own_loop.distribute import distribute
from tests.support.own_loop import leaves_nothing, vector
from tests.support.threads import on_threads

pytestmark = pytest.mark.usefixtures("leaves_nothing")
__all__ = ["leaves_nothing"]
WIDE, NARROW = 200, 2
BASE_BYTES = 4 * WIDE * WIDE
ADAPTER_BYTES = 4 * 2 * WIDE * NARROW


class Adapter(nn.Module):
    """Low-rank adapter (Hu et al. 2021) of a frozen linear layer, with the mean of its outputs as a buffer."""

    def __init__(self, seed):
        super().__init__()
        random = torch.Generator().manual_seed(seed)
        self.base = nn.Linear(WIDE, WIDE, bias=False).requires_grad_(False)
        self.down, self.up = (nn.Parameter(torch.zeros(shape)) for shape in ((NARROW, WIDE), (WIDE, NARROW)))
        self.register_buffer("mean", torch.zeros(WIDE))
        self.register_buffer("order", torch.randperm(2**13, generator=random))
        self.register_buffer("calls", torch.tensor(0))
        for p in (self.base.weight, self.down):
            p.data.normal_(generator=random)

    def forward(self, x):
        y = self.base(x) + x @ self.down.T @ self.up.T
        self.mean.lerp_(y.detach().mean(0), 0.5)
        self.calls += 1
        return y


def distributed(mpi, algorithm="ring_allreduce", seed=0):
    model = Adapter(seed)
    sgd = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e-4)
    return model, distribute(model, sgd, algorithm, mpi, timeout=20.0, progress_mode="inline")


def train(model, optimizer, steps=3):
    for k in range(steps):
        optimizer.zero_grad()
        model(torch.full((2, WIDE), 0.1 * k + optimizer.algorithm.comm.rank)).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("differs", [False, True])
def test_a_base_is_sent_only_if_it_differs(differs, monkeypatch):
    def work(mpi):
        model, optimizer = distributed(mpi, seed=mpi.rank if differs else 0)
        started = int(optimizer._uncounted_comm.traffic.sent.sum())
        base, order = model.base.weight.clone(), model.order.clone()
        optimizer.close()
        return started, base, order

    (sent, *mine), (_, *others) = on_threads(monkeypatch, 2, work)
    expected = Adapter(0)
    for tensors in (mine, others):
        assert torch.equal(tensors[0], expected.base.weight) and torch.equal(tensors[1], expected.order)
    trained = ADAPTER_BYTES + 4 * WIDE
    frozen = BASE_BYTES + 8 * 2**13
    assert trained + differs * frozen <= sent < trained + differs * frozen + 1000


@pytest.mark.parametrize("algorithm", ["ring_allreduce", "dpsgd", "diloco"])
def test_steps_send_the_adapters_alone(algorithm, monkeypatch):
    def work(mpi):
        model, optimizer = distributed(mpi, algorithm)
        train(model, optimizer, steps=8)
        sent = int(optimizer.algorithm.comm.traffic.sent.sum())
        optimizer.finish()
        return sent

    for sent in on_threads(monkeypatch, 2, work):
        assert ADAPTER_BYTES <= sent <= 8 * (ADAPTER_BYTES + 4 * WIDE) + 100


def test_averages_share_the_base(monkeypatch):
    def work(mpi):
        model, optimizer = distributed(mpi, "local_sgd")
        train(model, optimizer)
        averaged, trained = optimizer.averaged_model(), optimizer.averaged_state_dict()
        mine = {name: value.clone() for name, value in model.state_dict().items()}
        assert averaged.base.weight is not model.base.weight
        assert averaged.base.weight.data_ptr() == model.base.weight.data_ptr()
        assert not averaged.base.weight.requires_grad and averaged.mean.data_ptr() != model.mean.data_ptr()
        assert trained.keys() == {"down", "up", "mean", "order", "calls"}
        for name, value in trained.items():
            assert torch.equal(value, averaged.state_dict()[name])
            assert value.untyped_storage().nbytes() == value.nbytes, "a file of it is no longer than it"
        averaged.double()
        assert model.base.weight.dtype == torch.float32
        optimizer.finish()
        assert optimizer.averaged_model().base.weight.data_ptr() == model.base.weight.data_ptr()
        assert all(torch.equal(value, model.state_dict()[name]) for name, value in
                   optimizer.averaged_state_dict().items())
        other = Adapter(0)
        other.load_state_dict(trained, strict=False)
        return mine, trained, vector(other)

    mine, trained, loaded = zip(*on_threads(monkeypatch, 2, work), strict=True)
    assert torch.equal(loaded[0], loaded[1])
    for name, value in trained[0].items():
        assert torch.equal(value, trained[1][name])
        if value.is_floating_point():
            torch.testing.assert_close(value, (mine[0][name] + mine[1][name]) / 2)


def test_a_base_that_ranks_have_changed_stays_theirs(monkeypatch):
    """An average is the mean of the bases, in memory of its own; the saved state of the optimizer has no base."""

    def work(mpi):
        model, optimizer = distributed(mpi, "diloco")
        train(model, optimizer)
        model.base.weight.data.fill_(2.0 * mpi.rank)
        averaged = optimizer.averaged_model()
        assert set(averaged.base.weight.flatten().tolist()) == {1.0}
        assert set(model.base.weight.flatten().tolist()) == {2.0 * mpi.rank}
        file = io.BytesIO()
        torch.save(optimizer.state_dict(), file)
        optimizer.finish()
        assert set(model.base.weight.flatten().tolist()) == {1.0}
        return len(file.getvalue())

    assert max(on_threads(monkeypatch, 2, work)) < 5 * ADAPTER_BYTES + 10_000 < BASE_BYTES
