"""Scripts that step something else than the distributed optimizer, or use more of it than `step`: right, or refused."""

import pytest
import torch
from torch import nn

from grsgd.own_loop.distribute import distribute
from tests.support.own_loop import leaves_nothing, loss, network, plain, sgd, vector
from tests.support.threads import on_threads

pytestmark = pytest.mark.usefixtures("leaves_nothing")
__all__ = ["leaves_nothing"]
GIVEN = r"^step\(\) of the \w+ that was given to distribute\(\): no other rank learns of this step; call step\(\) of"
ANOTHER = r"^step\(\) of another optimizer, \w+, with parameters that distribute\(\) trains: no other rank learns of"


class Plain:
    """An optimizer that is none of torch's."""

    def __init__(self, parameters):
        self.param_groups = [{"params": list(parameters)}]
        self.state, self.defaults = {}, {}

    @torch.no_grad()
    def step(self):
        for p in self.param_groups[0]["params"]:
            p.sub_(0.1 * p.grad)

    def zero_grad(self, set_to_none=True):
        for p in self.param_groups[0]["params"]:
            p.grad = None


class Lookahead(torch.optim.Optimizer):
    """Around another optimizer, whose steps go half as far; in every second step only, as where it accumulates."""

    def __init__(self, base):
        super().__init__(base.param_groups, {})
        self.base, self.param_groups, self.state, self.calls = base, base.param_groups, base.state, 0
        self.mode = ""

    def step(self, closure=None):
        self.calls += 1
        if self.calls % 2 == 0:
            parameters = [p for group in self.param_groups for p in group["params"]]
            before = [p.detach().clone() for p in parameters]
            self.base.step()
            with torch.no_grad():
                torch._foreach_lerp_(parameters, before, 0.5)

    def train(self):
        self.mode = "train"


def given_step(inner, model):
    inner.step()


def class_step(inner, model):
    type(inner).step(inner)


def scaler_step(inner, model):
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.zeros(()))
    scaler.step(inner)


def compiled_step(inner, model):
    torch.compile(inner.step, backend="eager")()


@pytest.mark.parametrize("kind", [sgd, lambda model: Plain(model.parameters()), lambda model: Lookahead(sgd(model))])
@pytest.mark.parametrize("step", [given_step, class_step, scaler_step, compiled_step])
def test_the_optimizer_that_was_given_is_refused(kind, step, monkeypatch):
    def work(mpi):
        model = network()
        inner = kind(model)
        optimizer = distribute(model, inner, "ring_allreduce", mpi)
        plain(model, optimizer, lambda k: loss(model, 0, k), 0)
        loss(model, 0, 1).backward()
        before = vector(model)
        with pytest.raises(RuntimeError, match=GIVEN) as caught:
            step(inner, model)
        assert "\n" not in str(caught.value) and torch.equal(vector(model), before)
        optimizer.step()
        optimizer.finish()
        for _ in range(2):
            loss(model, 0, 2).backward()
            inner.step()
        assert not torch.equal(vector(model), before)

    on_threads(monkeypatch, 1, work)


def anew(optimizer, model):
    torch.optim.Adam(model.parameters()).step()


def anew_fused(optimizer, model):
    torch.optim.Adam(model.parameters(), fused=True).step()


def inside(optimizer, model):
    optimizer.optimizer.base.step()


@pytest.mark.parametrize("step", [anew, anew_fused, inside])
@pytest.mark.parametrize("algorithm", ["ring_allreduce", "grsgd"])
def test_another_optimizer_of_the_same_parameters_is_refused(step, algorithm, monkeypatch):
    def work(mpi):
        model = network()
        optimizer = distribute(model, Lookahead(sgd(model)), algorithm, mpi)
        loss(model, 0, 0).backward()
        with pytest.raises(RuntimeError, match=ANOTHER) as caught:
            step(optimizer, model)
        assert "\n" not in str(caught.value)
        optimizer.finish()
        anew(optimizer, model)

    on_threads(monkeypatch, 1, work)


@pytest.mark.parametrize("is_around", [True, False])
def test_wrappers_around_and_inside(is_around, monkeypatch):
    def trained(mpi, losses, ranks):
        model = network()
        optimizer = sgd(model)
        if mpi is None:
            optimizer = Lookahead(optimizer)
        elif is_around:
            distributed = distribute(model, optimizer, "ring_allreduce", mpi, progress_mode="inline")
            optimizer = Lookahead(distributed)
        else:
            optimizer = distributed = distribute(model, Lookahead(optimizer), "ring_allreduce", mpi)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        for k in range(4):
            optimizer.zero_grad()
            sum(loss(model, rank, k) / len(ranks) for rank in ranks).backward()
            optimizer.step()
            scheduler.step()
        if mpi is not None:
            distributed.finish()
        return vector(model)

    for found in on_threads(monkeypatch, 2, lambda mpi: trained(mpi, loss, [mpi.rank])):
        torch.testing.assert_close(found, trained(None, loss, range(2)), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("is_before", [True, False])
def test_a_scheduler_of_the_optimizer_that_was_given(is_before, monkeypatch, recwarn):
    def work(mpi):
        model = network()
        inner = sgd(model)
        scheduler = torch.optim.lr_scheduler.StepLR(inner, 1, gamma=0.5) if is_before else None
        optimizer = distribute(model, inner, "dpsgd", mpi)
        scheduler = scheduler or torch.optim.lr_scheduler.StepLR(inner, 1, gamma=0.5)
        for k in range(2):
            plain(model, optimizer, lambda k: loss(model, 0, k), k)
            scheduler.step()
        assert optimizer.param_groups[0]["lr"] == 0.025
        with pytest.raises(RuntimeError, match=GIVEN):
            inner.step()
        optimizer.finish()
        inner.step()

    on_threads(monkeypatch, 1, work)
    assert not [warning for warning in recwarn if "lr_scheduler" in str(warning.message)]


@pytest.mark.parametrize("when", ["before", "synchronized", "after"])
@pytest.mark.parametrize("algorithm", ["ring_allreduce", "dpsgd"])
def test_a_second_optimizer_for_the_rest_of_the_model(algorithm, when, monkeypatch):
    """Exact after the distributed one; before it, it would apply gradients of one rank alone."""

    def take_step(model, first, second, ranks, k):
        for optimizer in (first, second):
            optimizer.zero_grad()
        sum(loss(model, rank, k) / len(ranks) for rank in ranks).backward()
        if when == "synchronized" and hasattr(first, "synchronize"):
            first.synchronize()
        for optimizer in (first, second) if when == "after" else (second, first):
            optimizer.step()

    def work(mpi):
        model = network()
        second = sgd(model[2])
        first = distribute(model, sgd(model[0]), algorithm, mpi, progress_mode="inline")
        if algorithm == "ring_allreduce" and when == "before":
            with pytest.raises(
                RuntimeError, match="^step.. of another optimizer, SGD, with gradients of this rank alone"
            ):
                take_step(model, first, second, [mpi.rank], 0)
            first.step()
        for k in range(3) if when != "before" or algorithm == "dpsgd" else ():
            take_step(model, first, second, [mpi.rank], k)
        first.finish()
        return vector(model)

    models = on_threads(monkeypatch, 2, work)
    assert when == "before" or torch.equal(*models)
    if algorithm == "ring_allreduce" and when != "before":
        model = network()
        first, second = sgd(model[0]), sgd(model[2])
        for k in range(3):
            take_step(model, first, second, range(2), k)
        torch.testing.assert_close(models[0], vector(model), rtol=1e-12, atol=1e-14)


# ---- more than step()


class Two(torch.optim.SGD):
    """Sharpness-aware minimization, as its classes are."""

    def __init__(self, parameters, base=None):
        super().__init__(parameters, lr=0.1)
        self.base_optimizer = base

    def first_step(self):
        """Move to where the second gradient is taken."""

    def second_step(self):
        """Move back, and step."""


class Asks(torch.optim.SGD):
    def step(self, closure=None):
        assert closure is not None, "Asks requires closure, but it was not provided"


class Needs(torch.optim.SGD):
    def step(self, closure):
        return super().step(closure)


def test_optimizers_with_more_than_a_step(monkeypatch):
    def work(mpi):
        model = network()
        two = r"^Two takes two gradients per step, .* optimizer.base_optimizer = grsgd.distribute"
        for optimizer, words in [
            (Two(model.parameters()), two),
            (Needs(model.parameters()), r"^step\(\) of Needs needs a closure"),
        ]:
            with pytest.raises(ValueError, match=words):
                distribute(model, optimizer, "dpsgd", mpi)
        optimizer = distribute(model, Asks(model.parameters()), "dpsgd", mpi)
        with pytest.raises(
            RuntimeError, match="^Asks asks for its closure, which distribute.. calls once, before the step: "
        ):
            optimizer.step(lambda: loss(model, 0, 0).backward())
        with pytest.raises(AssertionError):
            optimizer.step()
        optimizer.close()

    on_threads(monkeypatch, 1, work)


def test_further_attributes_are_those_of_the_wrapped_optimizer(monkeypatch):
    def work(mpi):
        model = network()
        inner = Lookahead(sgd(model))
        inner.half_step = lambda: None
        optimizer = distribute(model, inner, "dpsgd", mpi)
        optimizer.train()
        assert inner.mode == optimizer.mode == "train"
        optimizer.mode = "eval"
        optimizer.own = 1
        assert inner.mode == "eval" and not hasattr(inner, "own")
        assert not hasattr(optimizer, "half_step") and not hasattr(optimizer, "nothing")
        with pytest.raises(AttributeError, match=r"^Lookahead.half_step\(\) would change the model without the other"):
            optimizer.half_step()
        optimizer.param_groups = [{**optimizer.param_groups[0], "lr": 0.5}]
        assert inner.param_groups[0]["lr"] == 0.5
        with pytest.raises(ValueError, match="^2 of the parameters of Lookahead are not the model's"):
            optimizer.param_groups = [{"params": list(nn.Linear(1, 1).parameters())}]
        optimizer.state = {}
        assert inner.state == {}
        optimizer.finish()

    on_threads(monkeypatch, 1, work)


@pytest.mark.parametrize("algorithm", ["ring_allreduce", "grsgd"])
def test_an_empty_group_comes_first(algorithm, monkeypatch):
    def work(mpi):
        model = network()
        groups = [{"params": []}, {"params": list(model.parameters())}]
        optimizer = distribute(model, torch.optim.SGD(groups, lr=0.1), algorithm, mpi)
        before = vector(model)
        plain(model, optimizer, lambda k: loss(model, 0, k), 0)
        assert not torch.equal(vector(model), before)
        optimizer.finish()

    on_threads(monkeypatch, 1, work)


# ---- wrong arguments


class DistributedDataParallel(nn.Linear):
    """As torch's, whose name alone is looked at."""


def arguments():
    model = network()
    return {
        "swapped": (
            (sgd(model), model, "dpsgd"),
            r"^the optimizer comes after the model: distribute\(model, optimizer, ",
        ),
        "list": (([model, model], sgd(model), "dpsgd"), "^the model is of type list: must be .*ModuleList$"),
        "generator": (
            (model.parameters(), sgd(model), "dpsgd"),
            "^the model is of type generator: must be a torch.nn.Mod",
        ),
        "no model": ((None, sgd(model), "dpsgd"), "^the model is None: must be a torch.nn.Module$"),
        "class": ((nn.Linear, sgd(model), "dpsgd"), "^the model is the class Linear: must be a torch.nn.Module$"),
        "optimizer's class": (
            (model, torch.optim.SGD, "dpsgd"),
            r"^the optimizer is a class: give an object, SGD\(model.par",
        ),
        "no optimizer": ((model, None, "dpsgd"), "^the optimizer is None: must be a torch.optim.Optimizer$"),
        "optimizers": ((model, [sgd(model)], "dpsgd"), "^the optimizer is of type list: .*step the others after it$"),
        "algorithm first": (
            (model, "dpsgd", sgd(model)),
            "^the optimizer is of type str: must be a torch.optim.Optimizer",
        ),
        "no algorithm": (
            (model, sgd(model), None),
            "^the algorithm is None: must be a name that `grsgd algorithms` lists$",
        ),
        "wrapped": (
            (DistributedDataParallel(2, 1), sgd(model), "dpsgd"),
            "^the model is a DistributedDataParallel, which",
        ),
    }


@pytest.mark.parametrize("case", arguments())
def test_wrong_arguments(case, monkeypatch):
    given, words = arguments()[case]

    def work(mpi):
        with pytest.raises(ValueError, match=words) as caught:
            distribute(*given, mpi)
        assert "\n" not in str(caught.value)

    on_threads(monkeypatch, 1, work)
