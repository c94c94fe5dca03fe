"""A loop of a user's own that goes on without ranks that die; the ranks are threads."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch

from grsgd.algorithms.hooks import schedule_of
from grsgd.comm.communicator import LostRank
from grsgd.comm.engine import ENGINE
from grsgd.comm.pollables import Until
from grsgd.errors import ConfigError, SetupError
from grsgd.job import ending
from grsgd.own_loop.distribute import distribute
from grsgd.own_loop.even import even
from grsgd.own_loop.packed_state import packed
from grsgd.own_loop.recording import recording
from grsgd.own_loop.survival import SurvivingLoop
from grsgd.own_loop.surviving import surviving
from tests.support.mortal_threads import die, on_mortal_threads
from tests.support.own_loop import leaves_nothing, loss, network, plain, sgd, vector
from tests.support.threads import on_threads

STEPS = 12
pytestmark = pytest.mark.usefixtures("leaves_nothing")
__all__ = ["leaves_nothing"]
TOGETHER = [("ring_allreduce", {}), ("local_sgd", {"H": 3}), ("dpsgd", {}), ("sgp", {}), ("lasgd", {})]
ALONE = [("grsgd", {}), ("gosgd", {}), ("gossip", {}), ("adpsgd", {})]


def survivors(monkeypatch, n, deaths, algorithm, options):
    """Return what is left of ``n`` ranks; ``deaths`` has the step of each rank that dies, between two calls."""

    def work(mpi):
        model = network(seed=mpi.rank)
        optimizer = sgd(model)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.9)
        optimizer = distribute(model, optimizer, algorithm, mpi, timeout=20.0, progress_mode="inline", **options)
        taken = []
        for step in surviving(optimizer, range(STEPS), scheduler=scheduler):
            if step >= deaths.get(mpi.rank, STEPS):  # the rank may have been behind at the other death
                die(mpi, optimizer.driver, optimizer.loop.beside)
            taken.append(step)
            plain(model, optimizer, lambda k: loss(model, mpi.rank, k), step)
            scheduler.step()
        if algorithm != "lasgd":  # whose last steps need the schedules of all ranks
            # Threads share torch's hooks of steps, which finish() removes.
            mpi.job.meet(("all are through",), mpi.group.members, mpi.rank, None)
        mine = [handle._schedule.__name__ for handle in ENGINE.handles if handle.driver is optimizer.driver]
        assert mine.count("_learn") == (not optimizer.algorithm.traits.synchronous)  # also after a regrouping
        optimizer.finish()
        return vector(model), taken, scheduler.last_epoch, optimizer.steps

    return on_mortal_threads(monkeypatch, n, work)


@pytest.mark.parametrize("algorithm, options", TOGETHER + ALONE, ids=str)
@pytest.mark.parametrize("deaths", [{0: 4, 2: 8}, {3: 5, 1: 5}], ids=str)
def test_the_others_go_on_without_ranks_that_die(algorithm, options, deaths, monkeypatch):
    """At a death a rank can be as many steps behind as ranks take between two averages."""
    found = survivors(monkeypatch, 4, deaths, algorithm, options)
    assert [rank for rank, each in enumerate(found) if each is None] == sorted(deaths)
    left = [each for each in found if each is not None]
    for model, taken, last_epoch, steps in left:
        assert torch.equal(model, left[0][0]) and torch.isfinite(model).all()
        assert taken == sorted(set(taken)) and taken[-1] == STEPS - 1
        assert len(taken) >= STEPS - len(deaths) * options.get("H", 2)
        assert last_epoch == steps == STEPS


@pytest.mark.parametrize("algorithm, options", TOGETHER + ALONE, ids=str)
def test_averages_of_the_living_ranks_in_every_second_iteration(algorithm, options, monkeypatch):
    """Rank 1 dies when the others may be in the call, and rank 3 in it."""

    def work(mpi):
        model = network(seed=mpi.rank)
        optimizer = distribute(model, sgd(model), algorithm, mpi, timeout=20.0, progress_mode="inline", **options)
        averages = {}
        for step in surviving(optimizer, range(STEPS)):
            if mpi.rank == 1 and step >= 5:
                die(mpi, optimizer.driver, optimizer.loop.beside)
            if step % 4 == 1:
                averages[step] = vector(optimizer.averaged_model())
            plain(model, optimizer, lambda k: loss(model, mpi.rank, k), step)
            if mpi.rank == 3 and step >= 7:
                die(mpi, optimizer.driver, optimizer.loop.beside)
            if step % 4 == 3:
                averages[step] = vector(optimizer.averaged_model())
                assert torch.isfinite(averages[step]).all()
        mpi.job.meet(("all are through",), mpi.group.members, mpi.rank, None)
        optimizer.finish()
        return averages

    found = survivors_of(on_mortal_threads(monkeypatch, 4, work))
    assert [rank for rank, _ in found] == [0, 2]
    for _, averages in found:
        assert averages.keys() >= {9, 11}
    if algorithm in ("ring_allreduce", "local_sgd", "dpsgd", "sgp"):
        assert torch.equal(found[0][1][11], found[1][1][11])


@pytest.mark.parametrize("in_call", [False, True])
def test_a_rank_whose_last_step_a_death_has_broken_off_ends_with_the_others(in_call, monkeypatch):
    """Rank 1 dies after its last step; rank 2 does not get the step's last message, and rank 0 has ended its loop, or
    is in the call after it."""

    def work(mpi):
        model = network(seed=mpi.rank)
        optimizer = sgd(model)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.9)
        optimizer = distribute(model, optimizer, "ring_allreduce", mpi, timeout=20.0, progress_mode="inline")
        average = None
        for step in surviving(optimizer, range(4), scheduler=scheduler):
            if mpi.rank == 2 and step == 3:
                broken_off = partial(without_last_message, mpi, optimizer, optimizer.algorithm.reduce)
                optimizer.algorithm.reduce = broken_off
            plain(model, optimizer, lambda k: loss(model, mpi.rank, k), step)
            scheduler.step()
            if mpi.rank == 1 and step == 3:
                die(mpi, optimizer.driver, optimizer.loop.beside)
            if in_call and step == 3:
                average = vector(optimizer.averaged_model())
        optimizer.finish()
        assert average is None or torch.equal(average, vector(model))
        return vector(model), optimizer.steps, scheduler.last_epoch

    found = survivors_of(on_mortal_threads(monkeypatch, 3, work))
    assert [rank for rank, _ in found] == [0, 2]
    assert torch.equal(found[0][1][0], found[1][1][0])
    assert [each[1:] for _, each in found] == [(4, 4), (4, 4)]


def without_last_message(mpi, optimizer, reduce):
    """Schedule that sums gradients, so that the other ranks have their sums, and then loses the last message."""
    yield from schedule_of(reduce)
    yield Until(lambda: 1 in mpi.job.dead, "the death of rank 1")
    optimizer.loop.recovery.membership.look()
    raise LostRank("of the test")


def survivors_of(found: list) -> list[tuple]:
    """Return (rank, result) of each rank that has not died."""
    return [(rank, each) for rank, each in enumerate(found) if each is not None]


def test_a_step_is_taken_with_the_gradients_of_the_ranks_that_are_left(monkeypatch):
    """All steps from the death on equal steps of two ranks, and all before it steps of three."""
    found = survivors(monkeypatch, 3, {1: 6}, "ring_allreduce", {})
    model = network()
    optimizer = sgd(model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.9)
    for step in range(STEPS):
        ranks = [0, 1, 2] if step < 6 else [0, 2]
        plain(model, optimizer, lambda k, ranks=ranks: sum(loss(model, r, k) for r in ranks) / len(ranks), step)
        scheduler.step()
    for each in (found[0], found[2]):
        torch.testing.assert_close(each[0], vector(model), rtol=1e-10, atol=1e-12)


def test_without_a_death_the_loop_is_the_loop_without_the_call(monkeypatch):
    found = survivors(monkeypatch, 3, {}, "ring_allreduce", {})
    expected = network()
    optimizer = sgd(expected)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.9)
    for step in range(STEPS):
        plain(expected, optimizer, lambda k: sum(loss(expected, rank, k) for rank in range(3)) / 3, step)
        scheduler.step()
    for model, taken, *_ in found:
        torch.testing.assert_close(model, vector(expected), rtol=1e-12, atol=1e-14)
        assert taken == list(range(STEPS))
    assert not ending.BEFORE_ABORT  # a loop that has ended keeps no memory


def test_an_mpi_library_that_does_not_survive_is_named_and_the_loop_goes_on(monkeypatch):
    def work(mpi):
        model = network()
        optimizer = distribute(model, sgd(model), "ring_allreduce", mpi, timeout=20.0, progress_mode="inline")
        steps = []
        for step in surviving(optimizer, range(3)):
            plain(model, optimizer, lambda k: loss(model, mpi.rank, k), step)
            steps.append(step)
        optimizer.finish()
        return steps

    with pytest.warns(RuntimeWarning, match="a death ends this job: only Open MPI 5 with `mpiexec --with-ft ulfm`"):
        assert on_threads(monkeypatch, 2, work) == [[0, 1, 2]] * 2


@pytest.mark.parametrize(
    "algorithm, options, state, error, words",
    [
        ("diloco", {"variant": "mpi"}, {}, SetupError, "surviving.*: with diloco.* the job ends when a process dies"),
        ("ring_allreduce", {"buckets": 2}, {}, SetupError, "the job ends when a process dies"),
        ("grsgd", {}, {"ema": 3}, SetupError, r"ema has no state_dict\(\) and load_state_dict\(\)"),
    ],
)
def test_refusals(algorithm, options, state, error, words, monkeypatch):
    def work(mpi):
        model = network()
        optimizer = distribute(model, sgd(model), algorithm, mpi, progress_mode="inline", **options)
        surviving(optimizer, range(3), **state)

    with pytest.raises((error, ConfigError), match=words):
        on_mortal_threads(monkeypatch, 2, work)


def test_calls_at_the_wrong_time(monkeypatch):
    def work(mpi):
        model = network()
        optimizer = distribute(model, sgd(model), "ring_allreduce", mpi, timeout=20.0, progress_mode="inline")
        plain(model, optimizer, lambda k: loss(model, mpi.rank, k), 0)
        with pytest.raises(SetupError, match=r"after a step .*: call it right after distribute\(\)"):
            surviving(optimizer, range(2))
        optimizer.close()
        with pytest.raises(SetupError, match=r"surviving\(\) after finish\(\): call distribute\(\) again"):
            surviving(optimizer, range(2))
        optimizer = distribute(model, sgd(model), "ring_allreduce", mpi, timeout=20.0, progress_mode="inline")
        steps = surviving(optimizer, range(2))
        with pytest.raises(SetupError, match=r"surviving\(\) twice: give one call an iterable over all epochs"):
            surviving(optimizer, range(2))
        for step in steps:
            plain(model, optimizer, lambda k: loss(model, mpi.rank, k), step)
        optimizer.finish()

    on_mortal_threads(monkeypatch, 2, work)


def test_calls_that_a_death_would_break(monkeypatch):
    def work(mpi):
        model = network()
        optimizer = distribute(model, sgd(model), "ring_allreduce", mpi, timeout=20.0, progress_mode="inline")
        for step in surviving(optimizer, range(2)):
            plain(model, optimizer, lambda k: loss(model, mpi.rank, k), step)
            with pytest.raises(RuntimeError, match=r"rest\(\) with surviving\(\): .*; save averaged_model"):
                optimizer.rest()
            with pytest.raises(RuntimeError, match=r"load_state_dict\(\) with surviving\(\): .* let it precede"):
                optimizer.load_state_dict({})
            with pytest.raises(RuntimeError, match=r"algorithm's state with surviving\(\): .*\(algorithm=False\)"):
                optimizer.state_dict()
            assert optimizer.state_dict(algorithm=False).keys() == {"state", "param_groups"}
            with pytest.raises(RuntimeError, match=r"even\(\) with surviving\(\): .* let it follow finish\(\)$"):
                next(even([1, 2], mpi))
            with pytest.raises(RuntimeError, match=r"step\(\) twice in one iteration of surviving\(\)"):
                optimizer.step()
        optimizer.finish()
        assert optimizer.state_dict()["param_groups"]
        return torch.equal(vector(optimizer.averaged_model()), vector(model))

    assert on_mortal_threads(monkeypatch, 2, work) == [True, True]


def test_a_recording_is_around_the_whole_loop(monkeypatch, tmp_path):
    def work(mpi):
        model = network()
        optimizer = distribute(model, sgd(model), "ring_allreduce", mpi, timeout=20.0, progress_mode="inline")
        steps = surviving(optimizer, range(2))
        with pytest.raises(SetupError, match="around surviving"), recording(tmp_path / "x.h5", optimizer):
            pytest.fail("it records")
        for step in steps:
            plain(model, optimizer, lambda k: loss(model, mpi.rank, k), step)
        optimizer.finish()

    on_mortal_threads(monkeypatch, 2, work)


# ---- the state that a process takes over


def loop_with(objects: dict, frozen: torch.Tensor, lr: float, is_late: bool, recording=None) -> SurvivingLoop:
    """Return the part of a loop that hands over its state, or takes it over as rank 2 before iteration 7."""
    loop = object.__new__(SurvivingLoop)
    loop.objects, loop.is_late, loop._iteration = objects, is_late, -1
    loop.optimizer = SimpleNamespace(param_groups=[{"params": [frozen], "lr": lr}])
    loop.replica = SimpleNamespace(outside=lambda: [frozen])
    loop.distributed = SimpleNamespace(recording=recording)
    loop.context, loop.lives = SimpleNamespace(seed=0), SimpleNamespace(membership=SimpleNamespace(rank=2))
    loop.progress = SimpleNamespace(batches=7)
    return loop


def scheduled(steps: int):
    scheduler = torch.optim.lr_scheduler.StepLR(sgd(network()), 1)
    for _ in range(steps):
        scheduler.optimizer.step()
        scheduler.step()
    return scheduler


@pytest.mark.parametrize("is_late", [True, False])
def test_a_process_takes_over_rates_objects_and_what_is_not_trained(is_late):
    """A rank that was only behind keeps its own generators and recording."""
    average = torch.optim.swa_utils.AveragedModel(network(1))
    giver = loop_with({"scheduler": scheduled(5), "average": average}, torch.ones(3), 0.25, False, Shared())
    generator, recording = torch.Generator().manual_seed(1), Shared()
    mine = {"scheduler": scheduled(0), "average": torch.optim.swa_utils.AveragedModel(network(2)), "draws": generator}
    before, frozen = generator.get_state(), torch.zeros(3)
    taker = loop_with(mine, frozen, 1.0, is_late, recording)
    taker.load(packed(giver.state()))
    assert mine["scheduler"].last_epoch == 5 and taker.optimizer.param_groups[0]["lr"] == 0.25
    assert torch.equal(vector(mine["average"]), vector(average))
    assert torch.equal(frozen, torch.ones(3)) == is_late == (recording.taken == {"elapsed": 3.0})
    assert torch.equal(generator.get_state(), before) != is_late


class Shared:
    """The part of a recording that is handed over."""

    taken = None

    def shared(self):
        return {"elapsed": 3.0}

    def take(self, **shared):
        self.taken = shared


def test_processes_that_take_ranks_draw_other_numbers():
    drawn = set()
    for iteration in range(3):
        generator = torch.Generator()
        taker = loop_with({"draws": generator}, torch.zeros(1), 0.1, True)
        taker.progress.batches = iteration
        taker.load(packed(loop_with({}, torch.zeros(1), 0.1, False).state()))
        drawn.add(generator.initial_seed())
    assert len(drawn) == 3
