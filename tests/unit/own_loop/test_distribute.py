"""`distribute` on ranks that are threads, against plain loops; on processes: tests/mpi/ranks/test_own_loops.py."""

import copy
import inspect
import warnings

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from grsgd.algorithms import ALGORITHMS, equal_models, equal_tensors
from grsgd.own_loop.distribute import OWN_OPTIONS, distribute
from grsgd.own_loop.distributed_optimizer import DistributedOptimizer
from grsgd.own_loop.forward_hook import length
from grsgd.own_loop.ranks import shard
from grsgd.own_loop.roll_call import FINISH
from tests.support.own_loop import leaves_nothing, loss, network, plain, sgd, vector
from tests.support.threads import on_threads

STEPS = 4
pytestmark = pytest.mark.usefixtures("leaves_nothing")
__all__ = ["leaves_nothing"]
def alone(n, step):
    """The model that ``step(model, optimizer, losses, k)`` makes on one rank, with the mean loss of ``n``."""
    model = network()
    optimizer = sgd(model)
    for k in range(STEPS):
        step(model, optimizer, lambda k, part=0: sum(loss(model, rank, k, part) for rank in range(n)) / n, k)
    return vector(model)


def together(monkeypatch, n, step, algorithm="ring_allreduce", **options):
    """The models of ``n`` ranks, and their optimizers."""

    def work(mpi):
        model = network(seed=mpi.rank)
        optimizer = distribute(model, sgd(model), algorithm, mpi, timeout=20.0, progress_mode="inline", **options)
        for k in range(STEPS):
            step(model, optimizer, lambda k, part=0: loss(model, mpi.rank, k, part), k)
        optimizer.finish()
        return vector(model), optimizer

    return zip(*on_threads(monkeypatch, n, work), strict=True)


def closure(model, optimizer, losses, k):
    def calculate():
        optimizer.zero_grad()
        with torch.enable_grad():
            value = losses(k)
        value.backward()
        return value.item()

    with torch.no_grad():
        assert optimizer.step(calculate) > 0


def accumulated(model, optimizer, losses, k):
    optimizer.zero_grad()
    losses(k).backward()
    losses(k, 1).backward()
    optimizer.step()


def clipped(model, optimizer, losses, k):
    optimizer.zero_grad()
    losses(k).backward()
    if isinstance(optimizer, DistributedOptimizer):
        optimizer.synchronize()
    nn.utils.clip_grad_norm_(model.parameters(), 0.05)
    optimizer.step()


def thrown_away(model, optimizer, losses, k):
    losses(k, 1).backward()
    optimizer.zero_grad()
    losses(k).backward()
    optimizer.step()


@pytest.mark.parametrize("options", [{}, {"buckets": 2}], ids=str)
@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("step", [plain, closure, accumulated, clipped, thrown_away])
def test_gradients_are_those_of_all_ranks(n, step, options, monkeypatch):
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        models, optimizers = together(monkeypatch, n, step, **options)
    expected = alone(n, step)
    for model in models:
        torch.testing.assert_close(model, expected, rtol=1e-12, atol=1e-14)
    for optimizer in optimizers:
        sent = optimizer.algorithm.comm.traffic.messages.sum()
        messages = {1: 0, 2: 1, 3: 4}[n]  # two ranks exchange what is short
        assert options or sent == STEPS * messages, "the gradients of a step are sent once"


# ---- algorithms that send models


@pytest.mark.parametrize("algorithm, options", [("local_sgd", {"H": 1}), ("dpsgd", {"topology": "full"})])
def test_models_are_those_of_all_ranks(algorithm, options, monkeypatch):
    """Where every step is determined: the mean of what all ranks have made of their models."""
    models, _ = together(monkeypatch, 3, plain, algorithm, **options)
    ranks = [network() for _ in range(3)]
    optimizers = [sgd(model) for model in ranks]
    for k in range(STEPS):
        before = [vector(model) for model in ranks]
        for rank, (model, optimizer) in enumerate(zip(ranks, optimizers, strict=True)):
            plain(model, optimizer, lambda k, model=model, rank=rank: loss(model, rank, k), k)
        changes = [vector(model) - old for model, old in zip(ranks, before, strict=True)]
        for model, change in zip(ranks, changes, strict=True):
            mean = sum(before) / 3 + (change if algorithm == "dpsgd" else sum(changes) / 3)
            nn.utils.vector_to_parameters(mean, model.parameters())
    for model in models:
        torch.testing.assert_close(model, sum(vector(model) for model in ranks) / 3, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("algorithm", ["sgp", "grsgd", "gosgd", "adpsgd", "gossip", "easgd", "lasgd"])
def test_ranks_end_with_one_model(algorithm, monkeypatch):
    models, _ = together(monkeypatch, 2, plain, algorithm)
    assert torch.equal(*models) and models[0].isfinite().all()


@pytest.mark.parametrize("algorithm, number", [("local_sgd", 0), ("grsgd", 1)])
def test_messages_move_while_gradients_are_computed(algorithm, number, monkeypatch):
    """By hooks on the gradients, where no thread does it; they go with `finish`."""

    def work(mpi):
        model = network()
        optimizer = distribute(model, sgd(model), algorithm, mpi, progress_mode="inline")
        hooked = hooks_of(model)
        optimizer.finish()
        return hooked, hooks_of(model), model._forward_pre_hooks

    def hooks_of(model):
        return [len(p._post_accumulate_grad_hooks or ()) for p in model.parameters()]

    for n in (1, 2):
        for hooked, after, before_forward in on_threads(monkeypatch, n, work):
            assert hooked == [number * (n > 1)] * 4 and after == [0] * 4 and not before_forward


# ---- what is the same on all ranks


class Odd(nn.Module):
    """A frozen parameter, a number that counts, statistics."""

    def __init__(self, rank):
        super().__init__()
        self.weight = nn.Parameter(torch.full((3,), 1.0 + rank))
        self.frozen = nn.Parameter(torch.full((2,), 1.0 + rank), requires_grad=False)
        self.register_buffer("count", torch.tensor(5 + rank))
        self.register_buffer("statistics", torch.full((2,), 1.0 + rank))

    def forward(self, x):
        return (self.weight * x).sum() + self.frozen.sum()


def test_all_start_from_rank_0(monkeypatch):
    def work(mpi):
        model = Odd(mpi.rank)
        optimizer = distribute(model, sgd(model), "grsgd", mpi)
        found = copy.deepcopy(model.state_dict()), model._forward_pre_hooks
        start = optimizer.replica.buffers_at_start.tolist()
        optimizer.finish()
        return found[0], start

    for state, start in on_threads(monkeypatch, 3, work):
        assert state["weight"].tolist() == [1, 1, 1] and state["frozen"].tolist() == [1, 1]
        assert state["count"] == 5 and state["statistics"].tolist() == start == [1, 1]


OF_ALL_MODELS = [
    ("ring_allreduce", {}),
    ("ring_allreduce", {"variant": "swing"}),
    ("ring_allreduce", {"variant": "tree", "buckets": 1}),
    ("ring_allreduce", {"variant": "mpi"}),
    ("local_sgd", {"H": 2}),
    ("diloco", {"H": 2}),
    ("noloco", {"H": 2}),
    *((name, {}) for name in ("dpsgd", "sgp", "grsgd", "gosgd", "gossip", "adpsgd", "lasgd", "easgd")),
    *((name, {}) for name in ("relaysgd", "choco_sgd", "exact_diffusion", "gradient_tracking")),
]


class OfOtherKinds(Odd):
    """Buffers of other dtypes than the parameters', an expanded parameter, a sparse buffer, a row of a table."""

    def __init__(self, rank):
        super().__init__(rank)
        self.base = nn.Parameter(torch.full((1, 2), 1.0 + rank).expand(3, 2), requires_grad=False)
        self.table = torch.zeros(2, 3)
        self.register_buffer("row", self.table[0])
        self.register_buffer("mask", torch.ones(1).expand(4, 5))
        self.register_buffer("wide", torch.zeros(2, dtype=torch.float64))
        self.register_buffer("short", torch.zeros(2, dtype=torch.bfloat16))
        self.register_buffer("complex", torch.zeros(2, dtype=torch.complex64))
        self.register_buffer("adjacent", (torch.eye(2) * (1 + rank)).to_sparse())


@pytest.mark.parametrize("longest", [equal_tensors.LONGEST, 5])
def test_tensors_of_other_kinds(longest, monkeypatch):
    """All ranks begin with rank 0's, in pieces that messages can hold, and end with one: the mean, or rank 0's."""
    monkeypatch.setattr(equal_tensors, "LONGEST", longest)

    def work(mpi):
        model = OfOtherKinds(mpi.rank)
        optimizer = distribute(model, sgd(model), "dpsgd", mpi, timeout=20.0)
        assert model.base.tolist() == 3 * [[1, 1]] and model.base.stride() == (0, 1)
        assert torch.equal(model.adjacent.to_dense(), torch.eye(2))
        for tensor in (model.table, model.wide, model.short, model.complex, model.count, model.frozen.data):
            tensor.fill_(2 * mpi.rank)
        found = []
        for end in (optimizer.averaged_model(), model):
            if end is model:
                optimizer.finish()
            for tensor in (end.row, end.wide, end.short, end.complex, end.frozen):
                assert set(tensor.flatten().tolist()) == {1}
            assert end.count == 0
            found.append(end)
        assert model.row.tolist() == model.table[0].tolist() and model.weight.untyped_storage().nbytes() == 12

    on_threads(monkeypatch, 2, work)


def test_tensors_of_other_sizes_are_refused(monkeypatch):
    def work(mpi):
        model = Odd(0)
        model.register_buffer("adjacent", torch.diag(torch.tensor([1.0, mpi.rank])).to_sparse())
        with pytest.raises(ValueError, match="the bytes of frozen parameters and other buffers: [0-9]+ on rank 0; "):
            distribute(model, sgd(model), "dpsgd", mpi)

    on_threads(monkeypatch, 2, work)


def apart(monkeypatch, change, steps, **options):
    """The models of three ranks after training, whose rank 1 does ``change(model, optimizer)``; and the warnings."""

    def work(mpi):
        model = network()
        optimizer = distribute(model, sgd(model), "ring_allreduce", mpi, timeout=20.0, **options)
        for k in range(steps):
            plain(model, optimizer, lambda k: loss(model, mpi.rank, k), k)
            if mpi.rank == 1 and k == 1:
                change(model, optimizer)
        before = vector(model), vector(optimizer.averaged_model())
        optimizer.finish()
        return *before, vector(model), optimizer.equal_models.warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return list(zip(*on_threads(monkeypatch, 3, work), strict=True))


def other_rate(model, optimizer):
    optimizer.param_groups[0]["lr"] *= 2


def other_weights(model, optimizer):
    with torch.no_grad():
        model[2].weight.mul_(0.5)


@pytest.mark.parametrize(
    "change, first", [(other_rate, "0.weight"), (other_weights, "2.weight"), (lambda model, optimizer: None, None)]
)
@pytest.mark.parametrize("every", [2, 100])
def test_replicas_that_come_apart_are_warned_of_and_made_equal(change, first, every, monkeypatch):
    """Seen in a sample while training, and by all bits in the end; equal ones keep theirs."""
    monkeypatch.setattr(equal_models, "EVERY", every)
    models, averages, ends, said = apart(monkeypatch, change, steps=4)
    assert torch.equal(ends[0], ends[1]) and torch.equal(ends[0], ends[2])
    if first is None:
        assert torch.equal(ends[0], models[0]) and said == ([], [], [])
        return
    torch.testing.assert_close(ends[0], sum(models) / 3)
    assert torch.equal(averages[0], averages[1])
    (line,), *others = said
    assert others == [[], []]
    assert f"after 4 steps the models of rank 1 differ from rank 0's, first in {first!r}: did the" in line


def test_one_number_that_differs_is_found_in_the_end(monkeypatch):
    """Though no sample has it."""
    monkeypatch.setattr(equal_models, "SAMPLE", 2)

    def change(model, optimizer):
        optimizer.param_groups[0]["lr"] = 0.0
        with torch.no_grad():
            model[2].weight[1, 2] += 1

    def stop(model, optimizer):
        optimizer.param_groups[0]["lr"] = 0.0

    def work(mpi):
        model = network()
        optimizer = distribute(model, sgd(model), "ring_allreduce", mpi, timeout=20.0)
        (change if mpi.rank == 1 else stop)(model, optimizer)
        plain(model, optimizer, lambda k: loss(model, mpi.rank, k), 0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            optimizer.finish()
        return vector(model), optimizer.equal_models.warnings

    (one, other), said = zip(*on_threads(monkeypatch, 2, work), strict=True)
    assert torch.equal(one, other) and "models of rank 1 differ from rank 0's, first in '2.w" in said[0][0]


@pytest.mark.filterwarnings("error:overflow")
@pytest.mark.parametrize("algorithm, options", OF_ALL_MODELS, ids=str)
def test_a_mean_is_in_range_where_a_sum_is_not(algorithm, options, monkeypatch):
    """Of float16 that is near the end of its range on all ranks: models, and the gradients that are sent."""
    big = 40_000.0

    def work(mpi):
        model = nn.Linear(4, 2, bias=False).half()
        with torch.no_grad():
            model.weight.fill_(0.0 if algorithm == "ring_allreduce" else big)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0 if algorithm == "ring_allreduce" else 0.0)
        optimizer = distribute(model, optimizer, algorithm, mpi, timeout=20.0, progress_mode="inline", **options)
        model.weight.grad = torch.full_like(model.weight, -big)
        for _ in range(1 if algorithm == "ring_allreduce" else 4):
            optimizer.step()
        found = optimizer.averaged_model().weight.tolist()
        optimizer.finish()
        for values in (found, model.weight.tolist()):
            torch.testing.assert_close(torch.tensor(values), torch.full((2, 4), big), rtol=2e-3, atol=0)

    on_threads(monkeypatch, 3, work)


def test_models_of_different_sizes_are_refused(monkeypatch):
    def work(mpi):
        model = nn.Linear(2 + mpi.rank, 1)
        with pytest.raises(ValueError, match="the number of parameters: 3 on rank 0; 4 on rank 1"):
            distribute(model, sgd(model), "dpsgd", mpi)

    on_threads(monkeypatch, 2, work)


def test_an_optimizer_is_the_one_that_it_wraps(monkeypatch):
    def work(mpi):
        model = network()
        inner = sgd(model)
        optimizer = distribute(model, inner, "dpsgd", mpi)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        plain(model, optimizer, lambda k: loss(model, 0, k), 0)
        scheduler.step()
        assert inner.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"] == 0.05
        assert optimizer.state is inner.state and optimizer.defaults is inner.defaults
        state = copy.deepcopy(optimizer.state_dict())
        state["param_groups"][0]["lr"] = 0.25
        optimizer.load_state_dict(state)
        assert inner.param_groups[0]["lr"] == 0.25
        assert "dpsgd" in repr(optimizer) and "SGD" in repr(optimizer)
        with pytest.raises(ValueError, match="add all parameters to the optimizer before"):
            optimizer.add_param_group({"params": []})
        with pytest.raises(TypeError, match="save its state_dict"):
            copy.deepcopy(optimizer)
        optimizer.finish()

    on_threads(monkeypatch, 1, work)


def test_whose_state_is_refused(monkeypatch):
    def work(mpi):
        states = {}
        for algorithm in ("dpsgd", "grsgd"):
            model = network()
            optimizer = distribute(model, sgd(model), algorithm, mpi)
            plain(model, optimizer, lambda k, model=model: loss(model, 0, k), 0)
            optimizer.rest()
            states[algorithm] = optimizer.state_dict()
            optimizer.load_state_dict(states[algorithm])
            plain(model, optimizer, lambda k, model=model: loss(model, 0, k), 1)
            if algorithm == "grsgd":
                with pytest.raises(RuntimeError, match="under way: call optimizer.rest"):
                    optimizer.load_state_dict(states[algorithm])
            optimizer.finish()
        model = network()
        optimizer = distribute(model, sgd(model), "dpsgd", mpi)
        with pytest.raises(ValueError, match='^state_dict of grsgd, for dpsgd: remove its key "grsgd" to begin'):
            optimizer.load_state_dict(states["grsgd"])
        states["dpsgd"]["grsgd"]["ranks"] = 2
        with pytest.raises(ValueError, match="^state_dict of rank 0 of a job with 2 ranks, loaded on rank 0"):
            optimizer.load_state_dict(states["dpsgd"])
        del states["dpsgd"]["grsgd"]
        optimizer.load_state_dict(states["dpsgd"])
        optimizer.finish()

    on_threads(monkeypatch, 1, work)


def test_state_of_other_options_is_refused(monkeypatch):
    """What compression has left out belongs to a compressed run."""

    def work(mpi):
        model = network()
        optimizer = distribute(model, sgd(model), "ring_allreduce", mpi, compression="int8")
        plain(model, optimizer, lambda k: loss(model, mpi.rank, k), 0)
        optimizer.rest()
        state = optimizer.state_dict()
        optimizer.finish()
        model = network()
        optimizer = distribute(model, sgd(model), "ring_allreduce", mpi)
        with pytest.raises(ValueError, match="^state_dict of ring_allreduce with other options .*: remove its key"):
            optimizer.load_state_dict(state)
        optimizer.finish()

    on_threads(monkeypatch, 2, work)


@pytest.mark.parametrize("algorithm, options", [("grsgd", {}), ("diloco", {"H": 4, "delay": 2}), ("sgp", {"tau": 1})])
def test_a_state_without_the_algorithms_is_warned_of_and_refused(algorithm, options, monkeypatch):
    def work(mpi):
        model = network()
        optimizer = distribute(model, sgd(model), algorithm, mpi, **options)
        assert "grsgd" not in optimizer.state_dict()
        plain(model, optimizer, lambda k: loss(model, 0, k), 0)
        with pytest.warns(RuntimeWarning, match=r"without the algorithm's state: .* call optimizer.rest\(\) on all"):
            state = optimizer.state_dict()
        assert optimizer.state_dict()["grsgd"] == state["grsgd"]
        optimizer.rest()
        assert "state" in optimizer.state_dict()["grsgd"]
        with pytest.raises(ValueError, match="without the algorithm's state .*rest.*: save it anew, or remove its key"):
            optimizer.load_state_dict(state)
        optimizer.finish()
        torch.optim.SGD(model.parameters(), lr=0.1).load_state_dict(state)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        on_threads(monkeypatch, 1, work)


def test_a_state_of_other_options_is_warned_of(monkeypatch):
    def work(mpi):
        model = network()
        optimizer = distribute(model, sgd(model), "diloco", mpi, H=2)
        plain(model, optimizer, lambda k: loss(model, 0, k), 0)
        state = optimizer.state_dict()
        optimizer.finish()
        optimizer = distribute(model, sgd(model), "diloco", mpi, H=4, variant="tree")
        with pytest.warns(RuntimeWarning, match="^state_dict of diloco with H = 2, here 4$"):
            optimizer.load_state_dict(state)
        optimizer.finish()

    on_threads(monkeypatch, 1, work)


def test_an_algorithm_that_does_not_say_what_it_remembers(monkeypatch):
    monkeypatch.setattr(ALGORITHMS["dpsgd"], "remembers", None)

    def work(mpi):
        model = network()
        optimizer = distribute(model, sgd(model), "dpsgd", mpi)
        plain(model, optimizer, lambda k: loss(model, 0, k), 0)
        with pytest.warns(RuntimeWarning, match="dpsgd does not say .* list their names in `remembers`"):
            state = optimizer.state_dict()
        with pytest.raises(ValueError, match="without the algorithm's state .*`remembers`"):
            optimizer.load_state_dict(state)
        optimizer.finish()

    on_threads(monkeypatch, 1, work)


@pytest.mark.parametrize("first", ["model", "optimizer", "model before distribute()"])
def test_the_model_beside_which_a_state_was_saved(first, monkeypatch):
    """Whether loaded before or after the optimizer's state; not the one of rank 0 that `distribute` gives to all."""

    def work(mpi):
        model = network(mpi.rank)
        optimizer = distribute(model, sgd(model), "dpsgd", mpi, timeout=20.0)
        for k in range(2):
            plain(model, optimizer, lambda k: loss(model, mpi.rank, k), k)
        kept = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
        optimizer.finish()
        model = network()
        if first == "model before distribute()":
            model.load_state_dict(kept[0])
        optimizer = distribute(model, sgd(model), "dpsgd", mpi, timeout=20.0)
        if first == "model":
            model.load_state_dict(kept[0])
        optimizer.load_state_dict(kept[1])
        if first == "optimizer":
            model.load_state_dict(kept[0])
        elif first != "model" and mpi.rank > 0:
            with pytest.raises(ValueError, match="^'0.weight' has changed since .*load each rank's own model"):
                model(torch.zeros(1, 4, dtype=torch.float64))
        plain(model, optimizer, lambda k: loss(model, mpi.rank, k), 2)
        optimizer.finish()

    on_threads(monkeypatch, 2, work)


def test_hooks_are_called_as_torchs(monkeypatch):
    """In the order of torch, once a step, with the distributed optimizer; what a hook before returns is taken."""

    def work(mpi):
        said = []
        model = network()
        optimizer = distribute(model, sgd(model), "ring_allreduce", mpi, progress_mode="inline")
        optimizer.register_step_pre_hook(lambda *given: said.append(("before", *given)))
        handle = optimizer.register_step_post_hook(lambda *given: said.append(("after", *given)))
        optimizer.register_state_dict_post_hook(
            lambda given, state: said.append(("saved", given)) or {**state, "more": 1}
        )
        optimizer.register_load_state_dict_pre_hook(lambda given, state: said.append(("loaded", given)))
        plain(model, optimizer, lambda k: loss(model, mpi.rank, k), 0)
        assert said == [("before", optimizer, (optimizer,), {}), ("after", optimizer, (optimizer,), {})]
        handle.remove()
        said.clear()
        replaced = optimizer.register_step_pre_hook(lambda given, *_: ((given, lambda: 7.0), {}))
        assert optimizer.step() == 7
        assert [what for what, *_ in said] == ["before"]
        replaced.remove()
        state = optimizer.state_dict()
        assert state.pop("more") == 1
        optimizer.load_state_dict(state)
        assert said[1:] == [("saved", optimizer), ("loaded", optimizer)]
        optimizer.finish()

    on_threads(monkeypatch, 2, work)


class Statistics(nn.Module):
    """A network with statistics that are replaced in every step."""

    def __init__(self):
        super().__init__()
        self.layers = network()
        self.register_buffer("mean", torch.zeros(2, dtype=torch.float64))

    def forward(self, x):
        y = self.layers(x)
        if self.training:
            self.mean = 0.5 * self.mean + 0.5 * y.detach().mean(0)
        return y


@pytest.mark.parametrize("algorithm", ["ring_allreduce", "dpsgd", "sgp", "local_sgd"])
def test_training_goes_on_as_if_no_average_had_been_asked_for(algorithm, monkeypatch):
    def work(mpi, asks):
        model = Statistics()
        optimizer = distribute(model, sgd(model), algorithm, mpi, timeout=20.0, progress_mode="inline")
        for k in range(STEPS):
            plain(model, optimizer, lambda k: loss(model, mpi.rank, k), k)
            if asks:
                mine = vector(model), optimizer.algorithm.weight, model.mean.clone()
                averaged = optimizer.averaged_model()
                everybody = mpi.allgather(mine)
                total = sum(weight for _, weight, _ in everybody)
                expected = sum(weight * x for x, weight, _ in everybody) / total
                torch.testing.assert_close(vector(averaged), expected, rtol=1e-12, atol=1e-14)
                torch.testing.assert_close(averaged.mean, sum(mean for *_, mean in everybody) / 3)
                assert averaged is not model
                assert all(p.grad is None for p in averaged.parameters())
                averaged(torch.ones(1, 4, dtype=torch.float64)).sum().backward()  # a plain model
        traffic = optimizer.algorithm.comm.traffic.sent.copy()
        optimizer.finish()
        assert torch.equal(vector(optimizer.averaged_model()), vector(model))
        return vector(model), traffic

    asked, not_asked = (on_threads(monkeypatch, 3, lambda mpi, asks=asks: work(mpi, asks)) for asks in (True, False))
    for (one, sent), (other, sent_too) in zip(asked, not_asked, strict=True):
        assert torch.equal(one, other) and (sent == sent_too).all()


@pytest.mark.parametrize("final", ["centre", "average"])
def test_the_averaged_model_of_a_centre_is_the_centre(final, monkeypatch):
    def work(mpi):
        model = network()
        options = {"final": final, "period": 1, "centre": "allreduce"}
        optimizer = distribute(model, sgd(model), "easgd", mpi, timeout=20.0, progress_mode="inline", **options)
        for k in range(STEPS):
            plain(model, optimizer, lambda k: loss(model, mpi.rank, k), k)
        averaged, mine = optimizer.averaged_model(), vector(model)
        mean = sum(mpi.allgather(mine)) / 3
        expected = optimizer.algorithm.c.tensor if final == "centre" else mean
        torch.testing.assert_close(vector(averaged), expected, rtol=1e-12, atol=1e-14)
        optimizer.finish()

    on_threads(monkeypatch, 3, work)


@pytest.mark.parametrize("algorithm", ["grsgd", "gosgd", "adpsgd", "gossip", "lasgd"])
def test_all_ranks_have_one_averaged_model(algorithm, monkeypatch):
    def work(mpi):
        model = network()
        optimizer = distribute(model, sgd(model), algorithm, mpi, timeout=20.0, progress_mode="inline")
        averages = []
        for k in range(STEPS + mpi.rank):  # no two ranks take as many steps
            plain(model, optimizer, lambda k: loss(model, mpi.rank, k), k)
            if k % 2:
                averages.append(vector(optimizer.averaged_model()))
        optimizer.finish()
        return averages

    one, other = on_threads(monkeypatch, 2, work)
    assert len(one) == len(other) == STEPS // 2
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(one, other, strict=True))


def test_times_and_samples_are_those_of_the_steps(monkeypatch):
    """By a clock that advances where the test says so."""
    now = [0.0]

    class Slow(torch.optim.SGD):
        def step(self, closure=None):
            now[0] += 3
            return super().step(closure)

    def work(mpi):
        model = network()
        optimizer = distribute(model, Slow(model.parameters(), lr=0.1), "local_sgd", mpi)
        monkeypatch.setattr(type(optimizer.driver), "clock", lambda driver: now[0])
        optimizer.times.optimizer.clock = optimizer.driver.clock
        for k in range(2):
            now[0] += 100  # data
            value = loss(model, 0, k)
            now[0] += 7
            with torch.no_grad():
                model(torch.ones(9, 4, dtype=torch.float64))
            model.eval()(torch.ones(9, 4, dtype=torch.float64))
            model.train()
            value.backward()
            now[0] += 2
            optimizer.step()
        loss(model, 0, 2).backward()
        found = optimizer.times.totals
        assert (found.steps, found.samples) == (2, 10) and optimizer.steps == 2
        assert (found.compute_seconds, found.communicate_seconds, found.wait_seconds) == (2 * (7 + 2 + 3), 0, 0)
        assert optimizer.times.unseen_steps == 0
        optimizer.step()
        optimizer.step()
        assert found.samples == 15 and optimizer.times.unseen_steps == 1
        optimizer.finish()

    on_threads(monkeypatch, 1, work)


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_samples_of_a_model_in_a_checkpoint_count_once(use_reentrant, monkeypatch):
    """Whether the model is called with gradients and again in the backward pass, or in the backward pass alone."""

    def work(mpi):
        model = network()
        optimizer = distribute(model, sgd(model), "local_sgd", mpi)
        for _ in range(2):
            optimizer.zero_grad()
            for _ in range(2):
                x = torch.ones(3, 4, dtype=torch.float64, requires_grad=True)
                checkpoint(model, x, use_reentrant=use_reentrant).sum().backward()
            optimizer.step()
        assert optimizer.times.totals.samples == 12 and optimizer.times.unseen_steps == 0
        optimizer.finish()

    on_threads(monkeypatch, 1, work)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_the_number_of_samples_is_the_length_of_the_first_tensor():
    x = torch.zeros(3, 2)
    sequences, loop = [torch.zeros(size, 2) for size in (4, 2, 3)], []
    loop.append(loop)
    assert length((loop, x)) == length({"loop": loop, "x": x}) == 3 and length(loop) is None
    assert length(nn.utils.rnn.pack_sequence(sequences, enforce_sorted=False)) == 3
    assert length(torch.nested.nested_tensor(sequences)) == 3
    assert length(torch.nested.nested_tensor(sequences, layout=torch.jagged)) == 3
    assert length(((), {})) is None and length((torch.tensor(1.0), "text")) is None
    assert length(((x, torch.zeros(4)), {})) == length(((), {"ids": x})) == length((([{"pixels": x}],), {})) == 3


@pytest.mark.parametrize("n", [1, 2])
def test_finish_ends_everything_once(n, monkeypatch):
    def work(mpi):
        model = network()
        optimizer = distribute(model, sgd(model), "ring_allreduce", mpi)
        with pytest.raises(ValueError, match="distributed already"):
            distribute(nn.Sequential(model[0]), sgd(model[0]), "dpsgd", mpi)
        plain(model, optimizer, lambda k: loss(model, mpi.rank, k), 0)
        optimizer.finish()
        optimizer.finish()
        comms = optimizer.algorithm.comm, optimizer._uncounted_comm
        assert all(comm.backend.mpi.freed for comm in comms) and not mpi.freed
        for late in (optimizer.step, optimizer.synchronize):
            with pytest.raises(RuntimeError, match=r"step\(\) after finish\(\)"):
                late()
        distribute(model, sgd(model), "ring_allreduce", mpi).finish()

    on_threads(monkeypatch, n, work)


def test_a_rank_that_takes_more_steps_is_told(monkeypatch):
    def work(mpi):
        model = network()
        optimizer = distribute(model, sgd(model), "ring_allreduce", mpi, timeout=20.0, progress_mode="inline")
        for k in range(2):
            plain(model, optimizer, lambda k: loss(model, mpi.rank, k), k)
        if mpi.rank == 0:
            return optimizer._roll_call.call(FINISH, optimizer.steps).Test()
        with pytest.raises(RuntimeError, match="rank 0 finished after 2 steps, rank 1 is in step 3: ring_allreduce"):
            plain(model, optimizer, lambda k: loss(model, mpi.rank, k), 2)

    on_threads(monkeypatch, 2, work)


@pytest.mark.parametrize("algorithm", ["grsgd", "adpsgd", "gossip"])
def test_weights_that_are_restored_before_the_end_stay(algorithm, monkeypatch):
    """After `rest`: before it, messages under way are merged into them."""

    def work(mpi):
        model = network()
        optimizer = distribute(model, sgd(model), algorithm, mpi, timeout=20.0, progress_mode="inline")
        for k in range(STEPS):
            plain(model, optimizer, lambda k: loss(model, mpi.rank, k), k)
        best = optimizer.averaged_model()
        optimizer.rest()
        model.load_state_dict(best.state_dict())
        optimizer.finish()
        torch.testing.assert_close(vector(model), vector(best), rtol=1e-12, atol=1e-14)

    on_threads(monkeypatch, 2, work)


# ---- buckets of gradients


def sent_early(monkeypatch, n, step, steps=STEPS, buckets=2):
    """The models of ``n`` ranks that send buckets, and of each what it was warned of, and its messages.

    ``step(model, optimizer, losses, k, rank)``.
    """
    said = []
    monkeypatch.setattr(warnings, "warn", lambda text, kind=UserWarning, stacklevel=1: said.append((kind, text)))

    def work(mpi):
        model = network()
        options = {"progress_mode": "inline", "timeout": 20.0, "buckets": buckets}
        optimizer = distribute(model, sgd(model), "ring_allreduce", mpi, **options)
        for k in range(steps):
            step(model, optimizer, lambda k, part=0: loss(model, mpi.rank, k, part), k, mpi.rank)
        optimizer.finish()
        return vector(model), int(optimizer.algorithm.comm.traffic.messages.sum())

    models, messages = zip(*on_threads(monkeypatch, n, work), strict=True)
    return models, messages, said


ONCE = 3
"""Messages of a step of two ranks with two buckets, which exchange each of them, and what says who has a gradient."""


def test_buckets_are_sent_within_the_backward_pass(monkeypatch):
    def step(model, optimizer, losses, k, rank):
        optimizer.zero_grad()
        losses(k).backward()
        assert optimizer.algorithm.buckets.averaging is not None and optimizer.algorithm.buckets.complete == 2
        mine = [p.grad.clone() for p in model.parameters()]
        optimizer.synchronize()
        assert optimizer.algorithm.buckets.averaging is None
        assert not any(torch.equal(p.grad, own) for p, own in zip(model.parameters(), mine, strict=True))
        optimizer.step()

    models, messages, said = sent_early(monkeypatch, 2, step)
    assert messages == (ONCE * STEPS,) * 2 and said == [] and torch.equal(*models)


def accumulated_in_no_sync(model, optimizer, losses, k, rank):
    optimizer.zero_grad()
    with optimizer.no_sync():
        losses(k).backward()
        assert optimizer.algorithm.buckets.averaging is None
    losses(k, 1).backward()
    assert optimizer.algorithm.buckets.averaging is not None
    optimizer.step()


def test_what_is_accumulated_is_sent_once(monkeypatch):
    models, messages, said = sent_early(monkeypatch, 2, accumulated_in_no_sync)
    for model in models:
        torch.testing.assert_close(model, alone(2, accumulated), rtol=1e-12, atol=1e-14)
    assert messages == (ONCE * STEPS,) * 2 and said == []


@pytest.mark.parametrize("ranks", [(0,), (1,), (0, 1)])
def test_gradients_that_are_changed_after_they_were_sent_are_sent_again(ranks, monkeypatch):
    """On one rank or on both: by another backward pass, or by the script itself; a rank that does so in three steps
    sends nothing early from then on."""

    def step(model, optimizer, losses, k, rank):
        optimizer.zero_grad(set_to_none=k % 2 == 0)
        losses(k).backward()
        if rank in ranks:
            losses(k, 1).backward() if k % 2 else model[0].weight.grad.mul_(3)
        optimizer.step()

    def expected(model, optimizer, k):
        optimizer.zero_grad()
        total = 0
        for rank in range(2):
            total = total + loss(model, rank, k) + (loss(model, rank, k, 1) if rank in ranks and k % 2 else 0)
        weight = model[0].weight
        (tripled,) = torch.autograd.grad(sum(loss(model, rank, k) for rank in ranks), weight)
        (total / 2).backward()
        if k % 2 == 0:
            weight.grad.add_(tripled)  # twice more, of two ranks
        optimizer.step()

    steps = 6
    models, messages, said = sent_early(monkeypatch, 2, step, steps)
    check_against(models, expected, steps)
    assert messages == (ONCE * (steps + 3),) * 2
    early = [text for kind, text in said if kind is RuntimeWarning]
    assert len(early) == len(ranks) and all("step() sends all gradients again" in text for text in early)


def halve_data(p):
    p.grad.data.mul_(0.5)


def halve_in_numpy(p):
    p.grad.numpy()[...] *= 0.5


def unscale(p):
    half, found = torch.full((), 0.5), torch.zeros(())
    torch._amp_foreach_non_finite_check_and_unscale_([p.grad], found, half)


@pytest.mark.parametrize("halve", [halve_data, halve_in_numpy, unscale])
def test_changes_that_torch_does_not_count_are_noticed_too(halve, monkeypatch):
    """In the first steps; a rank whose script changes gradients so sends nothing early any more."""

    def step(model, optimizer, losses, k, rank):
        optimizer.zero_grad()
        losses(k).backward()
        for p in model.parameters() if rank == 0 else ():
            halve(p)
        optimizer.step()

    def expected(model, optimizer, k):
        optimizer.zero_grad()
        (loss(model, 0, k) / 4 + loss(model, 1, k) / 2).backward()
        optimizer.step()

    models, messages, said = sent_early(monkeypatch, 2, step)
    check_against(models, expected, STEPS)
    assert messages == (ONCE * (STEPS + 1),) * 2 and len(said) == 1


def check_against(models, expected, steps: int):
    """All are the model that ``expected(model, optimizer, k)``, of each step k, leaves on one rank."""
    model = network()
    optimizer = sgd(model)
    for k in range(steps):
        expected(model, optimizer, k)
    for found in models:
        torch.testing.assert_close(found, vector(model), rtol=1e-12, atol=1e-14)


def test_a_batch_that_one_rank_throws_away(monkeypatch):
    """Or that a rank skips: as without buckets, what counts is what is there in `step`."""

    def step(model, optimizer, losses, k, rank):
        if rank == 0 and k % 2:
            losses(k, 1).backward()
        optimizer.zero_grad(set_to_none=False)
        losses(k).backward()
        optimizer.step()

    models, _, _ = sent_early(monkeypatch, 2, step)
    for model in models:
        torch.testing.assert_close(model, alone(2, plain), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("ranks", [(1,), (0, 2), (0, 1, 2)])
def test_a_last_batch_without_a_step(ranks, monkeypatch):
    """All ranks end what some have begun."""

    def step(model, optimizer, losses, k, rank):
        plain(model, optimizer, losses, k)
        if k == STEPS - 1 and rank in ranks:
            losses(k, 1).backward()

    models, _, said = sent_early(monkeypatch, 3, step)
    for model in models:
        torch.testing.assert_close(model, alone(3, plain), rtol=1e-12, atol=1e-14)
    assert said == []


def test_layers_that_a_rank_does_not_use(monkeypatch):
    """Their gradients are finished by no backward pass there, and nobody's are left without one."""

    def step(model, optimizer, losses, k, rank):
        optimizer.zero_grad()
        x = torch.ones(1, 4, dtype=torch.float64) * (1 + k)
        model(x) if rank else None  # a forward pass without a backward pass
        (losses(k) if (rank + k) % 2 else model[0](x).square().sum()).backward()
        optimizer.step()

    def expected(model, optimizer, k):
        optimizer.zero_grad()
        x = torch.ones(1, 4, dtype=torch.float64) * (1 + k)
        for rank in range(2):
            ((loss(model, rank, k) if (rank + k) % 2 else model[0](x).square().sum()) / 2).backward()
        optimizer.step()

    models, messages, said = sent_early(monkeypatch, 2, step)
    check_against(models, expected, STEPS)
    assert messages == (ONCE * STEPS,) * 2 and said == []


# ---- gradients between backward() and step()


def test_a_gradient_that_is_changed_too_early_is_warned_of_once(monkeypatch):
    def work(mpi):
        model = network()
        optimizer = distribute(model, sgd(model), "ring_allreduce", mpi, progress_mode="inline")
        for k in range(3):
            optimizer.zero_grad()
            loss(model, mpi.rank, k).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            optimizer.step()
        optimizer.finish()

    said = []
    monkeypatch.setattr(warnings, "warn", lambda text, stacklevel: said.append(text))
    on_threads(monkeypatch, 1, work)
    assert said == [], "a rank alone has no other's gradients"
    on_threads(monkeypatch, 2, work)
    assert len(said) == 2, "once on each rank"
    assert all("call optimizer.synchronize() before" in text for text in said)


@pytest.mark.parametrize("n", [1, 2])
def test_a_scaler_needs_the_mean(n, monkeypatch):
    def work(mpi):
        model = network()
        optimizer = distribute(model, sgd(model), "ring_allreduce", mpi, progress_mode="inline")
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        scaler.scale(loss(model, mpi.rank, 0)).backward()
        if n > 1:
            with pytest.raises(RuntimeError, match="GradScaler.step.. with gradients of this rank alone"):
                scaler.step(optimizer)
        optimizer.synchronize()
        scaler.step(optimizer)
        optimizer.finish()
        return vector(model)

    model = network()
    optimizer = sgd(model)
    (sum(loss(model, rank, 0) for rank in range(n)) / n).backward()
    optimizer.step()
    for found in on_threads(monkeypatch, n, work):
        torch.testing.assert_close(found, vector(model), rtol=1e-12, atol=1e-14)


# ---- options


def test_own_options_are_the_keyword_arguments_of_distribute():
    named = [p.name for p in inspect.signature(distribute).parameters.values() if p.kind is p.KEYWORD_ONLY]
    assert list(OWN_OPTIONS) == named


@pytest.mark.parametrize(
    "algorithm, options, words",
    [
        (
            "sgd",
            {},
            "^algorithm 'sgd': unknown .did you mean ssgd.*; allowed: adpsgd, .*dpsgd, ",
        ),
        ("grsgd", {"rho": 2}, "grsgd: rho: is called data.replication now"),
        (
            "dpsgd",
            {"tiemout": 9.0},
            "dpsgd: tiemout: unknown key; allowed: topology.*; options of distribute.*timeout.* .did you mean timeout",
        ),
        ("dpsgd", {"progress": "inline"}, "progress: this option is called progress_mode now"),
        ("local_sgd", {"H": 0}, "local_sgd: H = 0: input should be greater than or equal to 1"),
        ("dpsgd", {"topology": "star"}, "'star' is neither a matrix file nor one of"),
    ],
)
def test_options(algorithm, options, words, monkeypatch):
    def work(mpi):
        model = network()
        with pytest.raises(ValueError, match=words):
            distribute(model, sgd(model), algorithm, mpi, **options)

    on_threads(monkeypatch, 1, work)


def test_shards_are_disjoint_and_cover_everything(monkeypatch):
    parts = on_threads(monkeypatch, 3, lambda mpi: shard(range(10), mpi, seed=1).indices)
    assert sorted(sum(parts, [])) == list(range(10)) and [len(part) for part in parts] == [4, 3, 3]
    others = on_threads(monkeypatch, 3, lambda mpi: shard(range(10), mpi, seed=2).indices)
    assert parts != others and sum(parts, []) != list(range(10))


# ---- what is refused


def test_optimizers_that_cannot_be_distributed(monkeypatch):
    def work(mpi):
        model = network()
        wrong = [
            ("dpsgd", torch.optim.LBFGS(model.parameters()), "^LBFGS calls its closure several times per step"),
            ("ring_allreduce", torch.optim.SparseAdam(list(model.parameters())), "^SparseAdam needs sparse gradients"),
            ("dpsgd", sgd(nn.Sequential(model, nn.Linear(2, 1))), r"^2 of the parameters of SGD .*shape \(1, 2\)"),
        ]
        for algorithm, optimizer, words in wrong:
            with pytest.raises(ValueError, match=words):
                distribute(model, optimizer, algorithm, mpi)
        distribute(model, torch.optim.SparseAdam(list(model.parameters())), "dpsgd", mpi).finish()

    on_threads(monkeypatch, 1, work)


def freeze(model):
    model[0].requires_grad_(False)


def double(model):
    model[2].weight.data = model[2].weight.data * 2


def take_away(model):
    model[0].weight = None


def grow(model):
    model.append(nn.Linear(2, 2))


def lengthen(model):
    model[0].register_parameter("more", nn.Parameter(torch.zeros(1)))


@pytest.mark.parametrize(
    "change, words",
    [
        (freeze, "parameter '0.weight' was frozen: the trained parameters must stay the same"),
        (double, "parameter '2.weight' was given new memory after"),
        (take_away, "parameter '0.weight' was taken from the model after"),
        (grow, "module 'Sequential' has got other modules or parameters"),
        (lengthen, "module '0' has got other modules or parameters"),
    ],
)
def test_models_that_are_changed(change, words, monkeypatch):
    def work(mpi):
        model = network()
        optimizer = distribute(model, sgd(model), "dpsgd", mpi)
        plain(model, optimizer, lambda k: loss(model, 0, k), 0)
        change(model)
        for ends in (optimizer.step, optimizer.finish):
            with pytest.raises(RuntimeError, match=words):
                ends()

    on_threads(monkeypatch, 1, work)


def test_gradients_that_cannot_be_sent(monkeypatch):
    def work(mpi):
        model = nn.Embedding(5, 3, sparse=True)
        optimizer = distribute(model, torch.optim.SGD(model.parameters(), lr=0.1), "ring_allreduce", mpi)
        model(torch.tensor([1, 2])).sum().backward()
        with pytest.raises(RuntimeError, match="^the gradient of 'weight' is sparse; only dense gradients can be sent"):
            optimizer.step()
        model = network()
        optimizer = distribute(model, sgd(model), "ring_allreduce", mpi)
        plain(model, optimizer, lambda k: loss(model, mpi.rank, k), 0)
        model[0].bias.grad.data = model[0].bias.grad.data.clone()
        with pytest.raises(RuntimeError, match="^the gradient of '0.bias' was given new memory"):
            optimizer.step()

    on_threads(monkeypatch, 2, work)
