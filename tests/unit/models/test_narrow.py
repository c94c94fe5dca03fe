"""Parameters that are narrower than the array of all parameters: the arithmetic, and loops with every algorithm."""

import pytest
import torch
from torch import nn

from grsgd.algorithms.base import ALGORITHMS
from grsgd.models.narrow import NarrowParameters, take_over
from grsgd.models.replica import Replica
from grsgd.own_loop.distribute import distribute
from tests.support.own_loop import SEEDING, leaves_nothing, sgd, vector
from tests.support.threads import on_threads

pytestmark = pytest.mark.usefixtures("leaves_nothing")
__all__ = ["leaves_nothing"]
LOOPS = [
    ("ring_allreduce", {}),
    ("ring_allreduce", {"variant": "halving-doubling"}),
    ("ring_allreduce", {"compression": "int8"}),
    ("local_sgd", {"H": 2, "beta": 0.5}),
    ("diloco", {"H": 2}),
    ("noloco", {"H": 2}),
    ("dpsgd", {}),
    ("sgp", {}),
    ("choco_sgd", {}),
    ("exact_diffusion", {}),
    ("gradient_tracking", {}),
    ("relaysgd", {}),
    ("lasgd", {}),
    ("grsgd", {"H": 2}),
    ("gosgd", {"p": 0.5}),
    ("gossip", {}),
    ("easgd", {}),
    ("adpsgd", {}),
]
REFUSED = ("cssgd", "ssgd", "asgd", "parameter_server", "decoupled")
STEPS = 6


class Mixed(nn.Module):
    """Network with a body of bfloat16, and a norm and a head of other dtypes."""

    def __init__(self, body=torch.bfloat16, norm=torch.float32, head=torch.float64):
        super().__init__()
        with SEEDING:
            torch.manual_seed(0)
            self.body, self.norm, self.head = nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 2)
        self.body, self.norm, self.head = self.body.to(body), self.norm.to(norm), self.head.to(head)

    def forward(self, x):
        for part in (self.body, self.norm, self.head):
            x = part(x.to(next(part.parameters()).dtype))
        return x


def loss(model, rank: int, step: int):
    random = torch.Generator().manual_seed(10 * step + rank)
    return (model(torch.randn(5, 4, generator=random)) - 1).square().mean()


def trained(mpi, model, algorithm, options, steps=range(STEPS), kept=None):
    optimizer = distribute(model, sgd(model), algorithm, mpi, timeout=20.0, **options)
    if kept is not None:
        optimizer.load_state_dict(kept)
    for step in steps:
        optimizer.zero_grad()
        loss(model, mpi.rank, step).backward()
        optimizer.step()
    return optimizer


def bits(model) -> list:
    return [p.detach().view(torch.uint8).tolist() for p in model.parameters()]


@pytest.mark.parametrize("algorithm, options", LOOPS, ids=str)
@pytest.mark.parametrize("dtypes", [(torch.bfloat16, torch.float32, torch.float32), (torch.bfloat16,) * 3])
def test_a_loop_is_that_of_wide_parameters_within_16_bits(algorithm, options, dtypes, monkeypatch):
    def work(mpi):
        found, wide = Mixed(*dtypes), Mixed(torch.float32, torch.float32, torch.float32)
        trained(mpi, found, algorithm, options).finish()
        trained(mpi, wide, algorithm, options).finish()
        assert [p.dtype for p in found.parameters()] == [dtype for dtype in dtypes for _ in range(2)]
        return bits(found), vector(found.float()), vector(wide)

    (mine, found, right), (theirs, *_) = on_threads(monkeypatch, 2, work)
    assert mine == theirs
    if ALGORITHMS[algorithm].traits.synchronous:
        assert (found - right).norm() < STEPS * 2**-7 * right.norm()


def test_the_mean_gradient_is_rounded_once(monkeypatch):
    """The models equal those of a script that averages the gradients of the ranks itself, bit for bit."""

    def work(mpi):
        model = Mixed()
        trained(mpi, model, "ring_allreduce", {}).finish()
        return bits(model)

    models = [Mixed(), Mixed()]
    optimizers = [sgd(model) for model in models]
    for step in range(STEPS):
        for rank, model in enumerate(models):
            model.zero_grad()
            loss(model, rank, step).backward()
        for p, other in zip(*(model.parameters() for model in models), strict=True):
            p.grad = other.grad = ((p.grad.double() + other.grad.double()) / 2).to(p.dtype)
        for optimizer in optimizers:
            optimizer.step()
    assert on_threads(monkeypatch, 2, work) == [bits(model) for model in models]


@pytest.mark.parametrize("algorithm, options", [("dpsgd", {}), ("diloco", {"H": 2}), ("ring_allreduce", {})])
def test_a_loop_goes_on_bit_for_bit(algorithm, options, monkeypatch):
    """The saved state has the bits that the parameters lack."""

    def work(mpi):
        whole, first, second = Mixed(), Mixed(), Mixed()
        trained(mpi, whole, algorithm, options).finish()
        optimizer = trained(mpi, first, algorithm, options, range(3))
        kept, weights = optimizer.state_dict(), {name: value.clone() for name, value in first.state_dict().items()}
        optimizer.close()
        optimizer = distribute(second, sgd(second), algorithm, mpi, timeout=20.0, **options)
        second.load_state_dict(weights)
        optimizer.load_state_dict(kept)
        for step in range(3, STEPS):
            optimizer.zero_grad()
            loss(second, mpi.rank, step).backward()
            optimizer.step()
        optimizer.finish()
        return bits(whole), bits(second)

    assert all(whole == second for whole, second in on_threads(monkeypatch, 2, work))


def test_changes_by_the_script_are_averaged_too(monkeypatch):
    def work(mpi):
        model = Mixed()
        optimizer = distribute(model, sgd(model), "dpsgd", mpi, timeout=20.0)
        model.body.weight.data.fill_(mpi.rank)
        averaged = optimizer.averaged_model().body.weight
        optimizer.finish()
        return averaged.unique().tolist(), model.body.weight.unique().tolist()

    assert on_threads(monkeypatch, 2, work) == [([0.5], [0.5])] * 2


@pytest.mark.parametrize("name", REFUSED)
def test_algorithms_whose_models_have_one_dtype(name, monkeypatch):
    """A whole model of bfloat16 is trained: tests/unit/algorithms/test_bfloat16.py."""

    def work(mpi):
        model = Mixed()
        with pytest.raises(ValueError, match=f"of several dtypes with {name}: .*allowed") as caught:
            distribute(model, sgd(model), name, mpi, timeout=20.0)
        assert "\n" not in str(caught.value)
        return True

    assert all(on_threads(monkeypatch, 2, work))
    assert set(REFUSED) | {name for name, _ in LOOPS} == set(ALGORITHMS)


def test_an_element_takes_over_exactly_what_has_changed():
    part = torch.tensor([1.0, 1.0, 1.001, 1.001, 1.001])
    before = torch.ones(5, dtype=torch.bfloat16)
    now = torch.tensor([1.0, 1e-6, 1.0, 1.5, 1.0]).bfloat16()
    take_over(part, now, before)
    assert part.tolist() == pytest.approx([1.0, now[1].item(), 1.001, 1.501, 1.001], abs=1e-7)
    assert part[1] == now[1].float()
    take_over(part, part.bfloat16(), before)  # a model that was loaded after the array
    assert part[3] == torch.tensor(1.001) + 0.5


@pytest.mark.parametrize("shape", [(), (3,), (5, 7), (300, 300)])
def test_every_change_is_found(shape):
    p = nn.Parameter(torch.zeros(shape, dtype=torch.bfloat16))
    part = torch.ones(shape)
    narrow = NarrowParameters([p], [part])
    assert not part.any()
    p.data.view(-1)[-1] = 0.5
    narrow.settle()
    assert part.view(-1)[-1] == 0.5 and part.count_nonzero() == 1
    part.fill_(1.001)
    narrow.settle()
    assert torch.equal(p.data, torch.ones_like(p)) and (part == torch.tensor(1.001)).all()


def test_parameters_in_another_order_of_memory():
    p = nn.Parameter(torch.zeros(2, 3, 4, 4, dtype=torch.bfloat16).to(memory_format=torch.channels_last))
    part = torch.zeros(2, 3, 4, 4)
    narrow = NarrowParameters([p], [part])
    p.data.copy_(torch.arange(96).view(2, 3, 4, 4))
    narrow.settle()
    assert torch.equal(part, torch.arange(96.0).view(2, 3, 4, 4)) and torch.equal(p.data, part.bfloat16())


def test_the_array_has_the_widest_dtype():
    assert Replica(Mixed(), flat_gradients=False).dtype is torch.float64
    assert Replica(Mixed(torch.float16, torch.bfloat16, torch.float16), flat_gradients=False).dtype is torch.float32
    replica = Replica(Mixed(head=torch.float32), flat_gradients=False)
    assert replica.dtype is torch.float32 and replica.narrow
    assert not Replica(Mixed().float()).narrow
    replica.params.tensor.zero_()
    replica.settle()
    assert not any(p.any() for p in replica.model.parameters())
