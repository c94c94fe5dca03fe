"""Loops over the blocks of a common batch, on threads as ranks; on processes: tests/mpi/ranks/test_own_blocks.py."""

import copy
import io
import warnings
from functools import partial
from itertools import islice

import numpy as np
import pytest
import torch
from torch import nn

from grsgd.data.shards import index_stream
from grsgd.own_loop.distribute import distribute
from tests.support.own_loop import leaves_nothing, network, sgd, vector
from tests.support.threads import on_threads
from tests.support.training import simulation

STEPS, SAMPLES = 4, 26
RANGE = 1e-2
"""Range of the gradients here; the steps of its fixed point are 5e-12."""
SCHEMES = {
    "coded": ("cssgd", {"r": 2}),
    "paper": ("cssgd", {"r": 2, "enumeration": "paper"}),
    "uncoded": ("cssgd", {"r": 2, "scheme": "uncoded"}),
    "direct": ("cssgd", {"r": 2, "scheme": "grouped-direct"}),
    "rs": ("cssgd", {"r": 2, "scheme": "grouped-rs"}),
    "unicast": ("cssgd", {"r": 1, "transport": "unicast"}),
    "all": ("cssgd", {"r": 3}),
    "ssgd": ("ssgd", {}),
    "ssgd per block": ("ssgd", {"accounting": "per-block", "r": 2}),
}
pytestmark = pytest.mark.usefixtures("leaves_nothing")
__all__ = ["leaves_nothing"]


def batch(step, samples=SAMPLES):
    return torch.randn(samples, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(step))


def loss(model, x):
    """A mean over samples, so small that all gradients are in `RANGE`."""
    return 1e-3 * model(x).square().mean()


def take_step(model, optimizer, x):
    optimizer.zero_grad()
    for block in optimizer.blocks(len(x)):
        loss(model, x[block]).backward()
    optimizer.step()


def started(mpi, algorithm="cssgd", model=None, **options):
    model = model or network(seed=mpi.rank)
    options = {"range": RANGE} | options if algorithm in ("cssgd", "ssgd") else options
    return model, distribute(model, sgd(model), algorithm, mpi, timeout=20.0, progress_mode="inline", **options)


def gradient_of(model):
    return torch.cat([p.grad.flatten() for p in model.parameters()])


@pytest.mark.parametrize("algorithm, options", SCHEMES.values(), ids=SCHEMES)
def test_every_step_applies_the_gradient_of_the_whole_batch(algorithm, options, monkeypatch):
    """Compare with a plain script, to half a step of the fixed point per block, and all ranks bit for bit."""

    def work(mpi):
        model, optimizer = started(mpi, algorithm, **options)
        found = []
        for step in range(STEPS):
            take_step(model, optimizer, batch(step))
            found.append((vector(model), gradient_of(model).clone()))
        optimizer.finish()
        assert not optimizer.algorithm.warnings()
        return [*found, (vector(model), gradient_of(model))], optimizer.algorithm.num_blocks

    (first, blocks), *others = on_threads(monkeypatch, 3, work)
    for other, _ in others:
        assert all(torch.equal(*pair) for a, b in zip(first, other, strict=True) for pair in zip(a, b, strict=True))
    model = network()
    optimizer = sgd(model)
    for step in range(STEPS):
        nn.utils.vector_to_parameters(first[step - 1][0] if step else vector(model), model.parameters())
        optimizer.zero_grad()
        loss(model, batch(step)).backward()
        torch.testing.assert_close(first[step][1], gradient_of(model), rtol=0, atol=(blocks + 1) * RANGE / 2**32)
        optimizer.step()
        torch.testing.assert_close(first[step][0], vector(model), rtol=0, atol=1e-12 + blocks * RANGE / 2**32)
    assert torch.equal(first[-1][0], first[-2][0]), "finish() has nothing to average"


@pytest.mark.parametrize("section", [{"name": "cssgd", "r": 2}, {"name": "cssgd", "scheme": "grouped-rs"}, "ssgd"])
def test_the_model_is_that_of_grsgd_train(section, monkeypatch):
    """Bit for bit, with the same batches."""
    n, size = 3, 8
    job = simulation(section, n, steps=STEPS, dtype="float64", data={"batch_size": size})
    start, train = copy.deepcopy(job.trainers[0].replica.model), job.trainers[0].data.train
    stream = index_stream(np.arange(len(train)), n * size, seed=job.config.seed, rank=0)
    batches = [(x.double(), y) for x, y in train.batches(islice(stream, STEPS))]
    assert job.train() == "steps"
    section = section if isinstance(section, dict) else {"name": section}

    def work(mpi):
        model = copy.deepcopy(start)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        options = {key: value for key, value in section.items() if key != "name"}
        optimizer = distribute(model, optimizer, section["name"], mpi, progress_mode="inline", **options)
        for x, y in batches:
            optimizer.zero_grad()
            for block in optimizer.blocks(len(x)):
                nn.functional.cross_entropy(model(x[block]), y[block]).backward()
            optimizer.step()
        optimizer.finish()
        return vector(model)

    for found in on_threads(monkeypatch, n, work):
        assert found.numpy().tobytes() == job.trainers[0].replica.params.array.tobytes()


@pytest.mark.parametrize("algorithm", ["ring_allreduce", "dpsgd"])
def test_other_algorithms_take_one_block_per_rank(algorithm, monkeypatch):
    """One script then fits all algorithms, and an algorithm that takes the mean has the gradient of the whole batch."""

    def work(mpi):
        model, optimizer = started(mpi, algorithm)
        blocks = list(optimizer.blocks(24))
        take_step(model, optimizer, batch(0, 24))
        optimizer.finish()
        return blocks, vector(model)

    found = on_threads(monkeypatch, 3, work)
    assert [blocks for blocks, _ in found] == [[slice(0, 8)], [slice(8, 16)], [slice(16, 24)]]
    model = network()
    optimizer = sgd(model)
    loss(model, batch(0, 24)).backward()
    optimizer.step()
    for _, other in found:
        if algorithm == "ring_allreduce":
            torch.testing.assert_close(other, vector(model), rtol=1e-12, atol=1e-14)


def clipped(model, optimizer, steps):
    for step in steps:
        optimizer.zero_grad()
        for block in optimizer.blocks(SAMPLES):
            loss(model, batch(step)[block]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1e-5)
        optimizer.step()


def in_two_batches(model, optimizer, steps):
    for step in steps:
        optimizer.zero_grad()
        for part in (batch(step), batch(step + 100)):
            for block in optimizer.blocks(SAMPLES):
                loss(model, part[block]).backward()
        optimizer.step()


def thrown_away(model, optimizer, steps):
    for step in steps:
        for _ in optimizer.blocks(SAMPLES):
            loss(model, batch(step + 100)).backward()
            break
        take_step(model, optimizer, batch(step))


def with_a_closure(model, optimizer, steps):
    def calculate(step):
        optimizer.zero_grad()
        for block in optimizer.blocks(SAMPLES):
            loss(model, batch(step)[block]).backward()

    for step in steps:
        optimizer.step(partial(calculate, step))


class OneBlock:
    """A plain optimizer, in the place of the distributed one."""

    def __init__(self, model):
        self.optimizer = sgd(model)
        self.zero_grad, self.blocks = self.optimizer.zero_grad, lambda samples: [slice(0, samples)]

    def step(self, closure=None):
        return self.optimizer.step(closure and torch.enable_grad()(closure))


@pytest.mark.parametrize("loop", [clipped, in_two_batches, thrown_away, with_a_closure])
def test_what_scripts_do_has_the_effect_of_a_plain_script(loop, monkeypatch):
    def work(mpi):
        model, optimizer = started(mpi)
        loop(model, optimizer, range(STEPS))
        optimizer.finish()
        return vector(model)

    model = network()
    if loop is thrown_away:  # a plain script would accumulate the abandoned gradients
        loop = lambda model, optimizer, steps: [take_step(model, optimizer, batch(step)) for step in steps]  # noqa: E731
    loop(model, OneBlock(model), range(STEPS))
    for found in on_threads(monkeypatch, 3, work):
        torch.testing.assert_close(found, vector(model), rtol=0, atol=1e-9)


def test_a_training_goes_on_from_its_state(monkeypatch):
    """Bit for bit, as if it had never stopped."""

    def whole(mpi):
        model, optimizer = started(mpi)
        for step in range(STEPS):
            take_step(model, optimizer, batch(step))
        optimizer.finish()
        return vector(model)

    def in_two(mpi):
        model, optimizer = started(mpi)
        for step in range(2):
            take_step(model, optimizer, batch(step))
        kept = io.BytesIO()
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, kept)
        optimizer.close()
        kept.seek(0)
        kept = torch.load(kept, weights_only=True)
        other, optimizer = started(mpi, model=network(seed=7))
        other.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
        assert optimizer._batches == 2
        for step in range(2, STEPS):
            take_step(other, optimizer, batch(step))
        optimizer.finish()
        return vector(other)

    (expected,) = {each.numpy().tobytes() for each in on_threads(monkeypatch, 2, whole)}
    (found,) = {each.numpy().tobytes() for each in on_threads(monkeypatch, 2, in_two)}
    assert found == expected


def test_samples_are_counted_once(monkeypatch):
    """Count on several ranks, if the model itself is called, and if only a part is called."""

    def work(mpi):
        model, optimizer = started(mpi)
        take_step(model, optimizer, batch(0))
        for block in optimizer.blocks(SAMPLES):
            loss(model[0], batch(1)[block]).backward()
        optimizer.step()
        optimizer.finish()
        return optimizer.times.totals.samples, optimizer.times.unseen_steps, optimizer.times.totals.compute_seconds

    found = on_threads(monkeypatch, 3, work)
    assert sum(samples for samples, _, _ in found) == 2 * SAMPLES
    assert all(unseen == 0 and seconds > 0 for _, unseen, seconds in found)


# ---- misuse


def no_blocks(model, optimizer, mpi):
    loss(model, batch(0)).backward()
    optimizer.step()


def not_all_blocks(model, optimizer, mpi):
    for block in optimizer.blocks(SAMPLES):
        loss(model, batch(0)[block]).backward()
        break
    optimizer.step()


def other_data(model, optimizer, mpi):
    take_step(model, optimizer, batch(mpi.rank))


def other_sizes(model, optimizer, mpi):
    take_step(model, optimizer, batch(0)[: 20 + mpi.rank])


@pytest.mark.parametrize(
    "misuse, error, words",
    [
        (no_blocks, RuntimeError, "step.. without the gradient of a whole batch: cssgd needs a loop `for block"),
        (not_all_blocks, RuntimeError, "step.. without the gradient of a whole batch"),
        (other_data, RuntimeError, "the ranks have computed different gradients of block 0 of the batch: all"),
        (other_sizes, RuntimeError, "2[0-2] samples in blocks.. on rank ., another number on other ranks: all ranks"),
        (lambda model, optimizer, mpi: next(optimizer.blocks(2)), ValueError, "cssgd cuts the batch into 3 blocks$"),
        (lambda model, optimizer, mpi: next(optimizer.blocks(0)), ValueError, "blocks.0.: the number of samples must"),
        (lambda model, optimizer, mpi: next(optimizer.blocks(batch(0))), TypeError, "Tensor is no number of samples"),
        (lambda model, optimizer, mpi: next(optimizer.blocks(True)), TypeError, "bool is no number of samples: give"),
    ],
)
def test_misuse_is_one_line_on_all_ranks(misuse, error, words, monkeypatch):
    def work(mpi):
        model, optimizer = started(mpi)
        with pytest.raises(error, match=words) as caught:
            misuse(model, optimizer, mpi)
        assert "\n" not in str(caught.value)

    on_threads(monkeypatch, 3, work)


def test_a_rank_without_samples_is_refused_with_other_algorithms(monkeypatch):
    def work(mpi):
        _, optimizer = started(mpi, "dpsgd")
        if mpi.rank == 0:
            with pytest.raises(ValueError, match="blocks.2.: too few samples for 3 ranks"):
                next(optimizer.blocks(2))

    on_threads(monkeypatch, 3, work)


@pytest.mark.parametrize(
    "options, words",
    [
        ({"r": "auto"}, "cssgd: r = 'auto': only `grsgd train` can run it; allowed: 1 to the number of ranks"),
        ({"scheme": "tolerant"}, "cssgd: scheme = 'tolerant': only `grsgd train` can run it; allowed: the other"),
        ({"transport": "ip-multicast"}, "cssgd: transport = 'ip-multicast': only `grsgd train` can run it; allowed: "),
    ],
)
def test_options_for_grsgd_train_alone(options, words, monkeypatch):
    def work(mpi):
        with pytest.raises(ValueError, match=words):
            started(mpi, **options)

    on_threads(monkeypatch, 3, work)


def test_one_rank_alone_trains_like_a_plain_script(monkeypatch):
    def work(mpi):
        model, optimizer = started(mpi, r=1)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for step in range(STEPS):
                take_step(model, optimizer, batch(step))
        optimizer.finish()
        return vector(model)

    model = network()
    plain = OneBlock(model)
    for step in range(STEPS):
        take_step(model, plain, batch(step))
    (found,) = on_threads(monkeypatch, 1, work)
    torch.testing.assert_close(found, vector(model), rtol=0, atol=1e-10)
