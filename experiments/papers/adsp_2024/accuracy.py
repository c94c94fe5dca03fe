"""The comparison of the accuracies that the strategies of a parameter server reach after equally many samples."""

from experiments.papers.adsp_2024 import compared
from experiments.papers.adsp_2024.compared import CONFIGS, MAX_POINTS, OTHERS, OURS, RANDOM, UP_TO
from experiments.runner import decide, sample
from experiments.runner.conditions import Conditions
from experiments.runner.needs import Trainings
from experiments.runner.run_spec import SIMULATED
from experiments.tables.draw import Panel
from experiments.tables.numbers import final_accuracy
from experiments.tables.section import Section
from experiments.tables.targets import Found
from grsgd.runs.run_file import Run

UNLIKE, UNLIKE_SHARDS = "random delays, unlike shards", ("data.alpha=0.5",)
"""A condition in which classes are spread unevenly over the workers (Dirichlet), so that late gradients cost more."""
MARGIN = 1.0
"""Greatest loss of accuracy, in percentage points, that counts as no loss."""
ACCOUNTING = "mean test accuracy of the last three snapshots, on the whole test set, after the same number of samples"


def needs(conditions: Conditions) -> dict[tuple[str, str], Trainings]:
    wanted = [(delays.name, delays, ()) for delays in compared.deciding(conditions)]
    if not compared.is_small(conditions):
        wanted.append((UNLIKE, RANDOM, UNLIKE_SHARDS))
    return {
        (condition, name): compared.training(conditions, name, delays, SIMULATED, overrides)
        for condition, delays, overrides in wanted
        for name in CONFIGS
    }


def show(found: Found, section: Section) -> None:
    final = {key: sample.of(runs, final_accuracy) for key, runs in found.items()}
    conditions = list(dict.fromkeys(condition for condition, _ in found))
    section.figure(
        "Test accuracy by samples of all workers.",
        [
            Panel(
                condition,
                "samples [thousands]",
                "test accuracy [%]",
                curves={name: dict(map(curve, found[condition, name])) for name in CONFIGS},
            )
            for condition in conditions
        ],
        times=False,
    )
    section.table(
        f"Test accuracy [%] at the end, {compared.where(found.conditions)}.",
        ["delays", *CONFIGS],
        [[condition, *(final[condition, name].text(".2f") for name in CONFIGS)] for condition in conditions],
    )
    pairs = [(final[where, OURS], final[where, other], where, other) for where in conditions for other in OTHERS]
    section.finding(
        "adsp-accuracy",
        f"{ACCOUNTING}. {UP_TO}",
        compared.against_range([decide.more(*pair, source="", pairs=True) for pair in pairs], None, MAX_POINTS),
        "All strategies take the same step per sample, so late gradients cost little accuracy.",
    )
    section.finding(
        "adsp-no-loss",
        f"{ACCOUNTING}; a loss of less than {MARGIN:g} point does not count",
        [decide.no_worse(*pair, margin=MARGIN, source="", pairs=True) for pair in pairs],
        "Gradients that are late, or have a smaller weight, change the training.",
    )
    section.note(compared.DELAYS_NOTE)


def curve(run: Run) -> tuple:
    """Return the run's seed and its curve: at each snapshot, thousands of samples and the accuracy in per cent."""
    return run.attributes["seed"], (run.curve["samples"] / 1000, 100 * run.curve["test_accuracy"])
