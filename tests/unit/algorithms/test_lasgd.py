import gc
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from grsgd.algorithms import ALGORITHMS
from grsgd.comm.allreduce import ALLREDUCE
from grsgd.config import parse
from grsgd.simulator.simulation import Simulation
from grsgd.testing.quadratic import STEPS, Job, M, Reference, random_speeds, straggler, uneven
from grsgd.testing.simulated import network_of
from tests.support.exhaustive import exhaustive_unless
from tests.support.seeded import seeded

PULL, SLOW = 0.6, 0.7
"""The defaults of alpha and beta."""


class Rounds(Reference):
    """Replays the snapshots and merges of a run; the average of a round needs no more than its snapshots."""

    def __init__(self, n, rule, blocking=()):
        super().__init__(n)
        self.rule, self.blocking = rule, blocking
        self.s = {}
        self.z, self.v = self.X.copy(), np.zeros_like(self.X)

    def begin_round(self, rank, number):
        if self.rule == "anchor" and number not in self.blocking:
            self.X[rank] = (1 - PULL) * self.X[rank] + PULL * self.z[rank]
        self.s[number, rank] = self.X[rank].copy()

    def merge(self, rank, number):
        a = np.mean([self.s[number, other] for other in range(len(self.X))], 0)
        if self.rule == "anchor":
            self.v[rank] = SLOW * self.v[rank] + a - self.z[rank]
            self.z[rank] = self.z[rank] + self.v[rank]
        if number in self.blocking or self.rule == "overwrite":
            self.X[rank] = a
        elif self.rule != "anchor":
            self.X[rank] += a - self.s[number, rank]


def job_of(n, *arguments, **options):
    job = Job("lasgd", n, *arguments, **options)
    for algorithm in job.algorithms:
        for method in ("begin_round", "merge"):
            job.note(algorithm, method, lambda one=algorithm: one.rounds)
    return job


def flights(job):
    """All local steps that were taken between a snapshot and its merge, of all ranks."""
    return sorted(set().union(*(algorithm.staleness for algorithm in job.algorithms)))


def waits(job):
    return [driver.wait_seconds for driver in job.ranks.drivers]


# ---- against a reference


@pytest.mark.parametrize("variant", ["ring", "halving-doubling"])
@pytest.mark.parametrize("Hmin", [1, 3])
@pytest.mark.parametrize("merge", ["delta", "overwrite", "cocod", "anchor"])
@pytest.mark.parametrize("n", exhaustive_unless(lambda n: n < 5, [2, 3, 5]))
def test_against_dense_reference(n, merge, Hmin, variant):
    spec = network_of(latency=f"{2 / n} s")
    job = job_of(n, uneven, spec, merge=merge, Hmin=Hmin, variant=variant).train()
    reference = Rounds(n, merge).replay(job.log)
    assert max(flights(job)) >= (1 if merge == "cocod" else 2), "nothing was learnt during a round"
    assert min(algorithm.rounds for algorithm in job.algorithms) >= 4
    assert np.abs(job.X - reference.X).max() < 1e-12
    if merge == "anchor":
        assert all((one.z == job.algorithms[0].z).all() for one in job.algorithms)
    job.average()
    assert (job.X == job.X[0]).all()
    assert np.abs(job.X - reference.X.mean(0)).max() < 1e-12


@pytest.mark.parametrize("merge", ["delta", "cocod"])
@pytest.mark.parametrize("n", [2, 3, 5])
def test_flights_of_known_length(n, merge):
    """A snapshot every three steps, whose average arrives in the third step after it, or is kept until the end of that.

    The latter is CoCoD-SGD: x = the mean of the snapshots + what was learnt since.
    """
    H = 3
    messages = 1 if n == 2 else 2 * (n - 1)  # one after the other; two ranks exchange what is short
    spec = network_of(latency=f"{2.2 / messages:.9f} s")
    job = job_of(n, spec=spec, merge=merge, Hmin=H)
    for algorithm in job.algorithms:
        algorithm.all_ended = no
    job.train(drain=False)
    reference = Reference(n)
    s = reference.X.copy()
    for step in range(STEPS):
        for rank in range(n):
            reference.gradient(rank, step)
        if merge == "delta" and step % H == 2:  # while the gradient is computed
            reference.X += s.mean(0) - s
        for rank in range(n):
            reference.update(rank)
        if merge == "cocod" and step % H == 2:
            reference.X += s.mean(0) - s
        if step % H == 2:
            s = reference.X.copy()
    assert flights(job) == ([3] if merge == "cocod" else [2])
    assert np.abs(job.X - reference.X).max() < 1e-12
    assert waits(job) == [0] * n


def no():
    """Whether all ranks have ended, without asking them: to know to the step how long a round takes."""
    return False
    yield


@pytest.mark.parametrize("statistics", [0, 2])
@pytest.mark.parametrize("variant", ["ring", "mpi"])
@pytest.mark.parametrize("H", [1, 4])
@pytest.mark.parametrize("n", exhaustive_unless(lambda n: n < 5, [2, 3, 5]))
def test_without_flight_it_is_local_sgd_bit_for_bit(n, H, variant, statistics):
    jobs = []
    for name, options in (("local_sgd", {"H": H}), ("lasgd", {"Hmin": H})):
        job = Job(name, n, statistics=statistics, variant=variant, **options)
        jobs.append(job)
        for rank, algorithm in enumerate(job.algorithms):
            algorithm.replica.buffers.array[:] = 0.1 * rank
            algorithm.start()
            algorithm.begin()
        for step in range(STEPS):
            for rank, algorithm in enumerate(job.algorithms):
                job.differentiate(rank, step)
                job.ranks.drivers[rank].start(algorithm.step())
            job.ranks.settle()  # the round is over before the next gradient
    local, asynchronous = jobs
    assert asynchronous.algorithms[0].rounds == STEPS // H
    assert flights(asynchronous) == [0]
    for one, other in zip(local.algorithms, asynchronous.algorithms, strict=True):
        assert (one.x.array == other.x.array).all()
        assert (one.replica.buffers.array == other.replica.buffers.array).all()
    assert local.sent() == asynchronous.sent() > 0


# ---- invariants


@pytest.mark.parametrize("n", [2, 3, 6])
def test_no_local_step_is_lost(n):
    """At any end the mean is the start's and all that was learnt, divided by n."""
    job = job_of(n, uneven, network_of(latency=f"{2 / n} s")).train()
    reference = Rounds(n, "delta").replay(job.log)
    assert min(algorithm.rounds for algorithm in job.algorithms) >= 4
    assert max(flights(job)) >= 2 and not any(algorithm.left_out for algorithm in job.algorithms)
    drift = job.X.mean(0) - Rounds(n, "delta").X[0] - reference.learnt.mean(0)
    assert np.abs(drift).max() < 1e-14


@pytest.mark.parametrize("merge", ["delta", "overwrite", "anchor"])
def test_changes_of_buffers_by_the_step_under_way_are_kept(merge):
    """The forward pass of a step changes the buffers 0.5 s after the step's begin, between snapshot and merge."""
    job = job_of(2, spec=network_of(latency="0.2 s"), statistics=1, merge=merge)

    def forward(rank):
        job.algorithms[rank].replica.buffers.array[0] += 1 + rank

    job.stages = lambda rank: [(0.5, partial(forward, rank))]
    job.train()
    assert flights(job) == [0]
    statistics = [algorithm.replica.buffers.array[0] for algorithm in job.algorithms]
    assert np.mean(statistics) == pytest.approx(1.5 * STEPS)


def test_overwriting_forgets():
    job = job_of(3, uneven, network_of(latency="0.6 s"), merge="overwrite").train()
    reference = Rounds(3, "overwrite").replay(job.log)
    assert np.abs(job.X.mean(0) - Rounds(3, "delta").X[0] - reference.learnt.mean(0)).max() > 1e-3
    assert sum(algorithm.left_out for algorithm in job.algorithms) >= max(flights(job)) > 0


def test_one_round_without_steps_leaves_the_sum():
    """Trainers stand still: nobody learns, so the sum stays, and after a round everybody has the mean."""
    job = job_of(4, spec=network_of(latency="0.3 s"))
    random = np.random.default_rng(0)
    for algorithm in job.algorithms:
        algorithm.x.array[:] = random.standard_normal(len(algorithm.x.array))
        algorithm.start()
        algorithm.begin()
    mean = job.X.mean(0)
    for algorithm in job.algorithms:
        algorithm.h += 1  # as if a step had been taken
        job.ranks.drivers[algorithm.comm.rank].notify(None)
    job.ranks.settle()
    assert [algorithm.rounds for algorithm in job.algorithms] == [1] * 4
    assert (job.X == job.X[0]).all()
    assert np.abs(job.X - mean).max() < 1e-15


@pytest.mark.parametrize("flown", [[1, 2, 3], [0, 5, 1]])
def test_a_round_with_steps_leaves_the_sum(flown):
    """Some ranks have gone on meanwhile."""
    job = job_of(3)
    random = np.random.default_rng(1)
    for algorithm in job.algorithms:
        algorithm.x.array[:] = random.standard_normal(len(algorithm.x.array))
        list(algorithm.begin_round())  # copies within one memory need no waiting
    mean = job.X.mean(0)
    moved = []
    for algorithm, steps in zip(job.algorithms, flown, strict=True):
        algorithm.a[0].array[:] = mean
        move = steps * random.standard_normal(len(algorithm.x.array))
        algorithm.x.array[:] += move
        algorithm.h += steps
        moved.append(move)
    before = job.X.sum(0)
    for algorithm in job.algorithms:
        list(algorithm.merge())
    assert np.abs(job.X.sum(0) - before).max() < 1e-14 * np.abs(job.X).max() * 10
    assert np.abs(job.X - moved - mean).max() < 1e-14


OPTIONS = st.fixed_dictionaries(
    {
        "merge": st.sampled_from(["delta", "overwrite", "cocod", "anchor"]),
        "Hmin": st.integers(1, 4),
        "Hmax": st.sampled_from([None, 0, 1, 3]),
        "warmup": st.sampled_from([0, 0, 1, 4]),
        "resync": st.sampled_from([0, 1, 2, 5, 1000]),
        "variant": st.sampled_from(sorted(ALLREDUCE)),
    }
)


@seeded
@given(
    n=st.integers(1, 6),
    lengths=st.lists(st.integers(0, 12), min_size=6, max_size=6),
    options=OPTIONS,
    eager_bytes=st.sampled_from([0, 65536]),
    quick=st.sampled_from([1.0, 1e-3]),
    seed=st.integers(0, 1000),
)
def test_ends_on_all_ranks_after_the_same_round(n, lengths, options, eager_bytes, quick, seed):
    """Whatever the options, speeds and lengths: nobody hangs, nobody is left in a collective."""
    if options["Hmax"] is not None:
        options["Hmax"] += options["Hmin"]
    spec, random, seconds = network_of(eager_bytes=eager_bytes), np.random.default_rng(seed), random_speeds(seed)
    job = job_of(n, lambda *key: quick * seconds(*key), spec, random, **options)
    job.train(lengths[:n])
    assert job.nothing_is_left()
    rounds = {algorithm.rounds for algorithm in job.algorithms}
    assert len(rounds) == 1
    blocking = [k for k in range(max(rounds)) if k < options["warmup"]]
    blocking += [k for k in range(max(rounds)) if options["resync"] and (k + 1) % options["resync"] == 0]
    reference = Rounds(n, options["merge"], blocking).replay(job.log)
    assert np.abs(job.X - reference.X).max() < 1e-12 * max(1, np.abs(reference.X).max())
    for algorithm, steps in zip(job.algorithms, lengths, strict=False):
        assert algorithm.h == steps
        assert sum(algorithm.staleness.values()) == algorithm.rounds
        if algorithm.staleness:
            assert 0 <= min(algorithm.staleness)
            assert max(algorithm.staleness) <= (options["Hmax"] or steps)
            if options["merge"] == "cocod":
                assert max(algorithm.staleness) <= options["Hmin"]
    mean = job.X.mean(0)
    job.average()
    assert (job.X == job.X[0]).all()
    assert np.abs(job.X - mean).max() < 1e-12 * max(1, np.abs(mean).max())


@pytest.mark.parametrize("options", [{"merge": "cocod", "Hmin": 2}, {"resync": 3}, {"merge": "cocod", "warmup": 3}])
@pytest.mark.parametrize("n", [2, 3])
def test_a_rank_whose_run_is_over_joins_the_rounds_of_others_that_wait(n, options):
    """Whole runs: the training loop must let the algorithm know of the end before it waits for anybody itself."""
    config = parse(
        {
            "algorithm": {"name": "lasgd"} | options,
            "model": {"name": "mlp", "hidden": []},
            "data": {"name": "synthetic", "samples": 60, "shape": [1, 4, 4], "classes": 2, "batch_size": 4},
            "train": {"steps": 20, "snapshots": 2},
            "stragglers": {"slowdown": {"1": 2.5}},
            "device": "cpu",
        }
    )
    job = Simulation(config, n, network_of(bandwidth="1 mbit", latency="1 ms", eager_bytes=64), "constant:0.01")
    try:
        assert job.train() == "steps"
    finally:
        gc.unfreeze()  # a simulation keeps its objects from the garbage collector


@pytest.mark.parametrize("Hmax", [1, 2, 4, None])
def test_staleness_is_bounded(Hmax):
    job = job_of(3, straggler(4), network_of(latency="1 s"), Hmax=Hmax).train([10, 40, 40])
    found = max(flights(job))
    if Hmax is None:
        assert found > 4
    else:
        assert found == Hmax and min(waits(job)[1:]) > 0


# ---- waiting


def test_one_straggler_slows_nobody_down():
    """The others keep the rate that they have alone, to the last digit; with an all-reduce in each step they do not."""
    job = Job("lasgd", 4, straggler(4), network_of(latency="0.05 s")).train([25, 100, 100, 100], drain=False)
    for rank in (1, 2, 3):
        assert 100 / job.ends[rank][-1] >= 0.9
        assert job.ends[rank][-1] == 100.0
    assert waits(job) == [0] * 4
    assert min(algorithm.rounds for algorithm in job.algorithms) >= 20
    slow = Job("ring_allreduce", 4, straggler(4), network_of(latency="0.05 s")).train(25)
    assert all(ends[-1] > 100 for ends in slow.ends)


@pytest.mark.parametrize("variant", ["ring", "halving-doubling", "tree"])
def test_a_step_costs_what_it_costs_without_communication(variant):
    """A link on which an all-reduce takes five steps and more: training goes on at its own pace."""
    spec = network_of(bandwidth=f"{8 * M / 3:.9f} bit", latency="0.01 s", eager_bytes=0)
    job = Job("lasgd", 4, spec=spec, variant=variant).train(60, drain=False)
    alone = Job("lasgd", 1).train(60)
    assert max(ends[-1] for ends in job.ends) <= 1.1 * alone.ends[0][-1]
    assert waits(job) == [0] * 4
    assert min(flights(job)) >= 4
    assert min(algorithm.rounds for algorithm in job.algorithms) >= 3


def test_resync_makes_all_models_equal():
    job = job_of(4, random_speeds(5), network_of(latency="0.3 s"), resync=4)
    after_round = {}
    for algorithm in job.algorithms:
        original = algorithm.merge

        def merge(original=original, algorithm=algorithm):
            yield from original()
            after_round[algorithm.comm.rank, algorithm.rounds] = algorithm.x.array.copy()

        algorithm.merge = merge
    job.train(40)
    rounds = job.algorithms[0].rounds
    assert rounds >= 12
    equal = []
    for number in range(1, rounds + 1):
        models = [after_round[rank, number] for rank in range(4)]
        if all((model == models[0]).all() for model in models):
            equal.append(number)
    assert set(equal) >= set(range(4, rounds + 1, 4))
    assert len(equal) < rounds / 2, "they are equal anyway"
    assert min(waits(job)) > 0


@pytest.mark.parametrize("merge", ["delta", "overwrite", "cocod", "anchor"])
def test_warmup_is_an_average_after_each_step(merge):
    n, warmup = 3, 6
    job = job_of(n, random_speeds(n), network_of(latency="0.3 s"), merge=merge, Hmin=3, warmup=warmup)
    job.train(warmup, drain=False)
    reference = Reference(n)
    for step in range(warmup):
        reference.step(step)
        reference.X[:] = reference.X.mean(0)
    assert np.abs(job.X - reference.X).max() < 1e-12
    assert [algorithm.rounds for algorithm in job.algorithms] == [warmup] * n
    assert flights(job) == [0]


def test_bytes():
    """2(n-1)/n M a rank and round, and nothing else; the word about the end is bookkeeping."""
    job = Job("lasgd", 4, uneven, network_of(latency="0.1 s"), statistics=2).train()
    whole_model = M + 2 * 8
    assert job.sent() == job.algorithms[0].rounds * 2 * 3 * whole_model
    assert job.headers() == 0


def test_contradicting_options():
    with pytest.raises(ValidationError, match="Hmax = 2: must not be less than Hmin = 3"):
        ALGORITHMS["lasgd"].Options(Hmin=3, Hmax=2)


@pytest.mark.parametrize("name", ["adpsgd", "easgd", "gossip", "lasgd"])
def test_a_model_that_the_background_changes_is_locked(name):
    """Also against other threads: the progress thread is one."""
    (lock, *_) = [algorithm.lock for algorithm in Job(name, 2).algorithms]
    with lock:
        assert not lock.acquire(blocking=False)
