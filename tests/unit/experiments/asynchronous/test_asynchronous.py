"""Synchronous against asynchronous methods: the runs, the choice of learning rates, and what the results say."""

import math
from dataclasses import replace

import numpy as np
import pytest

from experiments.asynchronous import __main__ as program
from experiments.asynchronous import draw, plan, tuning, verdict
from experiments.asynchronous.points import (
    ASYNCHRONOUS,
    CONTROL,
    DISTRIBUTIONS,
    FINAL_SEEDS,
    METHODS,
    RANKS,
    RATES,
    SEEDS,
    SYNCHRONOUS,
    TUNING_SEEDS,
    WORKERS,
    StrategyRun,
    bound_gradients,
    gradients_per_update,
    throughput_ratio,
)
from experiments.asynchronous.result import StrategyNumbers
from experiments.figures import write_csv
from grsgd.algorithms.central import workers_of
from grsgd.algorithms.parameter_server.server import make_strategy
from tests.support.runs import fake_run


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("method", [*METHODS, CONTROL])
def test_every_configuration_can_be(method, distribution):
    config = StrategyRun(distribution, method, 0.4, 3).spec().load()
    config.check_ranks(RANKS)
    assert workers_of(config.algorithm_class, config.algorithm_options, RANKS) == WORKERS
    assert config.seed == 3 and config.optimizer.lr == 0.4
    strategy = make_strategy(config.algorithm_options, WORKERS)
    each = method.split()[0] in ("asp", "ringmaster")  # is applied by itself
    assert gradients_per_update(method) == (1 if each else strategy.bound_gradients)
    assert bound_gradients(method) == strategy.bound_gradients
    slowdown = DISTRIBUTIONS[distribution].slowdown
    assert [config.stragglers.slowdown.get(rank, 1.0) for rank in range(WORKERS)] == list(slowdown)


def test_both_sides_have_the_same_work():
    """As many methods, and each of them on the same grid."""
    assert len(SYNCHRONOUS) == len(ASYNCHRONOUS) and not set(TUNING_SEEDS) & {*SEEDS, *FINAL_SEEDS}
    assert not set(SEEDS) & set(FINAL_SEEDS)
    first = plan.list_missing(DISTRIBUTIONS, {})
    assert len(first) == len(set(first)) == len(DISTRIBUTIONS) * len(METHODS) * len(RATES) * len(TUNING_SEEDS)
    assert len({point.spec() for point in first}) == len(first)


@pytest.mark.parametrize("seed", range(20))
def test_m_synchronous_throughput_is_within_a_logarithm(seed):
    seconds = np.random.default_rng(seed).lognormal(0, 2, 1 + seed)
    assert 1 - 1e-12 <= throughput_ratio(seconds) <= 1 + math.log(seconds.size)


def test_throughput_of_known_times():
    assert throughput_ratio([0.1] * 8) == pytest.approx(1)
    assert throughput_ratio([float(i) for i in range(1, 9)]) == pytest.approx(sum(1 / i for i in range(1, 9)))
    assert throughput_ratio([1.0] * 7 + [10.0]) == pytest.approx(7.1 / 7)


def test_the_best_rate_is_sought_beyond_the_grid():
    assert tuning.to_try({}) == list(RATES)
    inside = dict.fromkeys(RATES, (3.0, 3.0)) | {RATES[1]: (2.0, 2.0)}
    assert tuning.to_try(inside) == [] and tuning.best(inside) == RATES[1] and not tuning.at_an_end(inside)
    above = inside | {RATES[-1]: (1.0, 1.0)}
    assert tuning.to_try(above) == [2 * RATES[-1]] and tuning.at_an_end(above)
    assert tuning.to_try(above | {2 * RATES[-1]: (1.5, 1.5)}) == []
    below = inside | {RATES[0]: (1.0, 1.0)}
    assert tuning.to_try(below) == [RATES[0] / 2]
    last = above | {RATES[-1] * 2**k: (1 / k, 1 / k) for k in (1, 2, 3)}
    assert tuning.to_try(last) == [] and tuning.at_an_end(last)  # that is the limit
    never = dict.fromkeys(RATES, (math.nan, 1.0))
    assert tuning.best(never) is None and tuning.to_try(never) == []
    assert tuning.best(never | {0.1: (4.0, 9.0), 0.2: (6.0, 6.0)}) in (0.1, 0.2)


def test_the_fastest():
    assert tuning.fastest({"a": [1, 9, 9], "b": [8, 8, 9], "c": [1, math.nan, math.nan]}) == "b"
    assert tuning.fastest({"a": [math.nan, math.nan, 1]}) is None and tuning.fastest({}) is None


ENDED = 100.0
"""Seconds at which a training ends that has missed its target."""


def result(seconds):
    return StrategyNumbers(seconds, 1000, 900, 900, math.nan, ENDED, 1.0)


def results_of(seconds):
    """All that is to be run, where ``seconds(point)`` says how long each takes; the best rate is the second one."""
    results = {}
    while points := plan.list_missing(DISTRIBUTIONS, results):
        results |= {p: result(seconds(p) * (1 + abs(math.log2(p.rate / RATES[1])))) for p in points}
    return results


def noisy(point, spread=0.02):
    seed = [ord(letter) for letter in point.method] + [point.seed]
    return 10 * math.exp(spread * np.random.default_rng(seed).standard_normal())


def ten_percent(point):
    """One asynchronous method takes a half of the time where workers differ by their number, a tenth where one is slow;
    a synchronous one takes two thirds on log-normal times."""
    factors = {("linear", "asp"): 0.5, ("slow", "rennala 8"): 0.1, ("heavy", "m_sync 4"): 2 / 3}
    return noisy(point) * factors.get((point.distribution, point.method), 1.0)


def test_runs_are_as_many_as_are_said():
    results = results_of(noisy)
    assert len(results) == plan.number_of_runs(len(DISTRIBUTIONS))
    assert {p.rate for p in results if p.seed in FINAL_SEEDS} == {RATES[1]}
    assert sum(p.method == CONTROL for p in results) == len(DISTRIBUTIONS)


def test_verdicts_that_are_known():
    found = {each.distribution: each for each in verdict.comparisons(results_of(ten_percent))}
    assert {name: each.word for name, each in found.items()} == dict.fromkeys(DISTRIBUTIONS, verdict.ALIKE) | {
        "linear": verdict.SLOWER,
        "slow": verdict.SLOWER,
        "heavy": verdict.FASTER,
    }
    linear, slow = found["linear"], found["slow"]
    assert (linear.asynchronous, slow.asynchronous) == ("asp", "rennala 8")
    assert found["heavy"].synchronous == "m_sync 4"
    assert linear.low < 2 < linear.high and linear.high - linear.low < 0.4
    assert verdict.on_the_claim([found["linear"], found["equal"]]).startswith(
        "The claim, that m-synchronous SGD is optimal up to a logarithm, held to 1 + ln n = 3.08: holds on 2 of 2"
    )
    said = verdict.on_the_claim(list(found.values()))
    assert "does not hold on 1 of 6 distributions (one 10 times slower): the most is 10." in said
    said = verdict.on_asynchrony(list(found.values()))
    assert "one 10 times slower, 90% less time; worker i: i, 5" in said
    assert "nothing on 4 of 6" in said


def comparison(effect: float, spread: float = 0.0) -> verdict.Comparison:
    """Return the comparison of a synchronous method that takes ``effect`` times as long, with twelve seeds."""
    theirs = verdict.Sample({seed: 10.0 * 1.05 ** (seed % 3) for seed in range(12)})
    ours = verdict.Sample({seed: effect * (1 + spread * (-1) ** seed) * value for seed, value in theirs.values.items()})
    return verdict.Comparison("equal", "m_sync 7", "asp", verdict.less(ours, theirs, "equal", "asp", pairs=True))


def test_an_effect_that_its_interval_shows_is_one_however_much_seeds_differ():
    """By 16 %, with an interval from 0.75 to 0.93, was no difference, as single seeds differ by as much."""
    found = comparison(0.84, spread=0.15)
    assert found.word == verdict.FASTER and found.high < 1


def test_no_difference_is_within_the_zone_and_not_what_is_not_known():
    assert comparison(1.01, spread=0.01).word == verdict.ALIKE and "within 5 %" in verdict.ALIKE
    assert comparison(1.0, spread=0.5).word == verdict.UNCLEAR


def test_which_distributions_differ_is_corrected_for_their_number(monkeypatch):
    """One of six differs with p = 0.02, which one of six equal ones would with 12 %."""
    one, others = comparison(0.84, spread=0.15), comparison(1.0, spread=0.5)
    by_chance = replace(one, case=replace(one.case, p=0.02))
    first = next(iter(DISTRIBUTIONS))
    monkeypatch.setattr(verdict, "compare", lambda results, name: by_chance if name == first else others)
    assert by_chance.word == verdict.FASTER
    assert {each.word for each in verdict.comparisons({})} == {verdict.UNCLEAR}


def test_targets_that_are_not_reached():
    """Of the finals of one side they are bounds; a method that misses the target while it is tuned takes no part."""

    def some_fail(point):
        is_final = point.seed in FINAL_SEEDS and point.distribution == "equal" and point.method in ASYNCHRONOUS
        never = is_final or point.method == "m_sync 2" or (point.distribution == "slow" and point.method in SYNCHRONOUS)
        return math.nan if never else noisy(point)

    results = results_of(some_fail)
    found = {each.distribution: each for each in verdict.comparisons(results)}
    assert found["equal"].case.bound == verdict.AT_LEAST and found["equal"].word == verdict.FASTER
    assert found["equal"].high < 0.3 and math.isinf(found["equal"].low), "it ended ten times as late"
    assert "at most 0." in verdict.line(found["equal"])
    assert "slow" not in found and not any(each.synchronous == "m_sync 2" for each in found.values())
    assert "holds on 5 of 5 distributions" in verdict.on_the_claim(list(found.values()))
    assert draw.cell("equal", "m_sync 2", results) == ""


def test_lines_tables_and_figure(tmp_path):
    results = results_of(ten_percent)
    lines = list(verdict.verdicts(results))
    assert len(lines) == len(DISTRIBUTIONS) + 4
    assert lines[4].startswith("worker i: i: the best m-synchronous (") and ": slower, 2.00 times as long (" in lines[4]
    assert "by throughput alone 2.72 times" in lines[4]
    assert "worker i: i 2." in lines[-2] or "worker i: i 1.9" in lines[-2]
    overview, table = draw.overview(results), draw.table(results)
    assert overview.count("\n") == len(METHODS) + 1 and "; 0.4" in overview and "†" not in overview
    assert table.count("\n") == len(METHODS) * len(DISTRIBUTIONS) + 1 and "| 1000 " in table
    write_csv(results, tmp_path / "all.csv")
    assert len((tmp_path / "all.csv").read_text().splitlines()) == 1 + len(results)
    one = {point: found for point, found in results.items() if point.distribution == "slow"}
    assert "one 10 times slower" in draw.overview(one) and "sqrt" not in draw.overview(one)
    assert len(draw.draw(one).axes) == 1 and len(draw.draw(results).axes) == len(DISTRIBUTIONS)
    four = {point: found for point, found in results.items() if point.distribution not in ("equal", "varied")}
    assert len(draw.draw(four).axes) == 4
    draw.draw(results).savefig(tmp_path / "all.png")
    assert (tmp_path / "all.png").stat().st_size > 10_000


def test_the_control():
    results = results_of(noisy)
    results = {p: r if p.method != CONTROL else results[p._replace(method="bsp")] for p, r in results.items()}
    assert verdict.on_the_control(results).endswith("in 6 of 6 runs.")
    other = next(p for p in results if p.method == CONTROL)
    assert verdict.on_the_control(results | {other: result(1.0)}).endswith("in 5 of 6 runs.")
    assert verdict.on_the_control({}) is None


def test_what_a_run_says():
    """125 gradients of 32 samples in 40 s, by updates of 8; eight workers take 0.1 s for as many at least."""
    run = fake_run(target_accuracy=2.0)
    found = StrategyNumbers.of(StrategyRun("equal", "bsp", 0.4, 0), run)
    assert math.isnan(found.seconds) and found.applied == 125 and found.updates == 15
    assert found.over_optimum == pytest.approx(40 / 125 * 8 / 0.1) and found.computed == run.ranks["steps"].sum()
    assert math.isnan(StrategyNumbers.of(StrategyRun("heavy", "asp", 0.4, 0), run).over_optimum)
    found = StrategyNumbers.of(StrategyRun("linear", "asp", 0.4, 0), run)
    assert found.updates == 125 and found.over_optimum == pytest.approx(40 / 125 * 8 / 0.4)


def test_what_is_there_is_found_again(tmp_path, monkeypatch):
    made = results_of(noisy)
    existing = set(list(made)[:400])
    kept = program.KeptRuns(tmp_path, 2, lambda spec, cpu: program.Seconds(program.RUN_SECONDS, 0.0))
    monkeypatch.setattr(kept, "load", lambda planned: {point: point for point in planned if point in existing})
    monkeypatch.setattr(StrategyNumbers, "of", lambda point, run: made[point])
    found = program.find_results(kept, DISTRIBUTIONS)
    assert found == {point: made[point] for point in found} and 384 <= len(found) <= 400
    assert program.hours_of(kept, 900) == pytest.approx(900 * program.RUN_SECONDS / 7200)
