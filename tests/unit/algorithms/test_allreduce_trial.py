"""``variant = "auto"``: the all-reduce that a trial chooses. On real ranks: ``tests/mpi/ranks/test_allreduce.py``."""

import tomllib

import numpy as np
import pytest
import torch

from grsgd import load_run
from grsgd.algorithms import allreduce_trial
from grsgd.algorithms.allreduce_trial import MAX_ELEMENTS, choose_variant, rounds_again
from grsgd.algorithms.trial import ENOUGH_SECONDS, REPEATS
from grsgd.comm.allreduce import ALLREDUCE
from grsgd.models.flat import Flat
from grsgd.simulator.run import simulate
from grsgd.testing.simulated import Ranks, network_of
from tests.support.training import CONSTANT, config, simulation

FAST_AND_FAR = dict(bandwidth="100 gbit", latency="1 ms")
SLOW_AND_NEAR = dict(bandwidth="10 mbit", latency="1 us")


def chosen(n: int, elements: int, **network) -> tuple[str, str]:
    """What all ranks choose, and why."""
    ranks = Ranks(n, network_of(**network))
    like = [Flat.of(np.zeros(elements, np.float32)) for _ in ranks.comms]
    everywhere = zip(ranks.comms, ranks.drivers, like, strict=True)
    found = ranks.finish([choose_variant(comm, driver, flat) for comm, driver, flat in everywhere])
    assert len(set(found)) == 1 and ranks.fabric.is_idle()
    return found[0]


def seconds(why: str) -> dict[str, float]:
    """The times in a text."""
    times = [part.split() for part in why.split("ranks: ")[1].split("; ") if part.endswith(" ms")]
    return {name: float(time) / 1e3 for name, time, _ in times}


def test_the_fewest_dependent_messages_where_links_are_long():
    """Six of 1 ms each, of eight ranks, and 14 on a ring."""
    name, why = chosen(8, 100, **FAST_AND_FAR)
    times = seconds(why)
    assert name == "halving-doubling" and why.startswith("variant = halving-doubling: 400 B on 8 ranks: ring 14 ms; ")
    assert times["halving-doubling"] == pytest.approx(6e-3, rel=0.01)
    assert set(times) == set(ALLREDUCE) - {"mpi", "shared", "hierarchical"}
    assert "mpi: only for processes; shared: only for processes; hierarchical: only of several" in why


def test_the_fewest_bytes_where_links_are_slow():
    """With five ranks all but the ring send more through some of them."""
    name, why = chosen(5, 100_000, **SLOW_AND_NEAR)
    assert name == "ring"
    assert seconds(why)["ring"] == pytest.approx(2 * 4 / 5 * 400_000 * 8 / 10e6, rel=0.02)


def test_a_long_vector_is_tried_in_part():
    ranks = Ranks(1)
    size = MAX_ELEMENTS + 1
    assert "16.00 MiB on 2 ranks" in chosen(2, size)[1]
    (alone,) = ranks.finish([choose_variant(ranks.comms[0], ranks.drivers[0], Flat.of(np.zeros(4)))])
    assert alone == ("ring", "variant = ring: one rank sends nothing")


def test_all_take_the_mean_as_in_a_run(monkeypatch):
    """MPI's own multiplies all of the sum, the others a part each: with a sum in place of it, it would seem faster."""
    tried = []

    def noting(name):
        def allreduce(comm, x, *arguments, scale=1.0):
            tried.append((name, scale))
            return ALLREDUCE[name](comm, x, *arguments, scale=scale)

        return allreduce

    monkeypatch.setattr(allreduce_trial, "ALLREDUCE", {name: noting(name) for name in ALLREDUCE})
    chosen(4, 100)
    assert {name for name, _ in tried} == set(ALLREDUCE) - {"mpi", "shared", "hierarchical"}
    assert {scale for _, scale in tried} == {1 / 4}


def test_over_slow_links_none_is_tried_again():
    """Where it would take minutes: what a run gains by the better of two is less."""
    assert rounds_again(2e-5) == allreduce_trial.MAX_ROUNDS and rounds_again(5e-3) == 25
    assert rounds_again(0.1) == REPEATS and rounds_again(0.8) == 3 and rounds_again(15.0) == 0
    for seconds in (1e-3, 0.03, 0.3, 0.7, 2.0, 100.0):
        assert 2 * rounds_again(seconds) * seconds <= ENOUGH_SECONDS


@pytest.mark.parametrize("name", ["ring_allreduce", "local_sgd", "diloco", "lasgd"])
def test_a_run_takes_what_is_chosen(name, tmp_path):
    """Its file says what, and why; and it is the run with that variant, but for the time of the trial."""
    network = network_of(**SLOW_AND_NEAR)
    runs = []
    for variant in ("auto", "ring"):
        path = tmp_path / f"{variant}.h5"
        simulate(config({"name": name, "variant": variant}), 5, network, path, CONSTANT)
        runs.append(load_run(path))
    automatic, ring = (run.attributes for run in runs)
    assert tomllib.loads(automatic["config"])["algorithm"]["variant"] == "ring"
    assert automatic["allreduce"].startswith("variant = ring: ")
    assert ring.get("allreduce") is None and automatic["label"] == ring["label"]
    np.testing.assert_array_equal(runs[0].traffic["sent"], runs[1].traffic["sent"])
    np.testing.assert_array_equal(runs[0].curve["test_accuracy"], runs[1].curve["test_accuracy"])


def test_of_time_alone_the_choice_is_the_same():
    section = {"name": "ring_allreduce", "variant": "auto"}
    jobs = [simulation(section, 5, network_of(**SLOW_AND_NEAR), timing_only=only) for only in (False, True)]
    assert all(job.reasons["allreduce"].startswith("variant = ring: ") for job in jobs)
    assert {job.config.algorithm_options.variant for job in jobs} == {"ring"}


def test_the_model_is_not_touched():
    job = simulation({"name": "ring_allreduce", "variant": "auto"}, 2)
    plain = simulation({"name": "ring_allreduce"}, 2)
    for one, other in zip(job.trainers, plain.trainers, strict=True):
        assert torch.equal(one.replica.params.tensor, other.replica.params.tensor)
        assert not one.comm.traffic.sent.any()
