"""Scripts that transform, trace or capture a distributed model and its optimizer: right, or refused.

Those that compile are rows of tests/mpi/ranks/scripts.py: torch compiles in one thread at a time.
"""

import threading

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call, grad, jvp, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from grsgd.own_loop import tracing
from grsgd.own_loop.distribute import distribute
from tests.support.own_loop import leaves_nothing, loss, network, plain, sgd, vector
from tests.support.threads import on_threads

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of torch.jit
    pytest.mark.usefixtures("leaves_nothing"),
]
__all__ = ["leaves_nothing"]
TRANSFORMING = threading.Lock()
"""Levels of forward differentiation are those of all threads."""


# ---- torch.func


def gradients(model, style, x):
    """The gradient of the mean over samples of the squared output, by ``style``."""
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def value(parameters, x):
        return functional_call(model, parameters, (x,)).square().sum()

    if style == "per sample":
        return {name: g.sum(0) for name, g in vmap(grad(value), (None, 0))(parameters, x[:, None]).items()}
    if style == "jvp":
        jvp(lambda p: value(p, x), (parameters,), (parameters,))
    if style == "ensemble":
        two = {name: torch.stack([p, p]) for name, p in parameters.items()}
        return {name: g[0] for name, g in vmap(grad(value), (0, None))(two, x).items()}
    return grad(value)(parameters, x)


@pytest.mark.parametrize("style", ["grad", "per sample", "jvp", "ensemble"])
@pytest.mark.parametrize(
    "algorithm, options",
    [("ring_allreduce", {}), ("ring_allreduce", {"variant": "shared"}), ("grsgd", {}), ("lasgd", {})],
)
def test_gradients_by_transforms(style, algorithm, options, monkeypatch):
    def step(model, optimizer, ranks, k):
        for rank in ranks:
            x = torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(10 * k + rank))
            with TRANSFORMING:
                found = gradients(model, style, x)
            for name, p in model.named_parameters():
                part = found[name] / len(ranks)
                p.grad = part if rank == ranks[0] else p.grad + part
        optimizer.step()

    def work(mpi):
        model = network()
        optimizer = distribute(model, sgd(model), algorithm, mpi, timeout=20.0, progress_mode="inline", **options)
        for k in range(3):
            step(model, optimizer, [mpi.rank], k)
        optimizer.finish()
        return vector(model)

    models = on_threads(monkeypatch, 2, work)
    assert torch.equal(*models) and models[0].isfinite().all()
    if algorithm == "ring_allreduce":
        model = network()
        optimizer = sgd(model)
        for k in range(3):
            step(model, optimizer, range(2), k)
        torch.testing.assert_close(models[0], vector(model), rtol=1e-12, atol=1e-14)


# ---- traces


def traces(model):
    """By what traces a model: the function that it becomes."""
    x = torch.ones(5, 4, dtype=torch.float64)

    def called(x):
        return model(x).square().sum()

    return {
        "torch.jit.trace": lambda: torch.jit.trace(model, (x,)),
        "make_fx": lambda: make_fx(called)(x),
        "torch.export": lambda: torch.export.export(model, (x,), strict=False).module(),
    }


@pytest.mark.parametrize("kind", ["torch.jit.trace", "make_fx", "torch.export"])
@pytest.mark.parametrize("algorithm", ["grsgd", "adpsgd"])
def test_a_traced_model_has_nothing_of_the_algorithm(kind, algorithm, monkeypatch):
    """Neither does the trace merge models, nor does tracing begin a step."""

    def operations(made):
        return [node.kind() for node in made.graph.nodes()] if kind == "torch.jit.trace" else len(made.graph.nodes)

    def work(mpi):
        model = network()
        expected = operations(traces(model)[kind]())
        optimizer = distribute(model, sgd(model), algorithm, mpi)
        plain(model, optimizer, lambda k: loss(model, 0, k), 0)
        assert operations(traces(model)[kind]()) == expected
        assert not optimizer._step_under_way
        plain(model, optimizer, lambda k: loss(model, 0, k), 1)
        optimizer.finish()

    on_threads(monkeypatch, 1, work)


def test_tensors_without_content(monkeypatch):
    def work(mpi):
        model = network()
        optimizer = distribute(model, sgd(model), "grsgd", mpi)
        before = vector(model)
        with FakeTensorMode(allow_non_fake_inputs=True):
            model(torch.ones(5, 4, dtype=torch.float64)).sum().backward()
            with pytest.raises(RuntimeError, match="^optimizer.step.. in make_fx, torch.export or FakeTensorMode: "):
                optimizer.step()
        assert torch.equal(vector(model), before) and optimizer.steps == 0
        optimizer.zero_grad()
        optimizer.finish()

    on_threads(monkeypatch, 1, work)


METHODS = {
    "step": (),
    "synchronize": (),
    "zero_grad": (),
    "finish": (),
    "averaged_model": (),
    "averaged_state_dict": (),
    "rest": (),
    "state_dict": (),
    "load_state_dict": ({},),
}


@pytest.mark.parametrize("name", METHODS)
def test_nothing_that_exchanges_messages_is_transformed(name, monkeypatch):
    def work(mpi):
        model = network()
        optimizer = distribute(model, sgd(model), "dpsgd", mpi)

        def call(x):
            getattr(optimizer, name)(*METHODS[name])
            return x.sum()

        for transform in (grad, vmap):
            with pytest.raises(RuntimeError, match=rf"^optimizer.{name}\(\) in a transform of torch.func: this call"):
                transform(call)(torch.ones(2, 3))
        with pytest.raises(RuntimeError, match=rf"^optimizer.{name}\(\) in torch.jit.trace: this call") as caught:
            torch.jit.trace(call, (torch.ones(3),), check_trace=False)
        assert "\n" not in str(caught.value)
        optimizer.finish()

    on_threads(monkeypatch, 1, work)


def test_a_cuda_graph_is_refused(monkeypatch):
    def work(mpi):
        model = network()
        optimizer = distribute(model, sgd(model), "ring_allreduce", mpi)
        with monkeypatch.context() as capturing:
            capturing.setattr(torch.cuda, "is_initialized", lambda: True)
            capturing.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
            with pytest.raises(RuntimeError, match="^a CUDA graph of a distributed model: a replay of the graph would"):
                loss(model, 0, 0)
            with pytest.raises(RuntimeError, match=r"^optimizer.step\(\) in a CUDA graph: this call exchanges"):
                optimizer.step()
        assert tracing.traced_by() is None
        optimizer.finish()

    on_threads(monkeypatch, 1, work)


@pytest.mark.parametrize("algorithm", ["ring_allreduce", "dpsgd", "grsgd"])
def test_steps_in_inference_mode(algorithm, monkeypatch):
    """Arrays that an algorithm makes there can be changed later, outside."""

    def work(mpi):
        model = network()
        optimizer = distribute(model, sgd(model), algorithm, mpi, timeout=20.0, progress_mode="inline")
        for k in range(4):
            optimizer.zero_grad()
            loss(model, mpi.rank, k).backward()
            with torch.inference_mode(k % 2 == 0):
                optimizer.step()
        with torch.inference_mode():
            optimizer.averaged_model()
        optimizer.finish()
        return vector(model)

    assert torch.equal(*on_threads(monkeypatch, 2, work))
