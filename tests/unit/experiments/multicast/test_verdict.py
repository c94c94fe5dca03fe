"""What is compared by ``make verdict-multicast``, and what is said of the results."""

import numpy as np
import pytest

from experiments.multicast.measure import MediumNumbers, MediumRun, numbers_of, plan_runs
from experiments.multicast.methods import AGAIN, IP, MPI, RING, methods
from experiments.multicast.verdict import WIRE_BYTES, interval, ratio, table, verdicts
from grsgd.runs.layout import LAYOUT
from tests.support.runs import fake_run

M = 3_000_000


def results(ranks, rounds=4, lossy=1.05, coded=0.25, noise=0.01, wire=1.0):
    """Made up: a ring takes 1 s, and the others as long as the bytes say, or as is given."""
    random, found = np.random.default_rng(0), {}
    compared = methods(ranks)
    ring = compared[0].models(ranks, M // 4)
    for number in range(rounds):
        for method in compared:
            sent = method.models(ranks, M // 4)
            seconds = coded if method.scheme == "coded" and method.transport == IP else sent / ring
            seconds *= (lossy if method.loss else 1.0) * (1 + noise * random.uniform(-1, 1))
            models = wire * sent / WIRE_BYTES
            planned = MediumRun(ranks, method.title, number)
            found[planned] = MediumNumbers(seconds, M * sent, M * models, 0.0, models, sent)
    return found


@pytest.mark.parametrize("ranks", [4, 6])
def test_methods_are_configurations_that_can_be_run(ranks):
    compared = methods(ranks)
    assert [method.title for method in compared[:2]] == [RING, AGAIN]
    assert len({method.title for method in compared}) == len(compared)
    for planned in plan_runs(ranks, 1):
        method, loaded = planned.method, planned.spec().load()
        loaded.check_ranks(ranks)
        options = loaded.algorithm_options
        assert getattr(options, "transport", None) == method.transport
        assert (getattr(options, "loss", None) or 0) == method.loss


def test_what_each_should_send():
    four, six = ({method.title: method.models(n, 720_720) for method in methods(n)} for n in (4, 6))
    assert four[RING] == four[AGAIN] == pytest.approx(6) and six[RING] == pytest.approx(10)
    assert four["cssgd r=3"] == four["cssgd r=3, 5% lost"] == pytest.approx(4 / 3)
    assert four["cssgd r=3, MPI"] == pytest.approx(4) and six["cssgd r=5"] == pytest.approx(6 / 5)
    assert four["grouped-rs r=2"] == four["grouped-direct r=2"] == six["grouped-rs r=3"] == pytest.approx(2)
    assert four["ssgd"] == pytest.approx(4) and six["ssgd"] == pytest.approx(6)


def test_ratios_are_those_of_rounds():
    times = {RING: [2.0, 3.0, 4.0], "a": [1.0, 1.0, 1.0]}
    found = {MediumRun(4, title, k): MediumNumbers(times[title][k], 0, 0, 0, 0, 0) for title in times for k in range(3)}
    assert ratio(found, 4, "a", RING) == (3.0, 2.0, 4.0, 3)


@pytest.mark.parametrize("rounds", [2, 3, 4])
def test_few_rounds_have_a_range_and_no_interval(rounds):
    """The range of two rounds holds the median in half of all cases: nobody is to read it as 95 %."""
    found = interval([5.0, 4.0, 6.0, 5.0][:rounds])
    assert (found.low, found.high) == (4.0, max(5.0, found.high)) and "(range 4.00 to" in str(found)


def test_five_rounds_have_an_interval_on_log_ratios():
    """Wider than the range, as of five values drawn from a normal distribution, and symmetric for ratios."""
    found = interval([1 / 4, 1 / 2, 1.0, 2.0, 4.0])
    assert found.middle == pytest.approx(1.0) and found.low == pytest.approx(1 / found.high)
    assert found.high == pytest.approx(np.exp(2.7764 * np.log(2) * np.sqrt(2.5 / 5)), rel=1e-4)
    assert interval([5.0] * 5)[:3] == pytest.approx((5.0, 5.0, 5.0)) and "range" not in str(found)


def test_verdicts_on_what_holds():
    lines = list(verdicts(results(4), 4))
    assert len(lines) == 8 and not any("does not hold" in line for line in lines)
    assert lines[0].startswith("Control: the ring against itself: 1.0")
    assert "at least 3.4 wanted: holds." in lines[1]
    assert "3.4" not in list(verdicts(results(6), 6))[1], "claimed of four ranks alone"


CHANGED = [({"coded": 0.3}, 1), ({"wire": 1.05}, 3), ({"wire": 1.2}, 4), ({"lossy": 1.2}, 6), ({"lossy": 1.5}, 7)]
"""What would have to be said in which line."""


@pytest.mark.parametrize("changed, which", CHANGED)
def test_verdicts_on_what_does_not(changed, which):
    lines = list(verdicts(results(4, **changed), 4))
    assert lines[which].endswith("does not hold.")


def test_the_table_has_all_methods():
    text = table(results(6, noise=0.0), 6)
    for method in methods(6):
        assert f"| {method.title} " in text
    assert "| ring_allreduce       |        1000 |" in text


def test_a_result_is_taken_from_a_run_file():
    run = fake_run("coded")
    ranks = run.attributes["ranks"]
    method = next(method for method in methods(4) if method.transport == IP)
    run.traffic |= {
        "sent_once": np.full(ranks, 1000),
        "headers": np.full((ranks, ranks), 10),
        "interface": np.full((ranks, 2), 2000.0),
        "repaired": np.full(ranks, np.nan),
    }
    run.attributes |= {"model_bytes": 400, "parameters": 100}
    steps = int(run.ranks["steps"][0])
    found = numbers_of(run, method)
    assert found.counted == pytest.approx(ranks * 1010 / steps) and found.repaired == 0
    assert found.models == pytest.approx(ranks * 2000 / steps / 400)
    by_mpi = next(method for method in methods(4) if method.transport == MPI)
    assert numbers_of(run, by_mpi).counted == pytest.approx((ranks * 1000 + 10 * ranks**2) / steps)
    assert {"repaired", "lost"} <= set(LAYOUT["traffic"])
