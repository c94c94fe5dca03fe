"""The choice of a redundancy from a short measurement."""

import re

import numpy as np
import pytest
import torch

from coding.time_model import MEDIA, paper_step_seconds, step_seconds
from grsgd.algorithms import cssgd, redundancy
from grsgd.algorithms.context import RankContext
from grsgd.algorithms.redundancy import DESCRIPTIONS, Costs, choose, measure
from grsgd.testing.simulated import Ranks, network_of
from grsgd.training.automatic_options import choose_options
from grsgd.training.inputs import load_data
from tests.support.training import CONSTANT, STEP, config, simulation

N = 6
EVERYTHING = list(range(1, N + 1))
MEASURED = {
    "switch": lambda M: (M, M, M),
    "point-to-point": lambda M: (M, M, (N - 1) * M),
    "shared": lambda M: (M, N * M, M),
    "shared-point-to-point": lambda M: (M, N * M, (N - 1) * M),
}
"""Seconds of one M alone, of one from every rank at once, and of a multicast, on each medium."""


def measured(trainer):
    """What the rank of a trainer without redundancy measures."""
    return measure(trainer.comm, trainer.driver, trainer.replica.grads.array, trainer.gradients.next_gradient)


# ---- the choice


@pytest.mark.parametrize("noise", [0.75, 1.0, 1.3])
@pytest.mark.parametrize("scheme", ["coded", "uncoded", "grouped-direct", "grouped-rs"])
@pytest.mark.parametrize("medium", MEASURED)
def test_the_fastest_is_chosen_on_every_medium(medium, scheme, noise):
    """For ratios of communicating to computing of which some ask for none and some for all redundancy."""
    for M in (1e-6, 1e-3, 1e-2, 0.1, 1.0, 100.0):
        alone, together, multicast = MEASURED[medium](M)
        r, why = choose(scheme, N, EVERYTHING, Costs(0.01, alone, together * noise, multicast * noise, 1e-5))
        transfer = together * noise / N if medium.startswith("shared") else together * noise
        steps = {each: step_seconds(scheme, N, each, 0.01, transfer, medium, 1e-5) for each in EVERYTHING}
        assert r == min(steps, key=steps.get)
        assert why.startswith(f"r = {r}: measured 10 ms for a gradient, {1e3 * transfer:.3g} ms for one M, 0.01 ms for")
        assert f"the network acts as {DESCRIPTIONS[medium]}\n" in why
        table = why.splitlines()[1:3]
        assert table[0].split() == ["r", *map(str, EVERYTHING)]
        assert table[1].split()[4:] == [f"{1e3 * seconds:.3g}" for seconds in steps.values()]
        if M == 1e-6:
            assert r == 1
        if M == 100.0:
            assert r == N, "with r = n nothing is sent"


def test_every_medium_has_a_description():
    assert DESCRIPTIONS.keys() == MEDIA.keys() == MEASURED.keys()


def test_only_what_is_allowed_is_chosen():
    alone, together, multicast = MEASURED["shared"](100.0)
    for allowed in ([1], [1, 3], [1, 5], [1, 2, 3, 4, 5]):
        r, why = choose("coded", N, allowed, Costs(0.01, alone, together, multicast, 0.0))
        assert r == allowed[-1]
        assert why.splitlines()[1].split() == ["r", *map(str, allowed)]


def test_packets_cost_time():
    """Of coded, a rank sends five packets at r = 1 and one at r = 5: with slow messages that is better."""
    alone, together, multicast = MEASURED["shared"](1e-5)
    best = [
        choose("coded", N, [1, 2, 3, 4, 5], Costs(0.01, alone, together, multicast, each))[0] for each in (0.0, 1.0)
    ]
    assert best == [1, 5]


@pytest.mark.parametrize("communicating, paper", [(0.5, 1), (1.9, 1), (2.1, 2), (5.9, 2), (6.1, 3), (100.0, 6)])
def test_the_papers_choice_is_told(communicating, paper):
    """r(r-1) <= Tcomm / Tcalc <= r(r+1); Tcomm is that of r = 1, n(n-1) M on a shared medium."""
    alone, together, multicast = MEASURED["shared"](communicating / (N * (N - 1)))
    _, why = choose("coded", N, EVERYTHING, Costs(1.0, alone, together, multicast, 0.0))
    assert why.endswith(f"the paper's model, T = r Tcalc + Tcomm / r, would choose r = {paper}")
    times = [paper_step_seconds(r, 1.0, communicating) for r in EVERYTHING]
    assert paper == 1 + int(np.argmin(times))


def test_one_rank():
    r, why = choose("coded", 1, [1], Costs(0.01, 0.0, 0.0, 0.0, 0.0))
    assert r == 1
    assert "measured 10 ms for a gradient, 0 ms for one M" in why


def test_two_ranks_know_no_multicast():
    """A message to the one other rank is one."""
    for together, expected in ((1.0, "switch"), (2.0, "shared")):
        _, why = choose("coded", 2, [1, 2], Costs(0.01, 1.0, together, 1.0, 0.0))
        assert f"acts as {DESCRIPTIONS[expected]}\n" in why


# ---- the measurement


MEGABIT = 125_000
LARGE = {"model": {"name": "mlp", "hidden": [100]}}
"""A model whose transfer takes far longer than any latency: 1902 parameters."""
M_SECONDS = 4 * 1902 / MEGABIT
NETWORKS = {
    "switch": {"multicast": True},
    "point-to-point": {},
    "shared": {"medium": "shared"},
}


def settled(n, section, compute=CONSTANT, **network):
    spec = network_of(**{"bandwidth": "1 mbit", "latency": "50 us"} | network)
    return simulation({"name": "cssgd"} | section, n, spec, compute, **LARGE)


@pytest.mark.parametrize("eager_bytes", [0, 65536])
@pytest.mark.parametrize("n", [2, 3, 5])
@pytest.mark.parametrize("medium", NETWORKS)
def test_measured_is_what_the_network_is(medium, n, eager_bytes):
    job = settled(n, {"r": 1}, eager_bytes=eager_bytes, **NETWORKS[medium])
    before = [trainer.replica.params.array.copy() for trainer in job.trainers]
    seconds = job.run(measured(trainer) for trainer in job.trainers)
    assert all(each == seconds[0] for each in seconds), "ranks that measure differently would choose differently"
    computing, alone, together, multicast, per_packet = seconds[0]
    assert job.trainers[0].replica.nbytes == 4 * 1902
    assert computing == pytest.approx(STEP, rel=1e-9)
    assert alone == pytest.approx(M_SECONDS, rel=0.05)
    assert together == pytest.approx(M_SECONDS * (n if medium == "shared" else 1), rel=0.05)
    assert multicast == pytest.approx(M_SECONDS * (n - 1 if medium == "point-to-point" else 1), rel=0.05)
    assert 50e-6 <= per_packet <= 1e-3
    for trainer, params in zip(job.trainers, before, strict=True):
        assert (trainer.replica.params.array == params).all()


@pytest.mark.parametrize("medium", NETWORKS)
def test_settled_on_what_was_measured(medium):
    """For five ranks; the numbers are those of the network's description, within 5 %."""
    job = settled(5, {"r": "auto"}, **NETWORKS[medium])
    why = job.redundancy
    assert f"acts as {DESCRIPTIONS[medium]}\n" in why
    computing, transfer, per_packet = (float(text) / 1e3 for text in re.findall(r"([\d.e+-]+) ms for", why))
    assert computing == STEP
    assert transfer == pytest.approx(M_SECONDS, rel=0.05)
    steps = {r: step_seconds("coded", 5, r, STEP, M_SECONDS, medium, per_packet) for r in range(1, 6)}
    r = job.config.algorithm_options.r
    assert steps[r] <= 1.05 * min(steps.values())
    assert [trainer.algorithm.options.r for trainer in job.trainers] == [r] * 5


def test_the_slowest_rank_counts():
    """All wait for it in every step."""
    spec = network_of(bandwidth="1 mbit", latency="50 us", compute={"median": STEP, "slowdown": {1: 3}})
    job = simulation({"name": "cssgd", "r": 1}, 3, spec, None, **LARGE)
    seconds = job.run(measured(trainer) for trainer in job.trainers)
    assert seconds[0][0] == pytest.approx(3 * STEP, rel=1e-9)


def test_an_outlier_does_not_count():
    """The median of several: one long computation, and the answer is the same."""
    job = settled(3, {"r": 1})
    for driver in job.drivers:
        driver.compute_seconds = lambda rank, step: 100.0 if (rank, step) == (1, 4) else STEP
    seconds = job.run(measured(trainer) for trainer in job.trainers)
    assert seconds[0][0] == pytest.approx(STEP, rel=1e-9)


@pytest.mark.parametrize("medium", NETWORKS)
def test_predictions_come_true(medium):
    """A step of the chosen redundancy, and of the others, takes about as long as was predicted."""
    why = settled(4, {"r": "auto"}, **NETWORKS[medium]).redundancy
    predicted = [float(text) / 1e3 for text in why.splitlines()[2].split()[4:]]
    for r, expected in enumerate(predicted, start=1):
        job = settled(4, {"r": r}, **NETWORKS[medium])
        job.train()
        seconds = job.trainers[0].snapshots.moments[-1].time / 8
        assert seconds == pytest.approx(expected, rel=0.25)


def test_a_rank_alone_measures_its_computing_only():
    job = settled(1, {"r": 1})
    (seconds,) = job.run(measured(trainer) for trainer in job.trainers)
    assert seconds == (pytest.approx(STEP), 0.0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize("scheme, expected", [("coded", [3, 4]), ("grouped-rs", [1, 2, 3, 4])])
def test_what_would_send_too_many_packets_is_left_out(scheme, expected, monkeypatch):
    """Of coded, a rank of four sends 3, 3, 1 and 0 packets."""
    found = []

    def choose(scheme, n, allowed, costs):
        found.append(allowed)
        return 1, "first"

    monkeypatch.setattr(cssgd, "choose", choose)
    assert settled(4, {"r": "auto", "scheme": scheme}).redundancy == "first"
    assert found == [[1, 2, 3, 4]] * 4, "a batch of 16 samples has room for all blocks"
    found.clear()
    monkeypatch.setattr(redundancy, "MAX_PACKETS", 2)
    settled(4, {"r": "auto", "scheme": scheme})
    assert found == [expected] * 4
    job = settled(3, {"r": 2})
    assert (job.config.algorithm_options.r, job.redundancy, job.env.now) == (2, None, 0.0)


def test_other_algorithms_have_nothing_to_settle():
    job = simulation("ring_allreduce", 3)
    assert (job.redundancy, job.env.now) == (None, 0.0)


def test_the_model_is_not_touched():
    """Not even the statistics of batch normalisation, which a forward pass changes."""

    def normalised():
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 2))

    ranks, chosen = Ranks(3), config({"name": "cssgd", "r": "auto"})
    models = [normalised() for _ in range(3)]
    before = [{name: tensor.clone() for name, tensor in model.state_dict().items()} for model in models]
    contexts = [RankContext(comm, comm, driver) for comm, driver in zip(ranks.comms, ranks.drivers, strict=True)]
    pairs = zip(models, contexts, strict=True)
    results = ranks.finish([choose_options(chosen, load_data(chosen), model, context) for model, context in pairs])
    assert len({settled.algorithm_options.r for settled, _ in results}) == 1
    for model, old in zip(models, before, strict=True):
        assert all(torch.equal(tensor, old[name]) for name, tensor in model.state_dict().items())
