"""When ranks take their steps in simulated time, with stragglers and without."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grsgd.simulator.simulation import Simulation
from grsgd.testing.simulated import models_sent, models_under_way, network_of
from tests.support.seeded import seeded
from tests.support.training import SLOW, STEP, config, simulation


def record_steps(job: Simulation) -> list[list[float]]:
    """The times at which each rank ends a step, filled in while the simulation runs."""
    times = [[] for _ in job.trainers]
    for trainer, own in zip(job.trainers, times, strict=True):
        trainer.on_step = lambda progress, loss, own=own: own.append(job.env.now)
    return times


def test_computing_times_are_the_same_for_every_algorithm():
    """Each rank's k-th step takes what (seed, rank, k) says."""
    seconds = []
    for name in ("grsgd", "ring_allreduce"):
        job = simulation(name, 3, compute="lognormal:0.01,0.5")
        times = record_steps(job)
        job.train()
        seconds.append([np.diff([0, *own]) for own in times])
    for rank in range(3):
        expected = [job.compute(rank, k) for k in range(8)]
        assert len(set(expected)) == 8
        np.testing.assert_allclose(seconds[0][rank][1:6], expected[1:6], rtol=1e-9)  # after the first broadcast
        assert (seconds[1][rank] >= np.array(expected) - 1e-12).all()


def alone(algorithm, steps=20, **sections):
    job = simulation(algorithm, 4, steps=steps, **sections)
    times = record_steps(job)
    job.train()
    return job, times


@settings(seeded, max_examples=6)
@given(
    seconds=st.floats(1e-4, 100.0),
    every=st.integers(1, 6),
    rank=st.integers(0, 3),
    policy=st.sampled_from(["successor", "alternate", "random"]),
    full=st.sampled_from(["wait", "merge"]),
    eager_bytes=st.sampled_from([0, 65536]),
)
def test_grsgd_waits_for_nobody(seconds, every, rank, policy, full, eager_bytes):
    """One rank is suspended again and again, for however long: the others' steps take exactly their own time."""
    job = simulation(
        {"name": "grsgd", "policy": policy, "inbox_full": full},
        4,
        network_of(**SLOW | {"eager_bytes": eager_bytes}),
        steps=20,
        stragglers={"pause": {rank: {"every": every, "seconds": seconds}}},
    )
    times = record_steps(job)
    assert job.train() == "steps"
    for number, (trainer, own) in enumerate(zip(job.trainers, times, strict=True)):
        if number != rank:
            expected = np.add.accumulate(np.full(len(own), STEP))
            np.testing.assert_allclose(own, times[number][0] - STEP + expected, rtol=0, atol=1e-9)
            assert len(own) >= 20
        assert trainer.totals.wait_seconds == 0.0
        assert trainer.totals.communicate_seconds == 0.0


@settings(seeded, max_examples=4)
@given(
    seconds=st.floats(1e-4, 1.0),
    policy=st.sampled_from(["successor", "alternate", "random"]),
    full=st.sampled_from(["wait", "merge"]),
    eager_bytes=st.sampled_from([0, 65536]),
    sigma=st.floats(0.0, 1.0),
)
def test_grsgd_loses_no_weight(seconds, policy, full, eager_bytes, sigma):
    """After every single event the weights of all ranks and messages sum to n."""
    job = simulation(
        {"name": "grsgd", "policy": policy, "inbox_full": full},
        4,
        network_of(**SLOW | {"eager_bytes": eager_bytes}),
        f"lognormal:{STEP},{sigma!r}",
        steps=15,
        stragglers={"pause": {2: {"every": 4, "seconds": seconds}}},
    )
    algorithms = [trainer.algorithm for trainer in job.trainers]
    for algorithm in algorithms:
        algorithm.average = lambda: None  # which sets all weights to 1, one rank after the other
    job.run(trainer.broadcast_initial_model() for trainer in job.trainers)
    pairs = zip(job.drivers, job.trainers, strict=True)
    activities = [driver.start_foreground(trainer.train()) for driver, trainer in pairs]
    seen = Counter()
    while not all(activity.complete for activity in activities):
        job.env.step()
        there = list(models_sent(job.fabric, algorithms))
        assert abs(sum(algorithm.a for algorithm in algorithms) + sum(weight for weight, _ in there) - 4) < 1e-12
        under_way = Counter((sending.source, sending.dest) for sending in models_under_way(job.fabric))
        assert max(under_way.values(), default=0) <= 1
        seen[len(under_way)] += 1
    assert seen[1] and list(models_sent(job.fabric, algorithms)) == []


@pytest.mark.parametrize("name", ["ring_allreduce", "dpsgd", "local_sgd"])
def test_synchronous_algorithms_slow_down_to_the_straggler(name):
    slow = {"slowdown": {1: 5.0}}
    _, even = alone(name)
    job, uneven = alone(name, stragglers=slow)
    for own in even:
        assert own[-1] < 20 * STEP * 2
    for own in uneven:
        assert own[-1] > 0.7 * 20 * 5 * STEP
    waits = [trainer.totals.wait_seconds for trainer in job.trainers]
    assert waits[1] < 0.2 * min(waits[0], waits[2], waits[3])
    assert waits[0] > 0.5 * 20 * 4 * STEP


def test_an_asynchronous_algorithm_does_not():
    _, times = alone("grsgd", stragglers={"slowdown": {1: 5.0}})
    assert min(len(times[rank]) for rank in (0, 2, 3)) >= 3 * len(times[1])
    assert times[0][-1] < 1.5 * 20 * STEP


@pytest.mark.parametrize("stated", [None, "measured"])
def test_computing_times_of_a_network_are_not_measured_anew(stated):
    """Both take the times of the file, because a new measurement would differ from run to run."""
    network = network_of(compute={"median": 7.0, "sigma": 0.1})
    assert str(simulation("grsgd", 2, network, compute=stated).compute) == "lognormal:7.0,0.1"


def test_slowdown_of_a_networks_computing_times():
    """As `grsgd calibrate` writes it."""
    spec = network_of(**SLOW, compute={"median": 0.02, "slowdown": {1: 3}})
    job = Simulation(config("grsgd"), 2, spec)
    times = record_steps(job)
    job.train()
    np.testing.assert_allclose(np.diff(times[0]), 0.02, rtol=1e-9)
    np.testing.assert_allclose(np.diff(times[1]), 0.06, rtol=1e-9)
