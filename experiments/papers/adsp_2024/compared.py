"""Comparisons of strategies: the delays of their workers, and how much of it at which scale."""

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
LEAST_SAVING, MOST_SAVING = CLAIMS["adsp-time"]["low"], CLAIMS["adsp-time"]["high"]
MOST_POINTS = CLAIMS["adsp-accuracy"]["high"]
UP_TO = (
    "The paper's numbers are the ends of a range over strategies that it does not name: the greatest is held against "
    "the greatest effect here, the least against the least, and all others have a direction alone. The greatest of "
    "several estimates is more often too great than too small."
)

SLOW = 1
"""The worker that is slow all the time."""
STEP_SECONDS = {"desk": 0.1}
DEFAULT_STEP_SECONDS = 0.005
"""About how long a worker computes in a step, by the scale's name: the CNN with a fifth of a core. By default that of
the very small network, and what we take for the CNN on a GPU."""
DESK_SEEDS = 10
"""Of trainings at SCALE=desk that decide."""
SMALL = ("tiny", "smoke", "desk")
"""Scales that leave out what decides least."""


@dataclass(frozen=True)
class Delays:
    """The delays of workers; the server has none.

    factor: how many times slower worker ``SLOW`` computes. probability: that a step of any worker takes longer. steps:
    by how many steps on average, exponentially distributed.
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
    f"One slow worker: worker {SLOW} computes {CONSTANT.factor:g} times slower, by the clock on a host with so much "
    f"less of a processor. Random delays: a step of any worker takes longer with probability {RANDOM.probability:g}, "
    f"by {RANDOM.steps:g} steps on average, exponentially distributed; the worker sleeps. n is the number of workers; "
    "the server is one rank more. All strategies take the same step per sample."
)


def is_small(conditions: Conditions) -> bool:
    return conditions.scale.name in SMALL


def deciding(conditions: Conditions) -> tuple[Delays, ...]:
    """Return the delays with which strategies are compared in trainings."""
    return (RANDOM, CONSTANT) if is_small(conditions) else (NONE, *DELAYED)


def measured(conditions: Conditions) -> list[tuple[Delays, str]]:
    """Return the delays and the strategies, by name, that are compared by the clock."""
    delays, names = ((RANDOM,), (OURS, "BSP", "ASP")) if is_small(conditions) else ((RANDOM, CONSTANT), CONFIGS)
    n = workers(conditions, MEASURED)
    return [(d, name) for d in delays if conditions.can_be(MEASURED, d.scenario(conditions, n)) for name in names]


def against_range(cases: Sequence[Case], least: float | None, most: float) -> list[Case]:
    """Return the cases; of those of a source of times that with the greatest estimate of the evidence is held against
    the paper's greatest number, that with the least against its least, if there is one."""
    ends: dict[Case, float] = {}
    for source in dict.fromkeys(case.source for case in cases):
        known = [case for case in cases if (case.source, case.kind) == (source, EVIDENCE) and case.estimate is not None]
        known.sort(key=lambda case: case.estimate)
        ends |= {case: least for case in known[:1] if least is not None} | dict.fromkeys(known[-1:], most)
    return [decide.against_number(case, ends[case]) if case in ends else case for case in cases]


def workers(conditions: Conditions, source: str = SIMULATED) -> int:
    """Return how many workers there are in runs of this source of times."""
    return min(conditions.scale.clock_ranks) if source == MEASURED else conditions.scale.tuning_ranks


def where(conditions: Conditions, source: str = SIMULATED) -> str:
    """Return the source of times and the number of workers in words."""
    return f"{SOURCES[source]}, n = {workers(conditions, source)}"


def training(
    conditions: Conditions, name: str, delays: Delays, source: str = SIMULATED, overrides: tuple[str, ...] = ()
) -> Trainings:
    """Return the need of trainings with a strategy."""
    n = workers(conditions, source)
    tuned_with = () if source == TIMING_ONLY else tuned_under(conditions, delays)
    setting = Setting(CONFIGS[name], n, source, delays.scenario(conditions, n), overrides, tuned_with=tuned_with)
    return Trainings(setting, seeds(conditions, source, deciding=not overrides))


def tuned_under(conditions: Conditions, delays: Delays) -> tuple[str, ...]:
    """Return the overrides of the trials of learning rates: the delays themselves, without which all strategies but BSP
    are one algorithm."""
    scenario = delays.scenario(conditions, conditions.scale.tuning_ranks)
    return (*scenario.overrides, *(f"stragglers.slowdown.{rank}={factor}" for rank, factor in scenario.slow_hosts))


def seeds(conditions: Conditions, source: str, deciding: bool) -> int | None:
    """Return three by the clock, where runs take minutes each, and ten of simulated trainings that decide; None for the
    scale's."""
    if not is_small(conditions):
        return None
    if source == MEASURED:
        return 3
    return DESK_SEEDS if conditions.scale.name == "desk" and source == SIMULATED and deciding else None
