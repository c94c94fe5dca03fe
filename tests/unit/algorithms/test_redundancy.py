"""The choice of a redundancy from a short measurement. What is predicted from it: ``test_predicted_step.py``."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from coding.codec_seconds import CodecSeconds
from coding.predicted_step import NO_TOLL, Computing, PacketSeconds, Toll, predicted_step
from coding.time_model import paper_step_seconds
from grsgd.algorithms import cssgd, redundancy
from grsgd.algorithms.before_run import Load
from grsgd.algorithms.context import RankContext
from grsgd.algorithms.packet_trial import MAX_ELEMENTS, PacketTrial
from grsgd.algorithms.redundancy import Measured, choose, measure_computing
from grsgd.comm.coded.multicast import Multicast, Unicast
from grsgd.testing.simulated import Ranks, network_of
from grsgd.training.automatic_options import choose_options
from grsgd.training.inputs import load_data
from tests.support.training import CONSTANT, STEP, config, simulation

N = 6
EVERYTHING = list(range(1, N + 1))
LENGTH = 60
SCHEMES = "coded", "uncoded", "grouped-direct", "grouped-rs"


def measured(M, codec=0.0, slowdown=(1.0,) * N, seconds=0.01):
    """Where one M takes so many seconds, to whomever, of all ranks at once."""
    computing = Computing(np.full((7, N), seconds), np.zeros(N), np.array(slowdown), np.zeros((1, N)))
    packets = PacketSeconds(Toll(1e-4, 0), Toll(1e-5, 0), Toll(M / (4 * LENGTH), 0), False, False)
    return Measured(computing, {r: CodecSeconds(*[codec / LENGTH] * 3) for r in EVERYTHING} if codec else {}, packets)


def rows(why: str) -> dict[str, list[float]]:
    """The table of a text, by the names of its rows, in seconds."""
    lines = [line.split() for line in why.splitlines()[1:-1]]
    count = len(lines[0]) - 1
    table = {" ".join(line[:-count]): [float(text) / 1e3 for text in line[-count:]] for line in lines}
    return table | {"r": [int(text) for text in lines[0][1:]]}


# ---- the choice


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("codec", [0.0, 0.001])
def test_the_fastest_is_chosen_and_all_parts_are_told(scheme, codec):
    """For ratios of communicating to computing of which some ask for none and some for all redundancy."""
    found = []
    for M in (1e-6, 1e-3, 1e-2, 0.1, 1.0, 100.0):
        numbers = measured(M, codec, slowdown=(1.0, 1.0, 2.0, 1.0, 1.0, 1.0))
        r, why = choose(scheme, N, EVERYTHING, LENGTH, numbers)
        parts = {
            each: predicted_step(
                scheme, N, each, LENGTH, numbers.computing, CodecSeconds(*[codec / LENGTH] * 3), numbers.packets
            )
            for each in EVERYTHING
        }
        assert r == min(parts, key=lambda each: sum(parts[each]))
        told = rows(why)
        assert told.pop("r") == EVERYTHING
        assert told.pop("predicted ms a step") == pytest.approx([sum(each) for each in parts.values()], rel=6e-3)
        names = ["computing", "waiting for the slowest", *["adding up and coding"] * (codec > 0), "sending"]
        assert list(told) == names
        for name, field in (("computing", 0), ("waiting for the slowest", 1), ("sending", 3)):
            assert told[name] == pytest.approx([each[field] for each in parts.values()], rel=6e-3)
        assert why.startswith(f"r = {r}: measured 11.7 ms for a gradient, 8.33 ms more on the slowest rank; all ranks")
        found.append(r)
    assert found[0] == 1 and found[-1] == N, "with r = n nothing is sent"


def test_only_what_is_allowed_is_chosen():
    for allowed in ([1], [1, 3], [1, 5], [1, 2, 3, 4, 5]):
        r, why = choose("coded", N, allowed, LENGTH, measured(100.0))
        assert r == allowed[-1]
        assert rows(why)["r"] == allowed


def test_coding_and_stragglers_shift_the_choice():
    """In a case where r = 5 of six is the fastest without them."""
    assert choose("coded", N, EVERYTHING, LENGTH, measured(0.02))[0] == 5
    assert choose("coded", N, EVERYTHING, LENGTH, measured(0.02, slowdown=(20.0, *[1.0] * 5)))[0] == 1
    assert choose("coded", N, EVERYTHING[:5], LENGTH, measured(0.02, codec=0.002))[0] == 5
    assert choose("coded", N, EVERYTHING, LENGTH, measured(0.02, codec=0.01))[0] == 6


@pytest.mark.parametrize("communicating, paper", [(0.5, 1), (1.9, 1), (2.1, 2), (5.9, 2), (6.1, 3), (100.0, 6)])
def test_the_papers_choice_is_told(communicating, paper):
    """r(r-1) <= Tcomm / Tcalc <= r(r+1); Tcomm is that of r = 1, n - 1 times one M."""
    numbers = measured(communicating / (N - 1), seconds=1.0)
    numbers = numbers._replace(packets=numbers.packets._replace(exchange=NO_TOLL, packet=NO_TOLL))
    _, why = choose("coded", N, EVERYTHING, LENGTH, numbers)
    assert why.endswith(f"the paper's model, T = r Tcalc + Tcomm / r, would choose r = {paper}")
    times = [paper_step_seconds(r, 1.0, communicating) for r in EVERYTHING]
    assert paper == 1 + int(np.argmin(times))


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


def trial(job):
    """What all ranks measure of packets, by the transport of the job."""
    found = job.run(
        PacketTrial(trainer.algorithm.transport, trainer.driver, 1902, np.empty).measure() for trainer in job.trainers
    )
    assert all(each == found[0] for each in found), "ranks that measure differently would choose differently"
    return found[0]


def computed(job):
    """What all ranks measure of computing, by redundancy 1."""
    n = len(job.trainers)
    found = job.run(
        measure_computing(
            trainer.comm,
            trainer.driver,
            Load(4 * n, lambda samples, trainer=trainer: trainer.gradients.next_gradient, np.ones(n), np.zeros((1, n))),
        )
        for trainer in job.trainers
    )
    assert all((each.gradients == found[0].gradients).all() for each in found)
    assert not found[0].per_block.any(), "in simulated time a block takes what its samples take"
    return found[0].gradients


@pytest.mark.parametrize("transport", ["multicast", "unicast"])
@pytest.mark.parametrize("eager_bytes", [0, 65536])
@pytest.mark.parametrize("n", [2, 3, 5])
@pytest.mark.parametrize("medium", NETWORKS)
def test_measured_is_what_the_network_is(medium, n, eager_bytes, transport):
    """With copies, too, where the network has multicast."""
    job = settled(n, {"r": 1, "transport": transport}, eager_bytes=eager_bytes, **NETWORKS[medium])
    before = [trainer.replica.params.array.copy() for trainer in job.trainers]
    packets = trial(job)
    once = 1 if transport == "multicast" and medium != "point-to-point" else n - 1
    others = n * once if medium == "shared" else n - 1
    assert packets.byte.to(1) * 4 * 1902 == pytest.approx(M_SECONDS * (n if medium == "shared" else 1), rel=0.05)
    assert packets.byte.to(n - 1) * 4 * 1902 == pytest.approx(M_SECONDS * others, rel=0.05)
    assert 50e-6 <= packets.exchange.to(1) <= 1e-3
    assert packets.is_shared == (medium == "shared")
    assert packets.sends_copies == (transport == "unicast" or medium == "point-to-point")
    for trainer, params in zip(job.trainers, before, strict=True):
        assert (trainer.replica.params.array == params).all()


def test_a_long_gradient_is_tried_in_part():
    """And where a message takes long, in a short one."""
    for bandwidth, size in (("inf bit", MAX_ELEMENTS), ("100 mbit", 65536 * 4), ("10 kbit", 4096)):
        ranks = Ranks(2, network_of(bandwidth=bandwidth))
        trials = [
            PacketTrial(Unicast(comm), driver, 10**9, np.empty)
            for comm, driver in zip(ranks.comms, ranks.drivers, strict=True)
        ]
        found = ranks.finish([each.long_packet(1) for each in trials])
        assert [each[0] for each in found] == [size] * 2
        assert found[0][1] == found[1][1]


def test_what_all_ranks_exchange_in_a_trial():
    """Each with the next ranks, in one order."""
    ranks = Ranks(4)
    trials = [
        PacketTrial(Multicast(comm), driver, 10, np.empty)
        for comm, driver in zip(ranks.comms, ranks.drivers, strict=True)
    ]
    everything = sorted({packet for each in trials for packet in each.packets(2, 3)}, key=lambda packet: packet.order)
    assert len(everything) == 4 * 3 and {len(packet.receivers) for packet in everything} == {2}
    assert {packet.receivers for packet in everything if packet.sender == 3} == {(0, 1)}
    for rank, each in enumerate(trials):
        mine = [packet for packet in everything if rank in packet.group]
        assert each.packets(2, 3) == mine and len(mine) == 3 * 3
        assert [packet.sender for packet in each.packets(1, senders=[0])] == [0] * (rank in (0, 1))


@pytest.mark.parametrize("medium", NETWORKS)
def test_settled_on_what_was_measured(medium):
    """For five ranks; the numbers are those of the network's description, within 5 %."""
    job = settled(5, {"r": "auto"}, **NETWORKS[medium])
    told = rows(job.reasons["redundancy"])
    assert told["computing"] == pytest.approx([STEP * r for r in range(1, 6)])
    assert told["waiting for the slowest"] == [0.0] * 5
    expected = {"switch": [4, 6, 4, 1, 0], "point-to-point": [4, 6, 4, 1, 0], "shared": [20, 15, 20 / 3, 5 / 4, 0]}
    assert told["sending"] == pytest.approx([M_SECONDS * each for each in expected[medium]], rel=0.05)
    r = job.config.algorithm_options.r
    steps = told["predicted ms a step"]
    assert steps[r - 1] == min(steps)
    assert [trainer.algorithm.options.r for trainer in job.trainers] == [r] * 5


def test_stragglers_of_the_configuration_count():
    """Before the run has begun, as they will in it."""
    stragglers = {"slowdown": {1: 3.0}, "pause": {0: {"every": 2, "seconds": 0.5}}}
    spec = network_of(bandwidth="1 mbit", latency="50 us")
    job = simulation({"name": "cssgd", "r": "auto"}, 4, spec, stragglers=stragglers, **LARGE)
    told = rows(job.reasons["redundancy"])
    mean = [r * STEP * 1.5 + 0.25 / 4 for r in range(1, 5)]
    slowest = [(r * 3 * STEP + r * STEP + 0.5) / 2 for r in range(1, 5)]
    assert told["computing"] == pytest.approx(mean, rel=0.01)
    assert np.add(told["computing"], told["waiting for the slowest"]) == pytest.approx(slowest, rel=0.01)


def test_the_slowest_rank_counts():
    """All wait for it in every step."""
    spec = network_of(bandwidth="1 mbit", latency="50 us", compute={"median": STEP, "slowdown": {1: 3}})
    job = simulation({"name": "cssgd", "r": 1}, 3, spec, None, **LARGE)
    assert computed(job) == pytest.approx(np.tile([STEP, 3 * STEP, STEP], (7, 1)), rel=1e-9)
    told = rows(simulation({"name": "cssgd", "r": "auto"}, 3, spec, None, **LARGE).reasons["redundancy"])
    assert told["computing"] == pytest.approx([r * 5 * STEP / 3 for r in (1, 2, 3)], rel=0.01)
    assert told["waiting for the slowest"] == pytest.approx([r * 4 * STEP / 3 for r in (1, 2, 3)], rel=0.01)


def test_an_outlier_does_not_count():
    """The median of several: one long computation, and the answer is the same."""
    job = settled(3, {"r": 1})
    for driver in job.drivers:
        driver.compute_seconds = lambda rank, step: 100.0 if (rank, step) == (1, 4) else STEP
    seconds = computed(job)
    assert len(seconds) == 3, "after so long a time, fewer are enough"
    assert np.median(seconds.max(1)) == pytest.approx(STEP, rel=1e-9)


@pytest.mark.parametrize("medium", NETWORKS)
def test_predictions_come_true(medium):
    """A step of the chosen redundancy, and of the others, takes about as long as was predicted."""
    predicted = rows(settled(4, {"r": "auto"}, **NETWORKS[medium]).reasons["redundancy"])["predicted ms a step"]
    for r, expected in enumerate(predicted, start=1):
        job = settled(4, {"r": r}, **NETWORKS[medium])
        job.train()
        seconds = job.trainers[0].snapshots.moments[-1].time / 8
        assert seconds == pytest.approx(expected, rel=0.25)


def test_a_rank_alone_measures_its_computing_only():
    job = settled(1, {"r": "auto"})
    assert job.config.algorithm_options.r == 1
    assert job.reasons["redundancy"].startswith("r = 1: measured 10 ms for a gradient, 0 ms more on the slowest rank\n")
    assert rows(job.reasons["redundancy"])["sending"] == [0.0]


@pytest.mark.parametrize("scheme, expected", [("coded", [3, 4]), ("grouped-rs", [1, 2, 3, 4])])
def test_what_would_send_too_many_packets_is_left_out(scheme, expected, monkeypatch):
    """Of coded, a rank of four sends 3, 3, 1 and 0 packets."""
    found = []

    def choose(scheme, n, allowed, length, measured):
        found.append(allowed)
        return 1, "first"

    monkeypatch.setattr(cssgd, "choose", choose)
    assert settled(4, {"r": "auto", "scheme": scheme}).reasons["redundancy"] == "first"
    assert found == [[1, 2, 3, 4]] * 4, "a batch of 16 samples has room for all blocks"
    found.clear()
    monkeypatch.setattr(redundancy, "MAX_PACKETS", 2)
    settled(4, {"r": "auto", "scheme": scheme})
    assert found == [expected] * 4
    job = settled(3, {"r": 2})
    assert (job.config.algorithm_options.r, job.reasons.get("redundancy"), job.env.now) == (2, None, 0.0)


def test_other_algorithms_have_nothing_to_settle():
    job = simulation("ring_allreduce", 3)
    assert (job.reasons.get("redundancy"), job.env.now) == (None, 0.0)


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


# ---- by the clock


@pytest.mark.parametrize("least, fixed", [(0.005, 0.005), (0.0, 0.0), (-0.01, 0.0)])
def test_the_fixed_time_per_block_is_that_of_a_straight_line(least, fixed, monkeypatch):
    """From whole and small blocks; it is never negative."""
    taken = []

    def times(work, comm, driver):
        (compute,) = list(work())
        compute.work()
        taken.append(compute.amount)
        yield from ()
        return np.full((3, 2), least + 0.001 * asked[-1])

    asked = []

    def gradient(samples):
        return lambda: asked.append(samples)

    monkeypatch.setattr(redundancy, "times", times)
    comm, driver = Ranks(2).comms[0], SimpleNamespace(progress_mode="inline")
    schedule = measure_computing(comm, driver, Load(128, gradient, np.ones(2), np.zeros((1, 2))))
    with pytest.raises(StopIteration) as end:
        next(schedule)
    found = end.value.value
    assert asked == [64, 8] and taken == [1, 8 / 64]
    np.testing.assert_allclose(found.per_block, fixed, atol=1e-12)
    np.testing.assert_allclose(found.gradients, least + 0.064)


def test_coding_takes_as_long_as_on_the_slowest_rank_and_rank_0_decides():
    ranks = Ranks(3)
    mine = [CodecSeconds(1.0, 5.0, 3.0), CodecSeconds(4.0, 2.0, 3.5), CodecSeconds(0.5, 0.5, 9.0)]
    found = ranks.finish([redundancy.slowest_codec(comm, each) for comm, each in zip(ranks.comms, mine, strict=True)])
    assert found == [CodecSeconds(4.0, 5.0, 9.0)] * 3
    decided = ranks.finish([redundancy.decided_by_one(comm, 2 + comm.rank) for comm in ranks.comms])
    assert decided == [2] * 3
