"""Networks of simulated runs keep all that ``grsgd calibrate`` writes, and have the work of the run's own algorithm."""

import tomllib

import pytest

from experiments.runner.hosts import EmulatedHosts, Hosts
from experiments.runner.networks import ABOUT, OF_ONE_RATE, OF_RANKS, number_of
from experiments.runner.occasions import CALIBRATIONS
from experiments.runner.parallel import Unfinished
from experiments.runner.run_spec import TIMING_ONLY, Link, RunSpec
from experiments.runner.store import Store
from grsgd.runs.settings import flattened
from grsgd.simulator.calibration.calibrate import Calibration, Pair, StepTimes
from grsgd.simulator.calibration.messages import ProcessorTimes
from grsgd.simulator.calibration.network_file import network_file
from grsgd.simulator.calibration.spread import Spread
from grsgd.simulator.network import network

DIGITS = ('data.name="digits"', 'model.name="mlp"', "data.augment=false", "train.steps=3")
RUN = RunSpec("grsgd/dpsgd", (*DIGITS, "seed=0"), 4, TIMING_ONLY, Link("1gbit"))
OTHER = RUN._replace(config="grsgd/grsgd")
COST = Spread(1e-3, 0.9e-3, 1.1e-3)
EVERYTHING = Calibration(
    pairs=[Pair((0, 1), 40e-6, 125e6), Pair((1, 2), 40e-6, 125e6), Pair((2, 3), 500e-6, 12.5e6)],
    compute=[StepTimes(0.01, 0.1, 0.008, 0.2)] * 3 + [StepTimes(0.02, 0.1, 0.016, 0.2)],
    hosts=["a", "b", "c", "d"],
    crowded=False,
    queue_bytes=300_000,
    processor=ProcessorTimes(*[COST] * 7, 4096, "thread", 0.01, 0.1, 0.2, 0.02, COST, COST),
    work=5e-3,
)
"""What a calibration measures at most."""


@pytest.fixture
def networks(tmp_path):
    return Store(tmp_path / "smoke", EmulatedHosts(9, 0.2)).networks


def calibrated(networks, *specs: RunSpec, work: float | None = 2e-3) -> dict:
    """Write down that everything was measured; return what ``grsgd calibrate`` writes."""
    written = network_file(EVERYTHING, RUN.load(), "grsgd calibrate")
    for spec in specs:
        networks.calibration(spec).write_text(f'where = "a testbed"\nmade = "today"\ncommit = "a"\n{written}')
        networks.keep_work(spec, work)
        assert not networks.missing(spec)
    return dict(flattened(tomllib.loads(written)))


def made_of(networks, spec: RunSpec) -> dict:
    return dict(flattened(tomllib.loads(networks.file(spec).read_text())))


def test_the_network_of_a_run_has_every_key_that_was_calibrated(networks):
    written, made = calibrated(networks, RUN), made_of(networks, RUN)
    by_rank = {key for key in written if key.split(".")[0] in OF_RANKS or key.startswith("compute.slowdown")}
    assert by_rank, "which hosts of other numbers cannot have"
    assert made.keys() - written.keys() == {"medium", "multicast"}
    assert {key: made.get(key) for key in written.keys() - by_rank} == {
        key: value for key, value in written.items() if key not in by_rank
    } | {"compute.work": 2e-3}, "with the work of the run's own algorithm"
    assert network(str(networks.file(RUN))).processor.share == 0.2 and not made.keys() & set(ABOUT)


def test_algorithms_have_one_calibration_and_their_own_work(networks):
    calibrated(networks, RUN)
    assert [(one.file.name, one.work) for one in networks.missing(OTHER)] == [
        (networks.works(RUN).name, networks.work_name(OTHER))
    ]
    networks.keep_work(OTHER, 7e-3)
    ours, theirs = made_of(networks, RUN), made_of(networks, OTHER)
    assert (ours.pop("compute.work"), theirs.pop("compute.work")) == (2e-3, 7e-3) and ours == theirs


def test_redundant_ranks_have_the_work_of_their_own_number(networks):
    """Others have that of four, whatever their number: their own code does not go by it."""
    many = OTHER._replace(ranks=8)
    assert networks.work_name(many) == networks.work_name(OTHER) == "grsgd-n=4"
    coded = RUN._replace(overrides=(*DIGITS, 'algorithm.name="cssgd"', "algorithm.r=3", "seed=0"))
    names = [networks.work_name(coded._replace(ranks=ranks)) for ranks in (4, 8, 64)]
    assert names == [f"cssgd-coded-r=3-n={ranks}" for ranks in (4, 8, 9)], "up to as many as there are hosts"


def test_an_algorithm_that_cannot_train_on_the_hosts_has_no_work_of_another_one(networks):
    calibrated(networks, RUN, work=None)
    assert "compute.work" not in made_of(networks, RUN)


def test_links_of_a_rate_that_was_not_measured_keep_the_processor_and_computing(networks):
    nominal = RUN._replace(link=Link("10gbit", nominal=True))
    calibrated(networks, RUN)
    written, made = made_of(networks, RUN), made_of(networks, nominal)
    assert made["bandwidth"] == "10gbit" and "queue_bytes" not in made
    assert {key for key in written if made.get(key) != written[key]} == set(OF_ONE_RATE)


def test_what_is_stated_needs_no_calibration(networks):
    stated = RUN._replace(link=Link("10gbit", nominal=True), compute="constant:0.1")
    assert not networks.missing(stated) and made_of(networks, stated).keys() == {
        "medium",
        "multicast",
        "bandwidth",
        "latency",
    }


def test_seeds_rest_on_calibrations_of_different_times(networks):
    specs = [RUN._replace(overrides=(*DIGITS, f"seed={seed}")) for seed in range(2 * CALIBRATIONS)]
    assert [number_of(spec) for spec in specs] == [*range(CALIBRATIONS)] * 2
    assert len({networks.calibration(spec) for spec in specs}) == CALIBRATIONS
    calibrated(networks, *specs)
    assert networks.places(specs) == ["a testbed, today"]
    assert len({networks.file(spec) for spec in specs}) == CALIBRATIONS


def test_calibrations_of_other_code_stand_for_none(tmp_path):
    here = Store(tmp_path / "smoke", Hosts(9, 0.2), code="0123abcd")
    calibrated(here.networks, RUN)
    assert here.with_code("0123abce").networks.missing(RUN) and not here.with_code("0123abcd").networks.missing(RUN)


def test_measurements_of_two_machines_are_not_mixed(networks):
    """Measurements beside calibrations of the same model and number from other hosts are refused."""
    calibrated(networks, RUN)
    slow = RUN._replace(link=Link("100mbit"))
    other_number = slow._replace(overrides=(*DIGITS, "seed=1"))
    assert networks.calibration(other_number).name.endswith("-2.measured.toml")
    networks.check_hosts(other_number)
    for spec in (OTHER, slow):
        with pytest.raises(Unfinished, match="was measured on a testbed, and the hosts here are testbed of 9 hosts"):
            networks.check_hosts(spec)
    kept = networks.calibration(RUN)
    kept.write_text(kept.read_text().replace("a testbed", networks.hosts.describe(RUN)))
    for spec in (OTHER, slow):
        networks.check_hosts(spec)
