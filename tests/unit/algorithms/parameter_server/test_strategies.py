"""The strategies of a parameter server, in simulated time, without any server."""

import heapq
import math
from dataclasses import dataclass, field
from itertools import permutations

import numpy as np
import pytest

from grsgd.algorithms.parameter_server.adsp import Adsp
from grsgd.algorithms.parameter_server.bounded import Asp, Bsp, Dssp, Ssp
from grsgd.algorithms.parameter_server.strategies import STRATEGIES
from grsgd.algorithms.parameter_server.strategy import Decision
from grsgd.algorithms.parameter_server.time_optimal import MSync, Rennala, Ringmaster
from grsgd.runs.bound import optimal_seconds
from tests.support.exhaustive import exhaustive_unless

STEPS = 1000
SEEDS = range(8)
ETA, SIZE = 0.2, 3
CURVATURE = np.array([1.0, 0.5, 0.1])
OPTIMUM = np.array([1.0, -2.0, 3.0])
ALL = [
    ("bsp", {}),
    ("asp", {}),
    ("asp", dict(staleness_aware=True)),
    ("ssp", dict(s=0)),
    ("ssp", {}),
    ("dssp", dict(s=0, r_max=3)),
    ("dssp", {}),
    ("adsp", {}),
    ("adsp", dict(s=1, smax=2, slow_streak=1, staleness_aware=True)),
    ("adsp", dict(s=2, smax=2, straggler_weight="one")),
    ("adsp", dict(s=0, smax=4, slow_factor=1, slow_streak=1)),
    ("adsp", dict(s=0, smax=0)),
    ("adsp", dict(ahead_mode="apply")),
    ("m_sync", {}),
    ("m_sync", dict(fastest=1)),
    ("rennala", {}),
    ("rennala", dict(gradients_per_update=1)),
    ("rennala", dict(gradients_per_update=7)),
    ("ringmaster", {}),
    ("ringmaster", dict(staleness_limit=1)),
]
"""Names and options."""
LIMITS = dict(bsp=lambda o: 0, asp=lambda o: math.inf, ssp=lambda o: o.s, dssp=lambda o: o.s + o.r_max)
LIMITS |= dict.fromkeys(("m_sync", "rennala", "ringmaster"), lambda o: math.inf)
LIMITS["adsp"] = lambda o: o.s if o.ahead_mode == "apply" else o.smax
"""How far ahead a worker may be that is answered."""
every_strategy = pytest.mark.parametrize("name, options", ALL, ids=lambda x: x if isinstance(x, str) else str(x))
every_seed = pytest.mark.parametrize("seed", exhaustive_unless(lambda seed: seed < 3, SEEDS))


def constant(n: int, slowest: float = 4.0) -> np.ndarray:
    """Seconds of each step of each worker, shape [n, STEPS]: 1, but ``slowest`` for the last worker."""
    delays = np.ones((n, STEPS))
    delays[-1] = slowest
    return delays


def random(n: int, seed: int) -> np.ndarray:
    """Steps of varying length with random pauses; in odd seeds the last worker is 4 times slower as well."""
    rng = np.random.default_rng(seed)
    delays = 0.5 + rng.exponential(0.5, (n, STEPS)) + 8 * (rng.random((n, STEPS)) < 0.05)
    delays[-1] *= 4 if seed % 2 else 1
    return delays


@dataclass
class Run:
    """What has happened."""

    strategy: object
    w: np.ndarray = field(default_factory=lambda: np.zeros(SIZE))
    models: list = field(default_factory=list)
    answers: list = field(default_factory=list)
    """(time, worker)"""
    leads: list = field(default_factory=list)
    """Of the workers answered."""
    staleness: list = field(default_factory=list)
    weights: list = field(default_factory=list)
    """(worker, weight) of each gradient applied."""
    pushes: int = 0
    pending: dict = field(default_factory=dict)
    """Gradients pushed and not gathered."""
    dropped: list = field(default_factory=list)
    """The worker of each gradient that was too old."""
    sum: np.ndarray = field(default_factory=lambda: np.zeros(SIZE))
    """Of the gradients gathered since the last update."""


def simulate(strategy, delays, horizon, seed=0, deaths=(), timeout=20.0) -> Run:
    """Workers that take ``delays``, shape [n, STEPS], for their steps on a noisy quadratic, until time ``horizon``.

    ``deaths``: (worker, time) from when on nothing comes from it; the strategy is told ``timeout`` later. Checks at
    every event what holds for all strategies.
    """
    n, run = len(delays), Run(strategy)
    noise = np.random.default_rng(seed).normal(size=(n, STEPS, SIZE))
    limit = LIMITS[next(name for name, kind in STRATEGIES.items() if type(strategy) is kind)](strategy.options)
    death = dict(deaths)
    step, pulled, versions, running = [0] * n, [run.w.copy() for _ in range(n)], [0] * n, set(range(n))
    events = [(delays[i, 0], i, "push") for i in range(n)] + [(t + timeout, i, "lost") for i, t in deaths]
    heapq.heapify(events)
    while events and events[0][0] <= horizon:
        now, i, what = heapq.heappop(events)
        if what == "push":
            if now >= death.get(i, math.inf):
                continue
            tau = strategy.version - versions[i]
            run.pending[i] = CURVATURE * (pulled[i] - OPTIMUM) + noise[i, step[i]]
            step[i] += 1
            run.pushes += 1
            running.remove(i)
            decision = strategy.push(i, versions[i], now)
            assert strategy.staleness == tau >= 0
            run.staleness.append(tau)
        else:
            decision = strategy.lost(i, now)
            running.discard(i)
        assert strategy.clocks == step
        apply(run, decision, n)
        assert strategy.version == len(run.models)
        assert list(decision.answers) == sorted(set(decision.answers))
        for j in decision.answers:
            assert j in strategy.active and j not in running and j not in run.pending
            assert versions[j] <= strategy.version
            run.answers.append((now, j))
            run.leads.append(step[j] - min(step[k] for k in strategy.active))
            pulled[j], versions[j] = run.w.copy(), strategy.version
            running.add(j)
            heapq.heappush(events, (now + delays[j, step[j]], j, "push"))
        assert strategy.blocked == strategy.active - running
        assert running or not strategy.active, "everybody waits"
        assert strategy.buffer.keys() == run.pending.keys()
        clocks = [step[j] for j in strategy.active]
        assert not clocks or max(clocks) - min(clocks) <= limit + 1
    assert max(run.leads) <= limit
    assert len(run.weights) + len(run.pending) + len(run.dropped) == run.pushes
    assert [run.dropped.count(i) for i in range(n)] == strategy.dropped
    return run


def apply(run: Run, decision: Decision, n: int):
    assert list(decision.gathered) == sorted(decision.gathered)
    for worker, weight in decision.gathered:
        assert 0 < weight <= 1
        run.sum += weight * run.pending.pop(worker)  # KeyError if applied twice
        run.weights.append((worker, weight))
    for worker in run.pending.keys() - run.strategy.buffer.keys():
        del run.pending[worker]
        run.dropped.append(worker)
    if decision.update:
        run.w -= ETA / n * run.sum
        run.sum = np.zeros(SIZE)
        run.models.append(run.w.copy())


def assert_equal(one: Run, other: Run):
    np.testing.assert_array_equal(one.models, other.models)
    assert one.answers == other.answers and one.staleness == other.staleness
    assert len(one.models) > 50


@every_seed
@every_strategy
def test_invariants(name, options, seed):
    n = 2 + seed % 5
    run = simulate(STRATEGIES[name](n, **options), random(n, seed), 200, seed)
    assert run.pushes > 10 * n
    assert np.linalg.norm(run.w - OPTIMUM) < 0.9 * np.linalg.norm(OPTIMUM)


@every_strategy
def test_one_worker_is_plain_sgd(name, options):
    run = simulate(STRATEGIES[name](1, **options), random(1, 0), 100)
    assert len(run.models) == run.pushes // options.get("gradients_per_update", 1)
    assert run.pushes == len(run.answers) and set(run.weights) == {(0, 1.0)} and not run.dropped
    assert set(run.staleness) == {0}


@every_seed
@pytest.mark.parametrize(
    "options, other",
    [
        (dict(s=math.inf, smax=math.inf, straggler_weight="one"), Asp(5)),
        (dict(s=math.inf, smax=math.inf, slow_factor=math.inf), Asp(5)),
        (dict(s=3, smax=3, straggler_weight="one", slow_factor=math.inf, ahead_mode="apply"), Ssp(5, s=3)),
        (dict(s=0, smax=0, straggler_weight="one", slow_factor=math.inf), Bsp(5)),
        (dict(s=0, smax=0, straggler_weight="one", slow_factor=1, slow_streak=1), Bsp(5)),
        (dict(s=math.inf, smax=math.inf, straggler_weight="one", staleness_aware=True), Asp(5, staleness_aware=True)),
    ],
    ids=["asp", "asp, no stragglers", "ssp", "bsp", "bsp, stragglers", "staleness-aware"],
)
def test_adsp_reduces_to(options, other, seed):
    other = type(other)(5, staleness_aware=other.staleness_aware)
    delays = random(5, seed)
    assert_equal(simulate(Adsp(5, **options), delays, 600, seed), simulate(other, delays, 600, seed))


@every_seed
def test_other_reductions(seed):
    delays = random(4, seed)
    assert_equal(simulate(Dssp(4, s=2, r_max=0), delays, 300), simulate(Ssp(4, s=2), delays, 300))
    assert_equal(simulate(Ssp(4, s=math.inf), delays, 300), simulate(Asp(4), delays, 300))
    assert_equal(simulate(MSync(4, fastest=4), delays, 600), simulate(Bsp(4), delays, 600))
    assert_equal(simulate(Ringmaster(4, staleness_limit=10**6), delays, 300), simulate(Asp(4), delays, 300))
    one_by_one = simulate(Rennala(4, gradients_per_update=1), delays, 300)
    assert_equal(simulate(Ringmaster(4, staleness_limit=1), delays, 300), one_by_one)
    assert_equal(simulate(MSync(4, fastest=1), delays, 300), one_by_one)
    keeps_step, bulk = simulate(Ssp(4, s=0), delays, 300), simulate(Bsp(4), delays, 300)
    assert sorted(keeps_step.answers) == sorted(bulk.answers) and len(bulk.answers) > 50


@pytest.mark.parametrize("strategy, rate", [(Bsp, 2.00), (Ssp, 2.14), (Asp, 7.24)])
def test_rates_with_a_constant_straggler(strategy, rate):
    """8 workers, of which the last takes 4 s a step, the others 1 s: bounded staleness gains only its first lead.

    SSP makes 2 pushes a second and 7 times 3 more: 2.14 in 150 s.
    """
    run = simulate(strategy(8), constant(8), 150)
    assert run.pushes / 150 == pytest.approx(rate, rel=0.02)


def test_every_strategy_between_bulk_synchronous_and_asynchronous():
    pushes = {}
    for name, kind in STRATEGIES.items():
        pushes[name] = np.mean([simulate(kind(8), random(8, seed), 200).pushes for seed in (0, 2)])
    assert pushes["asp"] > 1.2 * pushes["dssp"] and pushes["asp"] > 1.2 * pushes["adsp"]
    assert min(pushes["ssp"], pushes["dssp"], pushes["adsp"]) > 1.2 * pushes["bsp"]


def test_staleness():
    assert set(simulate(Bsp(6), random(6, 0), 200).staleness) == {0}
    asynchronous = simulate(Asp(6), random(6, 0), 400)
    assert np.mean(asynchronous.staleness) == pytest.approx(5, abs=0.2) and max(asynchronous.staleness) > 12


def test_staleness_aware_weights():
    run = simulate(Asp(6, staleness_aware=True), random(6, 0), 100)
    assert [weight for _, weight in run.weights] == [1 / max(tau, 1) for tau in run.staleness]
    # in a buffer, tau grows until it is emptied
    strategy = Adsp(4, s=1, smax=5, staleness_aware=True)
    strategy.push(0, 0, 1.0)
    assert strategy.push(0, 1, 2.0) == Decision() and strategy.staleness == 0
    strategy.push(1, 0, 2.0)
    strategy.push(2, 0, 2.0)
    assert strategy.push(3, 0, 2.0) == Decision(((0, 1 / 2), (3, 1 / 3)), True, (0, 3))


def test_bulk_synchronous_rounds():
    strategy = Bsp(3)
    assert strategy.push(2, 0, 1.0) == strategy.push(0, 0, 2.0) == Decision()
    assert strategy.blocked == {0, 2} and strategy.version == 0
    assert strategy.push(1, 0, 3.0) == Decision(((0, 1.0), (1, 1.0), (2, 1.0)), True, (0, 1, 2))
    assert strategy.blocked == set() and strategy.version == 1 and strategy.clocks == [1, 1, 1]


def test_m_synchronous_rounds():
    strategy = MSync(3, fastest=2)
    assert strategy.push(2, 0, 1.0) == Decision() and strategy.blocked == {2}
    assert strategy.push(0, 0, 2.0) == Decision(((0, 1.0), (2, 1.0)), True, (0, 2))
    assert strategy.push(0, 1, 3.0) == Decision()
    assert strategy.push(1, 0, 3.5) == Decision((), False, (1,)) and strategy.dropped == [0, 1, 0]
    assert strategy.push(1, 1, 4.0) == Decision(((0, 1.0), (1, 1.0)), True, (0, 1))
    assert strategy.lost(2, 5.0) == strategy.push(0, 2, 5.0) == Decision()
    assert strategy.lost(1, 6.0) == Decision(((0, 1.0),), True, (0,))


def test_no_update_of_m_synchronous_is_of_fewer_when_workers_come_to_rest():
    strategy = MSync(3, fastest=2)
    assert strategy.push(0, 0, 1.0) == Decision()
    assert strategy.rests(2, 2.0) == Decision()
    assert strategy.rests(1, 3.0) == Decision((), False, (0,))
    assert strategy.dropped == [1, 0, 0] and strategy.version == 0
    assert strategy.rests(0, 4.0) == Decision()
    strategy.go_on({0, 1, 2}, 5.0)
    assert strategy.push(0, 0, 6.0) == Decision()
    assert strategy.push(1, 0, 7.0) == Decision(((0, 1.0), (1, 1.0)), True, (0, 1))


def test_the_sum_of_rennala_outlives_a_rest():
    strategy = Rennala(2, gradients_per_update=3)
    assert strategy.push(0, 0, 1.0) == strategy.push(1, 0, 1.0)._replace(gathered=((0, 1.0),), answers=(0,))
    assert strategy.rests(1, 2.0) == strategy.rests(0, 2.0) == Decision()
    other = Rennala(2, gradients_per_update=3)
    for name in strategy.remembers:
        setattr(other, name, getattr(strategy, name))
    other.go_on({0, 1}, 3.0)
    assert other.gathered == 2 and other.push(0, 0, 4.0) == Decision(((0, 1.0),), True, (0,))


@pytest.mark.parametrize(("name", "options"), [("dssp", dict(s=0, r_max=0)), ("m_sync", dict(fastest=4)), *ALL])
def test_those_that_keep_step_never_let_a_worker_lead(name, options):
    strategy = STRATEGIES[name](4, **options)
    run = simulate(strategy, random(4, 1), 300)
    if name != "m_sync" or options.get("fastest") == 4:
        assert strategy.keeps_step == (LIMITS[name](strategy.options) == 0 or name == "m_sync")
    assert not strategy.keeps_step or max(run.leads) == 0


def test_rennala_gathers_gradients_of_one_model():
    strategy = Rennala(2, gradients_per_update=3)
    assert strategy.push(0, 0, 1.0) == Decision(((0, 1.0),), False, (0,)) == strategy.push(0, 0, 2.0)
    assert strategy.push(0, 0, 3.0) == Decision(((0, 1.0),), True, (0,)) and strategy.version == 1
    assert strategy.push(1, 0, 3.5) == Decision((), False, (1,)) and strategy.dropped == [0, 1]
    assert strategy.push(1, 1, 4.0) == Decision(((1, 1.0),), False, (1,))
    assert strategy.lost(1, 5.0) == Decision()
    assert strategy.lost(0, 6.0) == Decision((), True, ()) and strategy.version == 2  # what is gathered is not lost


def test_ringmaster_drops_what_is_too_old():
    strategy = Ringmaster(2, staleness_limit=2)
    assert strategy.push(0, 0, 1.0) == Decision(((0, 1.0),), True, (0,))
    assert strategy.push(1, 0, 2.0) == Decision(((1, 1.0),), True, (1,)) and strategy.staleness == 1
    for version in (1, 3):
        assert strategy.push(0, version, 3.0).update
    assert strategy.push(1, 2, 4.0) == Decision((), False, (1,)) and strategy.dropped == [0, 1]


@every_seed
@pytest.mark.parametrize("kind", [Rennala, Ringmaster])
def test_time_near_the_optimum(kind, seed):
    """In at most twice the time that theory needs for its gradients, with workers whose speeds are far apart."""
    n = 2 + seed
    speeds = np.exp(np.random.default_rng(seed).normal(size=n))
    delays = np.repeat(speeds[:, None], STEPS, axis=1)
    strategy, horizon = kind(n), (STEPS - 1) * speeds.min()
    run = simulate(strategy, delays, horizon)
    optimum = optimal_seconds(speeds, strategy.bound_gradients)
    taken = horizon * strategy.bound_gradients / len(run.weights)
    assert taken < 2 * optimum * 1.05  # the last update may be half made


def test_stale_synchronous_holds_the_answer_only():
    strategy = Ssp(2, s=1)
    assert strategy.push(0, 0, 1.0) == Decision(((0, 1.0),), True, (0,))
    assert strategy.push(0, 1, 2.0) == Decision(((0, 1.0),), True, ())
    assert strategy.blocked == {0}
    assert strategy.push(1, 0, 2.5) == Decision(((1, 1.0),), True, (0, 1))
    assert strategy.staleness == 2


def test_dynamic_bound_goes_on_until_the_slowest_is_expected():
    """Worker 0 takes 1 s, worker 1 10 s: with a lead of 4 at 11 s, 0 gets the 9 steps until 20 s."""
    strategy = Dssp(2, s=3, r_max=12)
    for now in range(1, 4):
        assert strategy.push(0, now - 1, now).answers == (0,)
    assert strategy.push(0, 3, 4.0).answers == ()  # no credit before the slowest has pushed
    assert strategy.push(1, 0, 10.0).answers == (0, 1)
    strategy.pushed_at[0] = (9.0, 10.0)  # as if it had not waited
    assert strategy.push(0, 5, 11.0).answers == (0,)
    assert strategy.credit[0] == 8  # 9 until 20 s, one of which is spent
    for k in range(8):
        assert strategy.push(0, 6 + k, 12.0 + k).answers == (0,)
    assert strategy.clocks == [13, 1] and strategy.credit[0] == 0
    assert strategy.push(0, 14, 20.0).answers == ()  # the slowest is due now
    assert strategy.push(1, 5, 20.0).answers == (1,)


def test_dynamic_bound_looks_at_pushes_to_come():
    """Not at the last one of the slowest, at 10 s, however close; of equally good numbers of steps the smallest."""
    strategy = Dssp(2, s=0, r_max=12)
    strategy.pushed_at = [(9.5, 9.5), (0.0, 10.0)]
    strategy.push(0, 0, 10.5)
    assert strategy.credit[0] == 8  # 9 until 19.5 s; 10 would be as close to 20 s
    strategy = Dssp(2, s=0, r_max=5)
    strategy.pushed_at = [(9.5, 9.5), (0.0, 10.0)]
    strategy.push(0, 0, 10.5)
    assert strategy.credit[0] == 4


def test_dynamic_bound_after_a_rest():
    """A worker may lead by more than ever before, if the others have ended theirs for a checkpoint: no credit then."""
    strategy = Dssp(2, s=1, r_max=2)
    strategy.clocks = [9, 2]
    strategy.go_on({0, 1}, 5.0)
    strategy.push(1, 0, 6.0)
    strategy.push(0, 0, 6.5)
    assert strategy.credit == [0, 0]


def test_dynamic_bound_is_used_and_kept():
    run = simulate(Dssp(8, s=3, r_max=12), constant(8), 150)
    assert 3 < max(run.leads) <= 15
    assert run.pushes > simulate(Ssp(8, s=3), constant(8), 150).pushes


def test_dynamic_bound_is_for_the_fastest_only():
    strategy = Dssp(3, s=0, r_max=4)
    for worker in range(3):
        strategy.push(worker, 0, 1.0)
    assert strategy.push(0, 3, 1.5).answers == (0,)
    assert strategy.push(0, 4, 2.0).answers == ()  # the slowest is expected now
    assert strategy.push(1, 3, 1.5).answers == ()  # would be granted a step, were it the fastest


def label(strategy: Adsp, pushes: int) -> Decision | None:
    """The last worker pushes so often, each time 4 s after its answer; the others once a second."""
    n, decision = len(strategy.clocks), None
    for k in range(4 * pushes):
        for worker in range(n - 1):
            strategy.push(worker, strategy.version, k + 1.0)
        if (k + 1) % 4 == 0:
            decision = strategy.push(n - 1, max(0, strategy.version - 7), k + 1.0)
    return decision


@pytest.mark.parametrize("m", [1, 3])
def test_stragglers(m):
    options = dict(s=100, smax=100, slow_streak=m)
    strategy = Adsp(4, **options)
    label(strategy, m - 1)
    assert not strategy.slow(3) and strategy.states[3] == "async"
    strategy = Adsp(4, **options)
    assert label(strategy, m) == Decision(((3, 1 / 8),), True, (3,))
    assert strategy.states == ["async", "async", "async", "straggler"] and strategy.staleness == 7
    for kappa in (3.9, 4.1):
        strategy = Adsp(4, slow_factor=kappa, **options)
        label(strategy, m)
        assert strategy.slow(3) == (kappa < 4)
    strategy = Adsp(4, straggler_weight="one", **options)
    assert label(strategy, m) == Decision(((3, 1.0),), True, (3,))
    strategy = Adsp(4, straggler_weight="compensated", **options)
    assert label(strategy, m) == Decision(((3, 1.0),), True, (3,), (3,))
    strategy = Adsp(4, staleness_aware=True, **options)
    assert label(strategy, m).gathered == ((3, 1 / 7 / 8),)


def test_delays_are_those_of_the_worker_not_of_waiting():
    strategy = Adsp(2, s=0, smax=9, slow_factor=math.inf, delay_ema=0.25, start=100.0)
    strategy.push(0, 0, 101.0)
    strategy.push(1, 0, 110.0)
    assert strategy.delays == [1.0, 10.0]
    strategy.push(0, 1, 113.0)
    assert strategy.delays == [1.5, 10.0]


@every_seed
def test_whether_a_worker_is_slow_does_not_depend_on_the_unit_of_time(seed):
    options = dict(s=2, smax=4, slow_factor=1.2, slow_streak=1)
    delays = random(4, seed)
    seconds, eighths = (simulate(Adsp(4, **options), unit * delays, unit * 100.0) for unit in (1.0, 8.0))
    assert [(8 * now, worker) for now, worker in seconds.answers] == eighths.answers
    assert seconds.weights == eighths.weights and seconds.strategy.late == eighths.strategy.late


def test_a_straggler_no_longer_slow():
    strategy = Adsp(3, s=50, smax=50, slow_streak=2, delay_ema=1.0)
    label(strategy, 2)
    assert strategy.slow(2)
    strategy.push(2, strategy.version, strategy.pulled_at[2] + 1.0)
    assert not strategy.slow(2) and strategy.states[2] == "async"


def test_the_soft_threshold_is_passed_by_all_that_are_not_slow():
    """A constant straggler: the others keep step with each other until they lead by smax, and then with it."""
    run = simulate(Adsp(8, s=3, smax=15), constant(8), 40)
    assert max(run.leads) == 15
    run = simulate(Adsp(8, s=3, smax=15, slow_factor=math.inf), constant(8), 40)
    assert max(run.leads) == 3
    counts = [simulate(kind(8), constant(8), 150).pushes for kind in (Ssp, Adsp, Asp)]
    assert counts == sorted(counts) and counts[0] < counts[1] < counts[2]


def test_ahead_mode_apply_holds_answers_not_gradients():
    strategy = Adsp(2, s=1, smax=9, ahead_mode="apply")
    strategy.push(0, 0, 1.0)
    assert strategy.push(0, 1, 2.0) == Decision(((0, 1.0),), True, ())
    assert strategy.states[0] == "ahead" and strategy.buffer == {}
    assert strategy.push(1, 0, 2.0).answers == (0, 1)


@pytest.mark.parametrize("make", [lambda: Bsp(4), lambda: Adsp(4, s=0, smax=0), lambda: Adsp(4, s=2, smax=5)])
def test_order_of_arrival_makes_no_difference(make):
    """Bit for bit: a round's gradients are summed in the order of workers, whichever completed it."""
    results = set()
    for order in permutations(range(4)):
        strategy = make()
        run = Run(strategy)
        lead = int(getattr(strategy.options, "s", 0))
        if lead and order[-1] != 3:
            continue  # the push of the slowest leaves nobody ahead
        for worker in [0, 1, 2] * lead:
            run.pending[worker] = np.zeros(SIZE)
            apply(run, strategy.push(worker, strategy.version, 1.0), 4)
        for worker in order:
            run.pending[worker] = np.array([0.1, 1 / 3, 1e9]) * 3.0**-worker
            decision = strategy.push(worker, 0, 2.0)
            assert decision.update == (worker == order[-1])
            apply(run, decision, 4)
        results.add((run.w.tobytes(), decision))
    assert len(results) == 1


@every_seed
@every_strategy
def test_lost_workers(name, options, seed):
    """One after another is lost; the others go on, and what these have pushed is applied."""
    n, rng = 5, np.random.default_rng(seed)
    victims = rng.permutation(n)[: n - 1]
    deaths = [(int(i), 40.0 * (k + 1) + 5 * rng.random()) for k, i in enumerate(victims)]
    run = simulate(STRATEGIES[name](n, **options), random(n, seed), 400, seed, deaths)
    (survivor,) = run.strategy.active
    late = [worker for time, worker in run.answers if time > 190]
    assert set(late) == {survivor} and len(late) > 20  # at most 45 s of waiting for each
    assert not run.pending and not run.strategy.blocked


@every_seed
@every_strategy
def test_all_workers_lost(name, options, seed):
    deaths = [(i, 30.0 + i) for i in range(4)]
    run = simulate(STRATEGIES[name](4, **options), random(4, seed), 400, seed, deaths, timeout=seed)
    assert not run.strategy.active and not run.pending and not run.strategy.buffer


def test_a_gradient_of_a_lost_worker_counts_once():
    strategy = Bsp(3)
    strategy.push(0, 0, 1.0)
    assert strategy.lost(0, 2.0) == Decision()
    assert strategy.push(1, 0, 3.0) == Decision()
    assert strategy.push(2, 0, 4.0) == Decision(((0, 1.0), (1, 1.0), (2, 1.0)), True, (1, 2))
    assert strategy.push(1, 1, 5.0) == Decision()
    assert strategy.lost(2, 6.0) == Decision(((1, 1.0),), True, (1,))
    strategy = Adsp(2, s=0, smax=0)
    strategy.push(0, 0, 1.0)
    assert strategy.lost(0, 2.0) == Decision(((0, 1.0),), True, ())
    assert strategy.push(1, 0, 3.0) == Decision(((1, 1.0),), True, (1,))


def test_delay_compensation_of_all():
    strategy = Bsp(2, delay_compensation=True)
    strategy.push(1, 0, 1.0)
    assert strategy.push(0, 0, 1.0).compensated == (0, 1)
    assert Asp(2, delay_compensation=True).push(1, 0, 1.0).compensated == (1,)
    assert Asp(2).push(1, 0, 1.0).compensated == ()


@pytest.mark.parametrize(
    "name, options, message",
    [
        ("asp", dict(workers=0), "workers = 0: must be at least 1"),
        ("ssp", dict(s=-1), r"s\n.*greater than or equal to 0"),
        ("ssp", dict(s=1.5), "must be a whole number from 0, or inf"),
        ("ssp", dict(s=math.nan), "greater than or equal to 0"),
        ("dssp", dict(r_max=-1), r"r_max\n.*greater than or equal to 0"),
        ("dssp", dict(r_max=math.inf), r"r_max\n.*valid integer"),
        ("adsp", dict(smax=2), "smax = 2: must be at least s = 3"),
        ("adsp", dict(slow_factor=0), r"slow_factor\n.*greater than 0"),
        ("adsp", dict(slow_streak=0), r"slow_streak\n.*greater than or equal to 1"),
        ("adsp", dict(delay_ema=0), r"delay_ema\n.*greater than 0"),
        ("adsp", dict(delay_ema=1.1), r"delay_ema\n.*less than or equal to 1"),
        ("adsp", dict(straggler_weight="two"), r"straggler_weight\n.*'inverse', 'one' or 'compensated'"),
        ("adsp", dict(ahead_mode="wait"), r"ahead_mode\n.*'buffer' or 'apply'"),
    ],
)
def test_impossible_options(name, options, message):
    with pytest.raises(ValueError, match=message):
        STRATEGIES[name](**(dict(workers=4) | options))


def test_misuse():
    strategy = Bsp(3)
    with pytest.raises(RuntimeError, match="worker 1 pushed a gradient of version 1: the newest model has version 0"):
        strategy.push(1, 1, 1.0)
    strategy.push(1, 0, 1.0)
    with pytest.raises(RuntimeError, match="worker 1 pushed a gradient before its last push was answered"):
        strategy.push(1, 0, 2.0)
    strategy.lost(2, 3.0)
    with pytest.raises(RuntimeError, match="worker 2 is lost"):
        strategy.push(2, 0, 4.0)
    with pytest.raises(RuntimeError, match="worker 2 is lost"):
        strategy.lost(2, 4.0)
    with pytest.raises(RuntimeError, match="worker 3 is not one of the 3"):
        strategy.push(3, 0, 4.0)
    assert strategy.clocks == [0, 1, 0] and strategy.push(0, 0, 5.0).answers == (0, 1)
