"""Comparisons of strategies of a parameter server with delayed workers, by scale (size of the experiment)."""

from collections.abc import Sequence
from dataclasses import dataclass

from experiments import papers
from experiments.runner import decide
from experiments.runner.conditions import Conditions
from experiments.runner.needs import Trainings
from experiments.runner.outcome import EVIDENCE, Case
from experiments.runner.run_spec import MEASURED, SIMULATED, TIMING_ONLY
from experiments.runner.setting import Scenario, Setting
from experiments.tables.claims import read_claims
from experiments.tables.wording import SOURCES

CONFIGS = {"ADSP": "adsp/adsp", "BSP": "adsp/bsp", "ASP": "adsp/asp", "SSP": "adsp/ssp", "DSSP": "adsp/dssp"}
OURS, *OTHERS = CONFIGS
CLAIMS = read_claims([papers.folder("adsp")])
MIN_SAVING, MAX_SAVING = CLAIMS["adsp-time"]["low"], CLAIMS["adsp-time"]["high"]
MAX_POINTS = CLAIMS["adsp-accuracy"]["high"]
UP_TO = (
    "The paper's numbers are the ends of a range over strategies that the paper does not name. So the greatest effect "
    "here is compared with the paper's greatest number, and the least effect with the least number, if there is one; "
    "all other effects are judged by their direction alone. The greatest of several estimates is more often too great "
    "than too small"
)

SLOW = 1
"""Number of the worker that computes every step more slowly in some runs."""
STEP_SECONDS = {"desk": 0.1}
DEFAULT_STEP_SECONDS = 0.005
"""Approximate seconds of a worker's step, by the scale's name.

At SCALE=desk, a step of the CNN on a fifth of a core takes about 0.1 s. The default step time holds for the very small
network, and approximately for the CNN on a GPU.
"""
DESK_SEEDS = 10
"""Number of seeds of the trainings that decide a claim at SCALE=desk."""
SMALL = ("tiny", "smoke", "desk")
"""Scales (sizes of experiments) in which the least important comparisons are left out."""


@dataclass(frozen=True)
class Delays:
    """The delays of the workers in a run; the server has no delays.

    factor: how many times more slowly worker ``SLOW`` computes. probability: probability with which a step of any
    worker takes longer. steps: mean additional time of a longer step, in steps; the additional times are exponentially
    distributed.
    """

    name: str
    factor: float = 1.0
    probability: float = 0.0
    steps: float = 10.0

    def scenario(self, conditions: Conditions, workers: int) -> Scenario:
        step = STEP_SECONDS.get(conditions.scale.name, DEFAULT_STEP_SECONDS)
        tail = {"probability": self.probability, "seconds": self.steps * step}
        delayed = range(workers) if self.probability else ()
        overrides = (f"stragglers.tail.{rank}.{key}={value}" for rank in delayed for key, value in tail.items())
        slow = ((SLOW, self.factor),) if self.factor > 1 and workers > SLOW else ()
        return Scenario(self.name, tuple(overrides), slow_hosts=slow)


NONE = Delays("equal workers")
CONSTANT = Delays("one slow worker", factor=4.0)
RANDOM = Delays("random delays", probability=0.05)
BOTH = Delays("both", factor=4.0, probability=0.05)
DELAYED = (CONSTANT, RANDOM, BOTH)
DELAYS_NOTE = (
    f"One slow worker: worker {SLOW} computes {CONSTANT.factor:g} times slower; in measured runs, its host has a share "
    f"of a processor that is {CONSTANT.factor:g} times smaller. Random delays: a step of any worker takes longer with "
    f"probability {RANDOM.probability:g}, by {RANDOM.steps:g} steps on average, exponentially distributed; the worker "
    "sleeps. n is the number of workers; the server is one more rank. All strategies take the same step per sample."
)


def is_small(conditions: Conditions) -> bool:
    return conditions.scale.name in SMALL


def deciding(conditions: Conditions) -> tuple[Delays, ...]:
    """Return the delays of the workers with which strategies are compared in simulated time."""
    return (RANDOM, CONSTANT) if is_small(conditions) else (NONE, *DELAYED)


def measured(conditions: Conditions) -> list[tuple[Delays, str]]:
    """Return pairs of delays and a strategy's name: the measured runs in which strategies are compared."""
    delays, names = ((RANDOM,), (OURS, "BSP", "ASP")) if is_small(conditions) else ((RANDOM, CONSTANT), CONFIGS)
    n = workers(conditions, MEASURED)
    return [(d, name) for d in delays if conditions.can_be(MEASURED, d.scenario(conditions, n)) for name in names]


def against_range(cases: Sequence[Case], least: float | None, most: float) -> list[Case]:
    """Return ``cases`` (comparisons), with the paper's numbers added to two of them for each source of times.

    For each source of times (simulated or measured), the greatest effect is compared with the paper's greatest number.
    For each source of times, the least effect is compared with the paper's least number, if the paper states one.
    """
    ends: dict[Case, float] = {}
    for source in dict.fromkeys(case.source for case in cases):
        known = [case for case in cases if (case.source, case.kind) == (source, EVIDENCE) and case.estimate is not None]
        known.sort(key=lambda case: case.estimate)
        ends |= {case: least for case in known[:1] if least is not None} | dict.fromkeys(known[-1:], most)
    return [decide.against_number(case, ends[case]) if case in ends else case for case in cases]


def workers(conditions: Conditions, source: str = SIMULATED) -> int:
    """Return the number of workers in runs with the given source of times (simulated or measured)."""
    return min(conditions.scale.clock_ranks) if source == MEASURED else conditions.scale.tuning_ranks


def where(conditions: Conditions, source: str = SIMULATED) -> str:
    """Return the source of times (simulated or measured) and the number of workers as text."""
    return f"{SOURCES[source]}, n = {workers(conditions, source)}"


def training(
    conditions: Conditions, name: str, delays: Delays, source: str = SIMULATED, overrides: tuple[str, ...] = ()
) -> Trainings:
    """Return the specification of trainings with the strategy ``name`` and the given delays."""
    n = workers(conditions, source)
    tuned_with = () if source == TIMING_ONLY else tuned_under(conditions, delays)
    setting = Setting(CONFIGS[name], n, source, delays.scenario(conditions, n), overrides, tuned_with=tuned_with)
    return Trainings(setting, seeds(conditions, source, deciding=not overrides))


def tuned_under(conditions: Conditions, delays: Delays) -> tuple[str, ...]:
    """Return the overrides of the runs that tune learning rates, which add the delays of the workers.

    Tuning needs the delays, because without delays all strategies except BSP are the same algorithm.
    """
    scenario = delays.scenario(conditions, conditions.scale.tuning_ranks)
    return (*scenario.overrides, *(f"stragglers.slowdown.{rank}={factor}" for rank, factor in scenario.slow_hosts))


def seeds(conditions: Conditions, source: str, deciding: bool) -> int | None:
    """Return the number of seeds of a training.

    Measured runs have three seeds, and simulated trainings that decide a claim at SCALE=desk have ten. For trainings
    that are neither measured nor decide a claim, None is returned, so that the scale (size of the experiment)
    determines the number of seeds. Measured runs have few seeds, because they take minutes each.
    """
    if not is_small(conditions):
        return None
    if source == MEASURED:
        return 3
    return DESK_SEEDS if conditions.scale.name == "desk" and source == SIMULATED and deciding else None
