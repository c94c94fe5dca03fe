"""The comparison of times if adsp has other rules, which the paper's abstract allows, too."""

from itertools import islice

from experiments.papers.adsp_2024 import compared
from experiments.papers.adsp_2024.compared import MIN_SAVING, OTHERS, OURS, RANDOM
from experiments.papers.adsp_2024.convergence_time import REASON
from experiments.papers.adsp_2024.speed import lasting_times
from experiments.runner import decide, sample
from experiments.runner.conditions import Conditions
from experiments.runner.needs import Trainings
from experiments.runner.run_spec import SIMULATED
from experiments.tables.numbers import final_accuracy, mean_staleness
from experiments.tables.section import Section
from experiments.tables.targets import Found

RULES = {
    "as reconstructed": (),
    "gradients of workers AHEAD applied at once": ('algorithm.ahead_mode="apply"',),
    "stragglers' gradients count fully": ('algorithm.straggler_weight="one"',),
    "slow by the last delay alone": ("algorithm.slow_streak=1", "algorithm.delay_ema=1.0"),
    "lower thresholds": ("algorithm.s=1", "algorithm.smax=5"),
    "higher thresholds": ("algorithm.s=6", "algorithm.smax=30"),
    "no hard bound beyond the threshold": ("algorithm.smax=3",),
    "stragglers' gradients compensated": ('algorithm.straggler_weight="compensated"',),
    "slow from 3 times the median on": ("algorithm.slow_factor=3.0",),
}
"""Rules which the paper's abstract leaves open, as overrides of the configuration, by name of the rule."""
FEW = 4
"""Number of the rules in ``RULES`` that are tried in small experiments."""


def needs(conditions: Conditions) -> dict[str, Trainings]:
    rules = islice(RULES.items(), FEW if compared.is_small(conditions) else None)
    wanted = [(rule, OURS, overrides) for rule, overrides in rules] + [(other, other, ()) for other in OTHERS]
    return {key: compared.training(conditions, name, RANDOM, SIMULATED, overrides) for key, name, overrides in wanted}


def show(found: Found, section: Section) -> None:
    times = {name: lasting_times(runs) for name, runs in found.items()}
    section.table(
        f"Random delays, {compared.where(found.conditions)}: adsp with one rule replaced, and the other strategies.",
        ["rule", "options", "to accuracy [s]", "mean staleness", "accuracy at the end [%]"],
        [
            [
                name,
                " ".join(RULES.get(name, ())),
                times[name].text(),
                sample.of(runs, mean_staleness).text(),
                sample.of(runs, final_accuracy).text(".2f"),
            ]
            for name, runs in found.items()
        ],
    )
    section.finding(
        "adsp-options",
        "time to the target accuracy, computed as samples to the target times seconds per sample in the second half of "
        f"the training; random delays, {compared.where(found.conditions)}; every rule has the learning rate that was "
        "tuned for the rules as reconstructed",
        [
            decide.less(times[rule], times[other], rule, other, number=MIN_SAVING, pairs=True)
            for rule in found
            for other in OTHERS
            if rule in RULES
        ],
        REASON,
    )
    section.note(compared.DELAYS_NOTE)
