"""Loops with a parameter server, on threads as ranks; on processes: tests/mpi/ranks/test_own_servers.py."""

import io
import warnings

import pytest
import torch
from torch import nn

from grsgd.comm.stop_signal import UnevenSteps
from grsgd.own_loop import served
from grsgd.own_loop.distribute import distribute
from grsgd.own_loop.ranks import shard
from grsgd.own_loop.recording import recording
from tests.support.own_loop import leaves_nothing, loss, network, sgd, vector
from tests.support.threads import on_threads

STEPS = 4
SYNCHRONOUS = {
    "bsp": {"strategy": "bsp"},
    "two servers": {"strategy": "bsp", "servers": 2},
    "shared": {"strategy": "bsp", "server": "shared"},
    "two shared": {"strategy": "bsp", "server": "shared", "servers": 2},
}
pytestmark = pytest.mark.usefixtures("leaves_nothing")
__all__ = ["leaves_nothing"]


def started(mpi, algorithm="parameter_server", model=None, make=sgd, **options):
    model = model or network(seed=mpi.rank)
    options = {"timeout": 20.0} | options
    return model, distribute(model, make(model), algorithm, mpi, progress_mode="inline", **options)


def take_steps(mpi, model, optimizer, steps):
    for step in optimizer.batches(steps):
        optimizer.zero_grad()
        loss(model, mpi.rank, step).backward()
        optimizer.step()


def alone(workers, make=sgd, steps=range(STEPS), schedule=None):
    """The model of a plain script with the mean loss of ``workers`` ranks."""
    model = network()
    optimizer = make(model)
    schedule = schedule and schedule(optimizer)
    for step in steps:
        optimizer.zero_grad()
        (sum(loss(model, rank, step) for rank in range(workers)) / workers).backward()
        optimizer.step()
        if schedule:
            schedule.step()
    return vector(model)


@pytest.mark.parametrize("options", SYNCHRONOUS.values(), ids=SYNCHRONOUS)
def test_a_model_without_gradients_is_served_all_the_same(options, monkeypatch):
    def work(mpi):
        model, optimizer = started(mpi, **options)
        model.zero_grad()
        take_steps(mpi, model, optimizer, range(STEPS))
        optimizer.finish()
        return vector(model), optimizer.workers

    for model, workers in on_threads(monkeypatch, 3, work):
        torch.testing.assert_close(model, alone(workers), rtol=1e-12, atol=1e-14)


def adam(model):
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def halving(optimizer):
    return torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)


@pytest.mark.parametrize("make", [sgd, adam])
@pytest.mark.parametrize("options", SYNCHRONOUS.values(), ids=SYNCHRONOUS)
def test_steps_with_the_mean_gradient_are_those_of_a_plain_script(options, make, monkeypatch):
    """Compare all ranks, also ranks that only serve."""

    def work(mpi):
        model, optimizer = started(mpi, make=make, **options)
        take_steps(mpi, model, optimizer, range(STEPS))
        optimizer.finish()
        return vector(model), optimizer.workers, optimizer.steps

    found = on_threads(monkeypatch, 3, work)
    workers = found[0][1]
    assert workers == (3 if options.get("server") == "shared" else 3 - options.get("servers", 1))
    assert [steps for _, _, steps in found] == [STEPS] * workers + [0] * (3 - workers)
    for model, _, _ in found:
        torch.testing.assert_close(model, alone(workers, make), rtol=1e-12, atol=1e-14)
        assert torch.equal(model, found[0][0])


@pytest.mark.parametrize("strategy", ["bsp", "asp", "ssp", "dssp", "adsp", "m_sync", "rennala", "ringmaster"])
def test_one_worker_trains_like_a_plain_script(strategy, monkeypatch):
    options = {"m_sync": {"fastest": 1}, "rennala": {"gradients_per_update": 1}}.get(strategy, {})

    def work(mpi):
        model, optimizer = started(mpi, strategy=strategy, **options)
        take_steps(mpi, model, optimizer, range(STEPS))
        optimizer.finish()
        return vector(model)

    for found in on_threads(monkeypatch, 2, work):
        torch.testing.assert_close(found, alone(1), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("algorithm, options", [("asgd", {}), ("asgd", {"server": "shared"}), ("decoupled", {"H": 2})])
def test_ranks_end_with_one_model(algorithm, options, monkeypatch):
    def work(mpi):
        model, optimizer = started(mpi, algorithm, **options)
        take_steps(mpi, model, optimizer, range(STEPS + 2 * mpi.rank))
        optimizer.finish()
        return vector(model)

    first, *others = on_threads(monkeypatch, 3, work)
    assert first.isfinite().all() and not torch.equal(first, vector(network()))
    assert all(torch.equal(first, other) for other in others)


def test_decoupled_with_all_workers_is_diloco(monkeypatch):
    """Bit for bit, with the algorithm's own check: `grsgd.algorithms.decoupled`."""

    def trained(algorithm, ranks, **options):
        def work(mpi):
            model, optimizer = started(mpi, algorithm, H=2, **options)
            take_steps(mpi, model, optimizer, range(STEPS))
            optimizer.finish()
            return vector(model)

        return on_threads(monkeypatch, ranks, work)[0]

    decoupled = trained("decoupled", 3, quorum=2)
    assert torch.equal(decoupled, trained("diloco", 2, variant="tree"))


def epochs(mpi, model, optimizer):
    """A script's usual loop: epochs, with calls that all ranks make within an epoch, and after it."""
    lengths = []
    for epoch in range(2):
        for step in optimizer.batches(range(STEPS)):
            optimizer.zero_grad()
            loss(model, mpi.rank, STEPS * epoch + step).backward()
            optimizer.step()
            if step == 1:
                optimizer.averaged_model()
                optimizer.rest()
                optimizer.averaged_model()
        lengths.append(vector(optimizer.averaged_model()))
        optimizer.rest()
    return lengths


@pytest.mark.parametrize("options", SYNCHRONOUS.values(), ids=SYNCHRONOUS)
def test_calls_of_all_ranks_in_a_loop_and_after_it(options, monkeypatch):
    def work(mpi):
        model, optimizer = started(mpi, **options)
        models = epochs(mpi, model, optimizer)
        optimizer.finish()
        return [*models, vector(model)], optimizer.workers

    found = on_threads(monkeypatch, 3, work)
    workers = found[0][1]
    for models, _ in found:
        torch.testing.assert_close(models[0], alone(workers), rtol=1e-12, atol=1e-14)
        for model in models[1:]:
            torch.testing.assert_close(model, alone(workers, steps=range(2 * STEPS)), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("options", SYNCHRONOUS.values(), ids=SYNCHRONOUS)
@pytest.mark.parametrize("around", ["the given optimizer", "the distributed optimizer"])
def test_schedulers_reach_the_server(around, options, monkeypatch):
    def work(mpi):
        model = network(seed=mpi.rank)
        given = sgd(model)
        schedule = halving(given) if around == "the given optimizer" else None
        optimizer = distribute(model, given, "parameter_server", mpi, timeout=20.0, progress_mode="inline", **options)
        schedule = schedule or halving(optimizer)
        for step in optimizer.batches(range(STEPS)):
            optimizer.zero_grad()
            loss(model, mpi.rank, step).backward()
            optimizer.step()
            schedule.step()
        optimizer.finish()
        return vector(model), optimizer.workers

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = on_threads(monkeypatch, 3, work)
    for model, workers in found:
        torch.testing.assert_close(model, alone(workers, schedule=halving), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("options", SYNCHRONOUS.values(), ids=SYNCHRONOUS)
def test_a_training_goes_on_from_its_state(options, monkeypatch):
    """Only the servers have the momentum that the state must contain."""

    def work(mpi):
        model, optimizer = started(mpi, **options)
        take_steps(mpi, model, optimizer, range(2))
        optimizer.rest()
        kept = io.BytesIO()
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, kept)
        optimizer.close()
        kept.seek(0)
        kept = torch.load(kept, weights_only=True)
        other, optimizer = started(mpi, model=network(seed=7), **options)
        other.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
        take_steps(mpi, other, optimizer, range(2, STEPS))
        optimizer.finish()
        return vector(other), optimizer.workers

    for model, workers in on_threads(monkeypatch, 3, work):
        torch.testing.assert_close(model, alone(workers), rtol=1e-12, atol=1e-14)


def test_an_optimizer_that_has_taken_steps_keeps_its_state(monkeypatch):
    def prepared(model):
        optimizer = sgd(model)
        loss(model, 0, 99).backward()
        optimizer.step()
        return optimizer

    def work(mpi):
        model, optimizer = started(mpi, model=network(), make=prepared, strategy="bsp", server="shared")
        take_steps(mpi, model, optimizer, range(STEPS))
        optimizer.finish()
        return vector(model)

    for found in on_threads(monkeypatch, 2, work):
        torch.testing.assert_close(found, alone(2, prepared), rtol=1e-12, atol=1e-14)


def test_a_loop_may_be_left_early(monkeypatch):
    def work(mpi):
        model, optimizer = started(mpi, strategy="bsp")
        optimizer.zero_grad()
        for step in optimizer.batches(range(100)):
            optimizer.zero_grad()
            loss(model, mpi.rank, step).backward()
            optimizer.step()
            if step == STEPS - 1:
                break
        averaged = vector(optimizer.averaged_model())
        optimizer.finish()
        return averaged, vector(model)

    for models in on_threads(monkeypatch, 3, work):
        for model in models:
            torch.testing.assert_close(model, alone(2), rtol=1e-12, atol=1e-14)


def test_servers_need_no_steps_without_batches(monkeypatch):
    """A script with `join` also runs with a server, whose workers may take different numbers of steps."""

    def work(mpi):
        model, optimizer = started(mpi, strategy="bsp")
        with optimizer.join():
            take_steps(mpi, model, optimizer, range(STEPS - mpi.rank))
        optimizer.finish()
        return vector(model), optimizer.steps

    found = on_threads(monkeypatch, 3, work)
    assert [steps for _, steps in found] == [STEPS, STEPS - 1, 0]
    assert all(torch.equal(model, found[0][0]) for model, _ in found)


def test_clipping_is_of_a_worker_s_own_gradient(monkeypatch):
    def work(mpi):
        model, optimizer = started(mpi, strategy="bsp")
        for step in optimizer.batches(range(1)):
            loss(model, mpi.rank, step).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
            optimizer.step()
        optimizer.finish()
        return vector(model)

    model = network()
    before, means = vector(model), []
    for rank in range(2):
        model.zero_grad()
        loss(model, rank, 0).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        means.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    for found in on_threads(monkeypatch, 3, work):
        expected = before - 0.1 * (sum(means) / 2 + 0.1 * before)
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("options", [{"strategy": "bsp"}, {"strategy": "ssp", "s": 1, "server": "shared"}], ids=str)
def test_uneven_steps_before_a_call_of_all_ranks_are_named(options, monkeypatch):
    """Without this error the ranks would wait for each other until the time-out."""
    monkeypatch.setattr(served, "VAIN_SECONDS", 0.1)

    def work(mpi):
        model, optimizer = started(mpi, timeout=2.0, **options)
        try:
            take_steps(mpi, model, optimizer, range(STEPS * (1 + mpi.rank)))
            optimizer.averaged_model()
        finally:
            optimizer.driver.close()

    words = "rank 0 is in averaged_model.. after 4 steps, and rank [12] has taken more steps.*workers, even"
    with pytest.raises(UnevenSteps, match=words):
        on_threads(monkeypatch, 3, work)


def test_a_rank_that_serves_does_not_step(monkeypatch):
    def work(mpi):
        model, optimizer = started(mpi, strategy="bsp")
        if mpi.rank == 1:
            loss(model, 0, 0).backward()
            with pytest.raises(RuntimeError, match="step.. on rank 1, which only serves.*optimizer.batches.loader"):
                optimizer.step()
        optimizer.close()

    on_threads(monkeypatch, 2, work)


@pytest.mark.parametrize(
    "options, words",
    [
        ({"on_lost_worker": "evict"}, "on_lost_worker = 'evict': only `grsgd train` can run it; allowed: stop"),
        ({"servers": 3}, "servers = 3 .dedicated. with 3 ranks; at most 2 can be servers"),
    ],
)
def test_refused_options(options, words, monkeypatch):
    def work(mpi):
        with pytest.raises(ValueError, match=words):
            started(mpi, **options)

    on_threads(monkeypatch, 3, work)


def test_optimizers_that_read_whole_layers_are_refused_with_several_servers(monkeypatch):
    class Lars(torch.optim.SGD):
        """An optimizer of the user's own."""

    def work(mpi):
        with pytest.raises(ValueError, match="servers > 1 with Lars: a server holds a slice of the layers"):
            started(mpi, make=lambda model: Lars(model.parameters(), lr=0.1), servers=2)

    on_threads(monkeypatch, 3, work)


def test_shards_for_the_ranks_that_train(monkeypatch):
    parts = on_threads(monkeypatch, 3, lambda mpi: shard(range(10), mpi, parts=2).indices)
    assert sorted(parts[0] + parts[1]) == list(range(10)) and parts[2] == parts[0]


def test_other_algorithms_have_all_batches_on_all_ranks(monkeypatch):
    def work(mpi):
        model, optimizer = started(mpi, "dpsgd")
        take_steps(mpi, model, optimizer, range(STEPS))
        optimizer.finish()
        return optimizer.steps, optimizer.workers

    assert on_threads(monkeypatch, 3, work) == [(STEPS, 3)] * 3


@pytest.mark.parametrize("algorithm", ["parameter_server", "asgd", "decoupled"])
def test_a_recording_begins_before_the_server_does(algorithm, monkeypatch, tmp_path):
    def work(mpi):
        model, optimizer = started(mpi, algorithm)
        with recording(tmp_path / "run.h5", optimizer, batch_size=4) as run:
            assert optimizer.loop.left_out == 0
            take_steps(mpi, model, optimizer, range(STEPS))
            optimizer.finish()
        return run.result.attributes["participation"] if mpi.rank == 0 else 1.0

    assert on_threads(monkeypatch, 3, work) == [1.0] * 3
