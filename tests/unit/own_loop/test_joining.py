"""`join()`: ranks whose loops have unequal numbers of batches, on ranks that are threads."""

import pytest
import torch
from torch import nn

from grsgd.own_loop.distribute import distribute
from grsgd.own_loop.joining import Joining
from tests.support.own_loop import leaves_nothing, loss, network, plain, sgd, vector
from tests.support.threads import on_threads

pytestmark = pytest.mark.usefixtures("leaves_nothing")
__all__ = ["leaves_nothing"]
BATCHES = (5, 2, 4)
"""Number of batches of each rank per epoch."""


def clipped(model, optimizer, losses, k):
    optimizer.zero_grad()
    losses(k).backward()
    optimizer.synchronize()
    nn.utils.clip_grad_norm_(model.parameters(), 0.05)
    optimizer.step()


def trained(monkeypatch, n, algorithm, step=plain, epochs=2, batches=BATCHES, **options):
    """The optimizers of ``n`` ranks after ``epochs`` epochs in ``join()``, and their models before ``finish``."""

    def work(mpi):
        model = network()
        optimizer = distribute(model, sgd(model), algorithm, mpi, timeout=20.0, progress_mode="inline", **options)
        for epoch in range(epochs):
            with optimizer.join():
                for k in range(batches[mpi.rank]):
                    step(model, optimizer, lambda k: loss(model, mpi.rank, k), 10 * epoch + k)
        before = vector(model)
        optimizer.finish()
        return optimizer, before

    return zip(*on_threads(monkeypatch, n, work), strict=True)


def mean_gradients(n, clip=None, epochs=2):
    """The model that one rank makes, by the sum of the losses of all ranks that have a batch, divided by ``n``."""
    model = network()
    optimizer = sgd(model)
    for epoch in range(epochs):
        for k in range(max(BATCHES[:n])):
            optimizer.zero_grad()
            parts = [loss(model, rank, 10 * epoch + k) for rank in range(n) if k < BATCHES[rank]]
            (sum(parts) / n).backward()
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
    return vector(model)


@pytest.mark.parametrize("options", [{}, {"buckets": 2}], ids=str)
@pytest.mark.parametrize("n", [1, 2, 3])
def test_ranks_without_batches_send_zeros(n, options, monkeypatch):
    optimizers, models = trained(monkeypatch, n, "ring_allreduce", **options)
    for optimizer, model in zip(optimizers, models, strict=True):
        torch.testing.assert_close(model, mean_gradients(n), rtol=1e-12, atol=1e-14)
        assert optimizer.steps == 10 and not optimizer.equal_models.warnings
    assert [each.times.steps_without_batch for each in optimizers] == [0, 6, 2][:n]
    assert not any(optimizer.times.unseen_steps for optimizer in optimizers)


def test_gradients_that_a_script_changes_after_the_exchange(monkeypatch):
    """A rank without batches clips nothing, so it takes the model and the momentum of a rank that does."""
    optimizers, models = trained(monkeypatch, 3, "ring_allreduce", clipped)
    for model in models:
        torch.testing.assert_close(model, mean_gradients(3, 0.05), rtol=1e-12, atol=1e-14)
    momenta = [[state["momentum_buffer"] for state in each.state.values()] for each in optimizers]
    for others in momenta[1:]:
        assert all(torch.equal(a, b) for a, b in zip(momenta[0], others, strict=True))


def test_models_are_not_compared_while_a_rank_keeps_its_model(monkeypatch):
    monkeypatch.setattr("grsgd.algorithms.equal_models.EVERY", 1)
    optimizers, _ = trained(monkeypatch, 3, "ring_allreduce")
    assert not any(optimizer.equal_models.warnings for optimizer in optimizers)


def test_a_rank_without_batches_mixes_its_model(monkeypatch):
    """D-PSGD on a full graph of three ranks: the model of such a rank becomes the mean of all models."""
    _, models = trained(monkeypatch, 3, "dpsgd", epochs=1, topology="full")
    ranks = [network() for _ in range(3)]
    optimizers = [sgd(model) for model in ranks]
    for k in range(max(BATCHES)):
        mean = sum(vector(model) for model in ranks) / 3
        for rank, (model, optimizer) in enumerate(zip(ranks, optimizers, strict=True)):
            before = vector(model)
            if k < BATCHES[rank]:
                plain(model, optimizer, lambda k, model=model, rank=rank: loss(model, rank, k), k)
            nn.utils.vector_to_parameters(mean + vector(model) - before, model.parameters())
    for model, expected in zip(models, ranks, strict=True):
        torch.testing.assert_close(model, vector(expected), rtol=1e-12, atol=1e-14)


SYNCHRONOUS = [
    *("dpsgd", "sgp", "local_sgd", "noloco", "choco_sgd", "exact_diffusion", "gradient_tracking", "relaysgd"),
]


@pytest.mark.parametrize("algorithm, options", [*((name, {}) for name in SYNCHRONOUS), ("diloco", {"H": 2})])
def test_ranks_end_with_equally_many_steps_and_one_model(algorithm, options, monkeypatch):
    n = 2 if algorithm in ("noloco",) else 3
    optimizers, _ = trained(monkeypatch, n, algorithm, **options)
    models = [vector(optimizer.model) for optimizer in optimizers]
    assert all(torch.equal(models[0], model) for model in models) and models[0].isfinite().all()
    assert {optimizer.steps for optimizer in optimizers} == {10}


@pytest.mark.parametrize("algorithm", ["grsgd", "easgd"])
def test_ranks_of_an_asynchronous_algorithm_take_their_own_steps(algorithm, monkeypatch):
    optimizers, _ = trained(monkeypatch, 2, algorithm)
    assert [optimizer.steps for optimizer in optimizers] == [10, 4]


def test_steps_without_batches_are_told_once(monkeypatch, capsys):
    trained(monkeypatch, 3, "dpsgd")
    assert capsys.readouterr().err == "grsgd: join(): 5 steps; steps without a batch: rank 1: 3, rank 2: 1\n"
    trained(monkeypatch, 2, "dpsgd", batches=(2, 2))
    assert not capsys.readouterr().err
    joining = Joining(type("Comm", (), {"rank": 0, "size": 7}), None)
    joining.tell(torch.tensor([6.0, 5, 4, 3, 2, 1, 0]).numpy())
    assert "rank 1: 1, rank 2: 2, rank 3: 3, rank 4: 4 and 2 more ranks\n" in capsys.readouterr().err


def test_the_last_batches_of_an_epoch_make_no_step(monkeypatch):
    """A loop that accumulates two batches per step leaves one batch of the gradient behind."""

    def accumulating(model, optimizer, losses, k):
        losses(k).backward()
        if k % 10 % 2:
            optimizer.step()
            optimizer.zero_grad()

    optimizers, _ = trained(monkeypatch, 3, "dpsgd", accumulating)
    assert {optimizer.steps for optimizer in optimizers} == {4}


def test_algorithms_whose_ranks_share_batches_are_refused(monkeypatch):
    def work(mpi):
        model = network()
        optimizer = distribute(model, sgd(model), "ssgd", mpi, timeout=20.0, progress_mode="inline")
        with pytest.raises(RuntimeError, match="join.. with ssgd: all ranks compute parts of the same batches"):
            with optimizer.join():
                raise AssertionError
        optimizer.finish()

    on_threads(monkeypatch, 2, work)


def test_an_error_in_the_block_is_raised_at_once(monkeypatch):
    def work(mpi):
        model = network()
        optimizer = distribute(model, sgd(model), "dpsgd", mpi, timeout=20.0, progress_mode="inline")
        with pytest.raises(KeyError, match="mine"), optimizer.join():
            plain(model, optimizer, lambda k: loss(model, mpi.rank, k), 0)
            raise KeyError("mine")
        with pytest.raises(RuntimeError, match="join.. within join"), optimizer.join(), optimizer.join():
            pass
        optimizer.finish()
        with pytest.raises(RuntimeError, match="after finish"):
            optimizer.join()

    on_threads(monkeypatch, 2, work)
