"""The replica: one memory for torch and for communication, whatever optimizers and models do."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from grsgd.models.flat import Flat
from grsgd.models.replica import Replica, views


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def backward(model, seed=0, dtype=torch.float32):
    x = torch.randn(16, 4, generator=torch.Generator().manual_seed(seed)).to(dtype)
    loss = nn.functional.cross_entropy(model(x), torch.arange(16) % 3)
    loss.backward()


def addresses(replica):
    """Where everything lies: torch's view and the array's."""
    pointers = [p.data_ptr() for p in replica.model.parameters()] + [b.data_ptr() for b in replica.model.buffers()]
    arrays = [flat.array.ctypes.data for flat in (replica.params, replica.grads, replica.buffers) if flat is not None]
    return pointers + arrays


def check_memory(replica):
    """Parameters, gradients and buffers lie one after the other in the flat arrays."""
    trained = [p for p in replica.model.parameters() if p.requires_grad]
    floating = [b for b in replica.model.buffers() if b.is_floating_point()]
    kinds = [(replica.params, trained), (replica.buffers, floating)]
    if replica.grads is not None:
        kinds.append((replica.grads, [p.grad for p in trained]))
    for flat, tensors in kinds:
        assert flat.array.flags.c_contiguous
        if not tensors:
            assert flat.array.size == 0
            continue
        assert flat.array.ctypes.data == flat.tensor.data_ptr()
        address = flat.array.ctypes.data
        for tensor in tensors:
            assert tensor.data_ptr() == address
            address += tensor.numel() * tensor.element_size()
        assert address == flat.array.ctypes.data + flat.array.nbytes


OPTIMIZERS = [
    (torch.optim.SGD, dict(lr=0.1, momentum=0.9, weight_decay=1e-3)),
    (torch.optim.Adam, dict(lr=0.01)),
    (torch.optim.AdamW, dict(lr=0.01)),
]


@pytest.mark.parametrize("cls, options", OPTIMIZERS)
@pytest.mark.parametrize("optimizer_first", [True, False])
@pytest.mark.parametrize("set_to_none", [True, False])
def test_memory_stays_shared(cls, options, optimizer_first, set_to_none):
    model = network()
    optimizer = cls(model.parameters(), **options) if optimizer_first else None
    replica = Replica(model)
    optimizer = optimizer or cls(model.parameters(), **options)
    before = addresses(replica)
    check_memory(replica)
    for step in range(3):
        optimizer.zero_grad(set_to_none=set_to_none)
        backward(model, step)
        replica.collect_gradients()
        values = replica.params.array.copy()
        optimizer.step()
        assert (replica.params.array != values).any()
        check_memory(replica)
    assert addresses(replica) == before


def test_the_arrays_hold_what_the_model_holds():
    model = network()
    expected = torch.cat([p.detach().flatten() for p in model.parameters()]).numpy().copy()
    replica = Replica(model)
    np.testing.assert_array_equal(replica.params.array, expected)
    replica.params.array[:] = 0
    assert all((p == 0).all() for p in model.parameters())
    backward(model)
    grads = torch.cat([p.grad.flatten() for p in model.parameters()]).numpy()
    np.testing.assert_array_equal(replica.grads.array, grads)
    assert replica.nbytes == expected.nbytes


def test_batch_statistics_lie_in_the_buffers():
    model = network()
    replica = Replica(model)
    assert replica.buffers.array.size == 16
    backward(model)
    np.testing.assert_array_equal(replica.buffers.array[:8], model[1].running_mean.numpy())
    assert (replica.buffers.array[:8] != 0).any()
    replica.buffers.array[8:] = 5
    assert (model[1].running_var == 5).all()


@pytest.mark.parametrize("flat_gradients", [True, False])
@pytest.mark.parametrize("cls, options", OPTIMIZERS)
def test_training_is_that_of_the_plain_model(cls, options, flat_gradients):
    plain = network()
    model = copy.deepcopy(plain)
    replica = Replica(model, flat_gradients=flat_gradients)
    ours, theirs = cls(model.parameters(), **options), cls(plain.parameters(), **options)
    for step in range(5):
        replica.zero_gradients()
        backward(model, step)
        replica.collect_gradients()
        ours.step()
        theirs.zero_grad()
        backward(plain, step)
        theirs.step()
    for mine, other in zip(model.state_dict().values(), plain.state_dict().values(), strict=True):
        assert torch.equal(mine, other)


@pytest.mark.parametrize("zero", ["model", "optimizer"])
@pytest.mark.parametrize("set_to_none", [True, False])
def test_zero_grad_by_others(zero, set_to_none):
    model = network()
    replica = Replica(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    backward(model, 1)
    (model if zero == "model" else optimizer).zero_grad(set_to_none=set_to_none)
    backward(model, 2)
    replica.collect_gradients()
    check_memory(replica)
    other = network()
    backward(other, 2)
    expected = torch.cat([p.grad.flatten() for p in other.parameters()]).numpy()
    np.testing.assert_array_equal(replica.grads.array, expected)


def test_gradients_add_up():
    """Two backward passes before one step, as in gradient accumulation."""
    model = network()
    replica = Replica(model)
    backward(model, 1)
    first = replica.grads.array.copy()
    replica.collect_gradients()
    backward(model, 1)
    replica.collect_gradients()
    np.testing.assert_allclose(replica.grads.array, 2 * first, rtol=1e-4, atol=1e-7)


def test_zero_gradients():
    model = network()
    replica = Replica(model)
    backward(model)
    replica.zero_gradients()
    assert (replica.grads.array == 0).all()
    check_memory(replica)


def test_zero_gradients_that_autograd_has_put_elsewhere():
    """A batch thrown away after a `zero_grad` of the model's own."""
    model = network()
    replica = Replica(model)
    model.zero_grad(set_to_none=True)
    backward(model)
    replica.zero_gradients()
    check_memory(replica)
    replica.collect_gradients()
    assert (replica.grads.array == 0).all()


def test_a_parameter_without_a_gradient_gets_a_zero_one():
    class Unused(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = nn.Linear(4, 3), nn.Linear(4, 3)

        def forward(self, x):
            return self.used(x)

    model = Unused()
    replica = Replica(model)
    replica.grads.array[:] = 9  # what was there must not be taken for a gradient
    model.zero_grad(set_to_none=True)
    backward(model)
    replica.collect_gradients()
    check_memory(replica)
    assert (replica.grads.array[:15] != 0).any()
    assert (replica.grads.array[15:] == 0).all()


def test_tied_parameters_are_stored_once():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
            self.second.weight = self.first.weight

        def forward(self, x):
            return self.second(self.first(x))

    torch.manual_seed(0)
    model = Tied()
    plain = copy.deepcopy(model)
    replica = Replica(model)
    assert replica.params.array.size == 16
    backward(model)
    backward(plain)
    replica.collect_gradients()
    np.testing.assert_array_equal(replica.grads.array, plain.first.weight.grad.flatten().numpy())
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert model.first.weight is model.second.weight
    check_memory(replica)


def test_frozen_parameters_stay_outside():
    model = network()
    model[0].requires_grad_(False)
    replica = Replica(model)
    assert replica.params.array.size == sum(p.numel() for p in model.parameters() if p.requires_grad)
    check_memory(replica)
    backward(model)
    assert model[0].weight.grad is None
    outside = replica.outside()
    assert [tuple(t.shape) for t in outside] == [(8, 4), (8,), ()]  # and the integer count of batches
    outside[0].zero_()
    assert (model[0].weight == 0).all()


def test_float64():
    model = network()
    replica = Replica(model, torch.float64)
    assert replica.dtype is torch.float64
    for flat in (replica.params, replica.grads, replica.buffers):
        assert flat.array.dtype == np.float64
    backward(model, dtype=torch.float64)
    replica.collect_gradients()
    check_memory(replica)
    assert replica.nbytes == 8 * replica.params.array.size


def test_scalar_and_odd_shapes():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.scalar = nn.Parameter(torch.tensor(2.0))
            self.cube = nn.Parameter(torch.arange(8.0).reshape(2, 2, 2))
            self.strided = nn.Parameter(torch.arange(6.0).reshape(2, 3).t())

    replica = Replica(Odd())
    np.testing.assert_array_equal(replica.params.array, [2, 0, 1, 2, 3, 4, 5, 6, 7, 0, 3, 1, 4, 2, 5])
    check_memory(replica)
    assert replica.model.scalar.shape == ()
    assert replica.buffers.array.size == 0


def test_without_flat_gradients():
    model = network()
    replica = Replica(model, flat_gradients=False)
    assert replica.grads is None
    backward(model)
    gradients = [p.grad for p in model.parameters()]
    replica.collect_gradients()
    assert all(p.grad is gradient for p, gradient in zip(model.parameters(), gradients, strict=True))
    replica.zero_gradients()
    assert all(p.grad is None for p in model.parameters())
    check_memory(replica)


@pytest.mark.parametrize("flat_gradients", [True, False])
def test_on_each_gradient(flat_gradients):
    model = network()
    replica = Replica(model, flat_gradients=flat_gradients)
    calls = []
    replica.on_each_gradient(lambda: calls.append(1))
    backward(model)
    assert len(calls) == 6


def test_mixed_dtypes():
    model = network()
    model[3].double()
    assert Replica(model, flat_gradients=False).dtype is torch.float64 and model[0].weight.dtype is torch.float32
    assert Replica(model, torch.float32).dtype is torch.float32


def test_nothing_to_train():
    for model in (nn.ReLU(), network().requires_grad_(False)):
        with pytest.raises(ValueError, match="no parameter that requires a gradient"):
            Replica(model)


def test_complex_parameters():
    with pytest.raises(ValueError, match="numbers on one device; found torch.complex64 on cpu"):
        Replica(nn.Linear(2, 2, dtype=torch.complex64))


def test_dtypes_that_numpy_lacks():
    with pytest.raises(ValueError, match="torch.float8_e5m2, which NumPy does not have; allowed: torch.bfloat16, "):
        Replica(network().to(torch.float8_e5m2))
    assert Replica(network().half()).params.array.dtype == np.float16


def test_flat():
    flat = Flat.zeros(3, torch.float64, torch.device("cpu"))
    flat.array[1] = 2
    assert flat.tensor.tolist() == [0, 2, 0]
    other = flat.like()
    assert (other.array == 0).all() and other.array.dtype == np.float64
    assert not np.shares_memory(other.array, flat.array)


def test_views():
    flat = torch.arange(6.0)
    parts = views(flat, [torch.zeros(2, 2), torch.zeros(2)])
    assert [part.tolist() for part in parts] == [[[0, 1], [2, 3]], [4, 5]]
    assert views(torch.zeros(0), []) == []


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1, 3, 1000, 1_000_003])
def test_memory_begins_at_a_line_of_the_cache(dtype, size):
    flat = Flat.zeros(size, dtype, torch.device("cpu"))
    assert flat.tensor.data_ptr() == flat.array.__array_interface__["data"][0]
    assert flat.tensor.data_ptr() % 64 == 0 and flat.like().tensor.data_ptr() % 64 == 0
    assert flat.array.shape == flat.tensor.shape == (size,) and flat.tensor.dtype == dtype
    assert not flat.array.any() and flat.array.flags.c_contiguous and flat.array.flags.writeable


def test_disjoint_and_shared_memory():
    whole = torch.randn(12)
    model = nn.Module()
    model.a, model.b = nn.Parameter(whole[:6].view(2, 3)), nn.Parameter(whole[6:])
    Replica(copy.deepcopy(model))
    model.c = nn.Parameter(whole[5:7], requires_grad=False)
    with pytest.raises(ValueError, match="parameters 'a' and 'c' lie in one memory"):
        Replica(model)
    model.a.requires_grad_(False)
    with pytest.raises(ValueError, match="parameters '[bc]' and '[bc]' lie in one memory"):
        Replica(model)
    model = nn.Module()
    model.table = torch.zeros(3)
    model.a = nn.Parameter(model.table[:2])
    with pytest.raises(ValueError, match=r"^parameter 'a' lies in the memory of 'table', and would .* copy \(.clone"):
        Replica(model)
    with pytest.raises(ValueError, match="^parameter 'weight' lies in memory that processes share .*share a copy"):
        Replica(nn.Linear(2, 1).share_memory())


class Views(nn.Module):
    """Views of a parameter, of a buffer and of a table that is no buffer; a buffer made of an array of NumPy."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.register_buffer("turned", self.linear.weight.data.t())
        self.rows = [self.linear.weight.data[0]]
        self.register_buffer("statistics", torch.zeros(2, 3))
        self.register_buffer("mean", self.statistics[0])
        self.table, self.array = torch.zeros(2, 3), np.zeros(3, np.float32)
        self.register_buffer("row", self.table[0])
        self.register_buffer("of_array", torch.from_numpy(self.array))
        self.register_buffer("whole", torch.zeros(2))


def check_views(model):
    with torch.no_grad():
        model.linear.weight.add_(1)
    for tensor in (model.statistics, model.table, model.array):
        tensor += 1
    assert torch.equal(model.turned, model.linear.weight.t()) and torch.equal(model.rows[0], model.linear.weight[0])
    assert torch.equal(model.mean, model.statistics[0]) and torch.equal(model.row, model.table[0])
    assert model.of_array.tolist() == model.array.tolist()


def test_views_stay_views():
    model = Views()
    replica = Replica(model)
    check_views(model)
    assert replica.buffers.array.size == 8 and list(replica.tensors())[2:] == ["statistics", "whole"]
    assert replica.left_in_place == ["row", "of_array"]
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.linear.weight.add_(1)
    replica.follow(other)
    assert torch.equal(other.turned, other.linear.weight.t())
    replica.leave()
    check_views(model)
    assert model.linear.weight.untyped_storage().nbytes() == 24


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
def test_what_lies_outside_is_dense():
    """Expanded tensors once, indices and values of sparse ones, the bytes of others."""
    model = nn.Linear(3, 2)
    model.frozen = nn.Parameter(torch.ones(1, 3).expand(4, 3), requires_grad=False)
    buffers = {
        "expanded": torch.arange(3.0).expand(2, -1),
        "places": torch.arange(4).expand(2, -1),
        "sparse": torch.eye(3).to_sparse(),
        "rows": torch.eye(3).to_sparse_csr(),
        "short": torch.ones(2, dtype=torch.bfloat16),
        "none": None,
    }
    for name, buffer in buffers.items():
        model.register_buffer(name, buffer)
    replica = Replica(model)
    assert [tensor.numel() for tensor in replica.outside()] == [3, 3, 4, 6, 3, 4, 3, 3, 2]
    for tensor in replica.outside():
        tensor.zero_()
    assert not model.frozen.any() and not model.expanded.any() and not model.sparse.to_dense().any()
    assert replica.buffers.array.size == 0 and replica.left_in_place == []
