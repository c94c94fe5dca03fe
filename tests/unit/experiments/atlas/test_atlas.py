"""The atlas of methods over links and stragglers."""

import math

import numpy as np
import pytest

from experiments.atlas import analytic, draw
from experiments.atlas.points import HOSTS, METHODS, PERIODS, RATES, AtlasRun, measured_points, simulated_points
from experiments.atlas.seconds import expect_seconds
from experiments.figures import write_csv
from grsgd.algorithms.central import workers_of
from tests.support.runs import fake_run

POINT = AtlasRun("cnn", "local_sgd", 4, "100mbit", 1, False)


@pytest.fixture(autouse=True)
def models(monkeypatch):
    """Of a size that is known, without data sets."""
    monkeypatch.setattr(analytic, "model_bytes", {"gpt": 900_000, "cnn": 1_700_000}.get)


def test_there_are_as_many_points_as_are_said():
    simulated, measured = list(simulated_points()), list(measured_points())
    assert len(set(simulated)) == len(simulated) == 234 and len(set(measured)) == len(measured) == 70
    assert {point._replace(measured=False) for point in measured} <= set(simulated)
    assert {point.rate for point in measured} == set(RATES) and {point.period for point in measured} == set(PERIODS)


@pytest.mark.parametrize("method", METHODS)
def test_every_configuration_can_be(method):
    for point in (*simulated_points(), *measured_points()):
        if point.method == method:
            config = point.config()
            config.check_ranks(HOSTS)
            assert workers_of(config.algorithm_class, config.algorithm_options, HOSTS) >= HOSTS - 1
            slow = not point.measured and point.slower > 1
            assert config.stragglers.slowdown == ({0: 4.0} if slow else {})


def test_the_formula():
    """0.1 s of computing; an all-reduce of 1.7 MB over 100 Mbit/s takes 1.5 times 0.136 s, and six messages."""
    assert analytic.step_seconds(POINT) == pytest.approx(0.1 + (1.5 * 0.136 + 6e-4) / 4)
    assert analytic.utilisation(POINT) == pytest.approx(0.1 / analytic.step_seconds(POINT))
    slow = POINT._replace(slower=4)
    assert analytic.step_seconds(slow) == pytest.approx(0.4 + (1.5 * 0.136 + 6e-4) / 4)
    assert analytic.utilisation(slow) == pytest.approx(0.175 / analytic.step_seconds(slow))


def test_seconds_that_runs_are_expected_to_take():
    assert sum(expect_seconds(POINT)) == 12
    measured = expect_seconds(POINT._replace(measured=True))
    assert measured.training == pytest.approx(200 * analytic.step_seconds(POINT))


def test_a_host_of_the_testbed_is_slow_by_itself():
    slow = POINT._replace(slower=4)
    assert slow._replace(measured=True).spec().slow_hosts == ((0, 4.0),) and not slow.spec().slow_hosts
    assert not POINT._replace(measured=True).spec().slow_hosts


def result(seconds=0.2, target=10.0, sent=100.0, interfaces=math.nan):
    return draw.AtlasNumbers(seconds, 0.5, target, sent, interfaces)


def test_verdicts_table_and_figure(tmp_path):
    measured = POINT._replace(measured=True)
    results = {measured: result(0.3, math.nan, 100, 103), POINT: result(0.27)}
    ratio = 0.3 / analytic.step_seconds(measured)
    lines = list(draw.verdicts(results))
    assert f"A step by all-reduce takes {ratio:.2f} ({ratio:.2f} to {ratio:.2f}) times" in lines[0]
    assert "10.0% off the measured ones in the median, 10% at most, at 1 points" in lines[2]
    assert "interfaces have sent 1.03 (1.03 to 1.03) times" in lines[3]
    table = draw.table(results)
    assert "-10%" in table and "1.03" in table and table.count("\n") == 2
    write_csv(results, tmp_path / "atlas.csv")
    assert len((tmp_path / "atlas.csv").read_text().splitlines()) == 3
    draw.draw(results, tmp_path / "atlas.pdf")
    assert (tmp_path / "atlas.png").stat().st_size > 10_000


def test_bytes_of_interfaces_are_those_of_all_hosts():
    run = fake_run(ranks=2, target_accuracy=2.0)
    run.traffic["interface"] = np.array([[2e6, 7e6], [3e6, 7e6]])
    assert draw.AtlasNumbers.of(run).interface_megabytes == 5
    del run.traffic["interface"]  # in simulated time there are none
    assert math.isnan(draw.AtlasNumbers.of(run).interface_megabytes)
