"""The effect of adsp's threshold s on speed, staleness, time and accuracy."""

from itertools import pairwise

from experiments.papers.adsp_2024 import compared
from experiments.papers.adsp_2024.compared import CONFIGS, OURS, RANDOM
from experiments.papers.adsp_2024.speed import lasting_times, seconds_per_gradient
from experiments.runner import decide, sample
from experiments.runner.conditions import Conditions
from experiments.runner.needs import Trainings
from experiments.runner.run_spec import SIMULATED
from experiments.runner.sample import Sample
from experiments.tables.draw import Panel
from experiments.tables.numbers import final_accuracy, mean_staleness
from experiments.tables.section import Section
from experiments.tables.targets import Found

THRESHOLDS, RATIO = (0, 1, 3, 6, 15), 5
"""Values of the threshold s, and the ratio smax / s, which is the ratio of the algorithm's default options."""
ENDS = ("BSP", "ASP")


def needs(conditions: Conditions) -> dict[int | str, Trainings]:
    """Return the specifications of the trainings, by threshold.

    BSP and ASP, the strategies at the ends of the range of thresholds, are added by name.
    """
    thresholds = THRESHOLDS[::2] if compared.is_small(conditions) else THRESHOLDS
    swept = {s: (OURS, bounds(conditions, s)) for s in thresholds}
    return {
        key: compared.training(conditions, name, RANDOM, SIMULATED, overrides)
        for key, (name, overrides) in (swept | {end: (end, ()) for end in ENDS}).items()
    }


def bounds(conditions: Conditions, s: int) -> tuple[str, ...]:
    """Return the overrides for a threshold.

    For the threshold in adsp.toml, no overrides are returned, so that several targets share the run.
    """
    options = conditions.load(CONFIGS[OURS]).algorithm_options
    wanted = {"s": s, "smax": RATIO * s}
    return tuple(f"algorithm.{key}={value}" for key, value in wanted.items() if getattr(options, key) != value)


def show(found: Found, section: Section) -> None:
    seconds = {key: sample.of(runs, seconds_per_gradient) for key, runs in found.items()}
    stale = {key: sample.of(runs, mean_staleness) for key, runs in found.items()}
    times = {key: lasting_times(runs) for key, runs in found.items()}
    section.figure(
        f"adsp with growing thresholds s, between BSP and ASP, with random delays; smax is {RATIO} s.",
        [
            panel("speed", "seconds per gradient", seconds),
            panel("staleness", "mean staleness [updates]", stale),
            panel("both together", "time to accuracy [s]", times),
        ],
    )
    section.table(
        f"Random delays, {compared.where(found.conditions)}.",
        ["strategy", "seconds per gradient", "mean staleness", "to accuracy [s]", "accuracy at the end [%]"],
        [
            [
                words(key),
                *(of[key].text() for of in (seconds, stale, times)),
                sample.of(runs, final_accuracy).text(".2f"),
            ]
            for key, runs in found.items()
        ],
    )
    steps = list(pairwise(key for key in found if key not in ENDS))
    section.finding(
        "adsp-threshold",
        "seconds per gradient of all workers in the second half of the training, and mean staleness of gradients; "
        f"{compared.where(found.conditions)}",
        [
            decide.less(seconds[b], seconds[a], f"speed, {words(b)}", words(a), "% less time per gradient")
            for a, b in steps
        ]
        + [
            decide.more(stale[b], stale[a], f"staleness, {words(b)}", words(a), "updates more", source="")
            for a, b in steps
        ],
        "If a small threshold already bridges the delays, a larger threshold saves no more time.",
    )
    section.note(compared.DELAYS_NOTE)


def words(key: int | str) -> str:
    return key if key in ENDS else f"s = {key}"


def panel(title: str, of: str, samples: dict[int | str, Sample]) -> Panel:
    swept = {s: found for s, found in samples.items() if s not in ENDS}
    return Panel(title, "threshold s", of, lines={OURS: swept}, levels={end: samples[end] for end in ENDS})
