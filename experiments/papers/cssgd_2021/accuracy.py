"""Table 2 and figures 4 to 7 of the CSSGD paper: accuracies of CSSGD, SSGD, ASGD and a single rank."""

from dataclasses import replace

import numpy as np

from experiments.papers.cssgd_2021 import tasks
from experiments.papers.cssgd_2021.tasks import ALONE, ASGD, CNN, DNN, MULTICAST, RING, SWITCH, Task
from experiments.runner import decide, sample
from experiments.runner.needs import Trainings, Trajectories, to_target
from experiments.runner.outcome import CONTROL, EVIDENCE, INCONCLUSIVE, Case
from experiments.runner.sample import Sample
from experiments.tables.draw import Panel
from experiments.tables.numbers import final_accuracy
from experiments.tables.section import Section
from experiments.tables.targets import Found
from grsgd.runs.run_file import Run

NEAR = 5.0
"""Greatest distance in percentage points from the final accuracy that counts as near.

The 5 percentage points are inferred, because the paper states no number.
"""
AROUND = 4
"""Number of snapshots shown before the target accuracy and after it, in the figures about the benchmark accuracy."""
TOGETHER = "CSSGD and SSGD"
"""Name of the training that stands for all algorithms which apply the same gradient."""


def final(runs: list[Run]) -> Sample:
    return sample.of(runs, final_accuracy)


def whole(found: Found, task: Task, case: Case) -> Case:
    """Return ``case`` (a comparison), undecided if trainings of this scale end below the paper's benchmark accuracy."""
    if task.is_whole(found.conditions):
        return case
    return undecided(case, f"trained to {task.target(found.conditions):.0%} at this scale, not to the end")


def trained(found: Found, task: Task, case: Case, *finals: Sample) -> Case:
    """Return ``case`` (a comparison), undecided if all final accuracies are below the paper's benchmark accuracy.

    Without this rule, algorithms whose trainings have failed would count as equally accurate.
    """
    reached = max((final.median() for final in finals if final.known), default=0.0)
    if reached >= 100 * task.benchmark:
        return whole(found, task, case)
    return undecided(case, f"trained to {reached:.1f} %, below the benchmark of {task.benchmark:.0%}")


def undecided(case: Case, why: str) -> Case:
    return replace(case, verdict=INCONCLUSIVE, note="; ".join(filter(None, [case.note, why])))


# ---- functions for table 2 of the paper


def single_needs(conditions) -> dict:
    trained = (*tasks.variants(conditions, DNN), CNN)
    return {task: Trajectories(tasks.alone(conditions, task), tasks.FEWER_RUNS) for task in trained}


def show_single(found: Found, section: Section):
    n, rows, cases = found.conditions.scale.tuning_ranks, [], []
    for task, runs in found.items():
        epochs = found.conditions.load(task.config(RING), task.overrides).train.epochs
        rows.append([task.name, final(runs).text(".1f"), f"{100 * task.benchmark:g}", f"{epochs:g}"])
        case = decide.at_least(final(runs), 100 * task.benchmark, task.name, "% of test images", "the benchmark", "")
        cases.append(whole(found, task, case))
    headers = ["model", "final", "benchmark", "epochs"]
    section.table(f"Test accuracy of one rank on {n} classes, in per cent.", headers, rows)
    section.finding("cssgd-single", f"test accuracy, mean of the last snapshots, one rank, {n} classes", cases)


# ---- functions for figures 4 to 7 of the paper


def curve_needs(task: Task, conditions) -> dict:
    n = conditions.scale.tuning_ranks
    found = tasks.steps(conditions, task, [SWITCH], lambda n, network: [MULTICAST, *tasks.perhaps_fastest(n)])
    found = {key: need for key, need in found.items() if key[-1] == n}
    for variant in tasks.variants(conditions, task):
        found[variant, TOGETHER] = Trajectories(tasks.setting(conditions, variant, RING, n))
        found[variant, ASGD.name] = Trainings(tasks.setting(conditions, variant, ASGD, n))
        found[variant, ALONE] = Trajectories(tasks.alone(conditions, variant), tasks.FEWER_RUNS)
    return found


def show_curves(task: Task, found: Found, section: Section):
    draw_curves(task, found, section)
    pairs = (
        (ASGD.name, TOGETHER, EVIDENCE),
        (TOGETHER, ASGD.name, EVIDENCE),
        (TOGETHER, ALONE, CONTROL),
        (ASGD.name, ALONE, CONTROL),
    )
    cases = []
    for variant in tasks.variants(found.conditions, task):
        for ours, theirs, kind in pairs:
            both = [final(found[variant, name]) for name in (ours, theirs)]
            case = decide.no_worse(*both, f"{variant.name}, {ours}", theirs, source="", kind=kind)
            cases.append(trained(found, variant, case, *both))
    accounting = (
        "test accuracy, mean of the last snapshots, after the same number of samples; a loss of up to 1 point does not "
        "count, on either side. Undecided if no algorithm has trained to the benchmark accuracy"
    )
    section.finding("cssgd-final", accounting, cases)


def show_benchmark(task: Task, found: Found, section: Section):
    draw_curves(task, found, section, AROUND)
    cases = []
    for variant in tasks.variants(found.conditions, task):
        for name in (TOGETHER, ASGD.name):
            reached = final(found[variant, name])
            apart = reached.map(lambda accuracy: abs(accuracy - 100 * task.benchmark))
            case = decide.at_most(apart, NEAR, f"{variant.name}, {name}", "points away", "the benchmark", "")
            cases.append(trained(found, variant, case, reached))
    accounting = (
        f"distance of the final test accuracy from the benchmark, above or below: at most {NEAR:g} points. Undecided "
        "if the training ends below the benchmark"
    )
    reason = "Whether the algorithms differ most near the benchmark is shown, not decided."
    section.finding("cssgd-benchmark", accounting, cases, reason)


def draw_curves(task: Task, found: Found, section: Section, around: int | None = None):
    """Draw the test accuracy over time, and write a table of the seconds to the target accuracy.

    around: number of snapshots to show before and after the target accuracy is reached; None for all.
    """
    n, panels, rows = found.conditions.scale.tuning_ranks, [], []
    for variant in tasks.variants(found.conditions, task):
        batch, target = n * variant.batch(found.conditions), variant.target(found.conditions)
        best = tasks.fastest(found, task, SWITCH, tasks.perhaps_fastest(n), n)
        steps = {method: tasks.step_seconds(found, task, SWITCH, method, n) for method in (best, MULTICAST)}
        parts = {
            method.name: (found[variant, TOGETHER], "samples", seconds.median() / batch)
            for method, seconds in steps.items()
        }
        parts[ASGD.name] = found[variant, ASGD.name], "time", 1.0
        curves = {}
        for label, (runs, column, unit) in parts.items():
            curves[label] = {run.attributes["seed"]: curve(run, column, unit, around) for run in runs}
            rows.append([variant.name, label, to_target(runs, column).scaled(unit).text()])
        panels.append(Panel(variant.name, "time [s]", "test accuracy", curves=curves, levels={f"{target:.0%}": target}))
    section.figure(f"Test accuracy over time, {n} nodes on a switch; CSSGD with the fastest r.", panels)
    section.table("Seconds to the target accuracy.", ["model", "algorithm", "time [s]"], rows)
    tasks.notes(section, found.conditions, task)


def curve(run: Run, column: str, unit: float, around: int | None) -> tuple:
    """Return the x and y values of a run's curve, of all snapshots or of those around the target accuracy."""
    accuracy = run.curve["test_accuracy"]
    reached = np.flatnonzero(accuracy >= run.attributes["target_accuracy"])
    middle = int(reached[0]) if reached.size else len(accuracy) - 1
    part = slice(None) if around is None else slice(max(0, middle - around), middle + around + 1)
    return unit * run.curve[column][part], accuracy[part]
