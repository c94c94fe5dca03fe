"""Figures 4 to 7: test accuracy over time."""

from experiments.papers.cssgd_2021.over_nodes import best_of, redundancies
from experiments.papers.cssgd_2021.tasks import (
    ASGD,
    COPIES,
    MULTICAST,
    NETWORKS,
    TRUE_MULTICAST,
    Setup,
    Task,
    coded,
    grouped,
    seconds,
    step,
)
from experiments.tables.compare import MIN_DIFFERENCE_NOTE, SHARED_TRAJECTORY_NOTE, savings_range
from experiments.tables.draw import Panel
from experiments.tables.numbers import is_less, median_and_range, saving
from experiments.tables.requests import EQUAL, MIN_DIFFERENCE_PERCENT
from experiments.tables.run_spec import SIMULATED
from grsgd.runs.measures import samples_to_target, snapshot_at_target

SNAPSHOTS_AROUND_TARGET = 4
"""Snapshots before and after the target is reached, in the figures about the benchmark accuracy."""
OURS, THEIRS = ("CSSGD (best r)", "grouped-rs (best r)"), ("SSGD by multicast", "ASGD")


def accuracy_over_time(task: Task, zoom: bool, requests, section):
    n, target = requests.scale.tuning_ranks, task.target(requests)
    batch = n * requests.load(f"{task.folder}/ring_allreduce").data.batch_size
    same_gradient = requests.curves(f"{task.folder}/ring_allreduce", n, MULTICAST.extra(n), task.seeds(requests))
    asgd = requests.runs(f"{task.folder}/asgd", n, SIMULATED, EQUAL, ASGD.extra(n), task.seeds(requests))
    panels, rows, measured, cases = [], [], [], {}
    for setup in (TRUE_MULTICAST, COPIES):
        best = steps(requests, task, n, setup)
        times = {
            name: [samples_to_target(run) / batch * a_step for run in same_gradient] or [a_step]
            for name, (_, a_step) in best.items()
        }
        times["ASGD"] = seconds(requests, task, ASGD, n, setup)
        curves = {
            name: [shown(run, run.curve["samples"] / batch * a_step, zoom) for run in same_gradient]
            for name, (_, a_step) in best.items()
        }
        curves["ASGD"] = [shown(run, run.curve["time"], zoom) for run in asgd]
        panels.append(Panel(setup.name, "time [s]", "test accuracy", curves=curves, mark=(target, f"{target:.0%}")))
        chosen = {name: f" (r = {best[name][0]})" for name in OURS}
        rows.append([setup.name, *(median_and_range(times[name]) + chosen.get(name, "") for name in (*OURS, *THEIRS))])
        pairs = [(ours, theirs) for ours in OURS for theirs in THEIRS]
        for theirs in THEIRS:
            cases[f"{setup.name}, against {theirs}"] = is_less(
                times[OURS[0]], times[theirs], MIN_DIFFERENCE_PERCENT[SIMULATED]
            )
        savings = [
            f"{ours} {savings_range([saving(times[ours], times[theirs])])} than {theirs}" for ours, theirs in pairs
        ]
        measured.append(f"{setup.name}: " + ", ".join(savings))
    section.figure(f"Test accuracy over time, {n} nodes and as many classes; a curve a seed.", panels)
    section.table(
        f"Seconds to a test accuracy of {target:.0%}, {n} nodes: median (range) of the seeds.",
        ["network", *OURS, *THEIRS],
        rows,
    )
    reason = (
        "Coded blocks cannot be added up before they are sent, so that more is sent than by SSGD unless r = n-1; and a "
        "node computes r times as much."
    )
    accounting = (
        f"time to {target:.0%} of CSSGD, {n} nodes, simulated; the best of r = {', '.join(map(str, redundancies(n)))}; "
        f"{MIN_DIFFERENCE_NOTE}"
    )
    section.finding("cssgd-curves", "; ".join(measured), accounting, cases, reason)
    section.note(SHARED_TRAJECTORY_NOTE.format("CSSGD, SSGD and the grouped schemes"))
    section.note(NETWORKS)
    section.note(f"The paper's benchmark is {task.benchmark:.0%}.")


def steps(requests, task: Task, n: int, setup: Setup) -> dict[str, tuple[int | None, float]]:
    """Return the best r of each synchronous method, and the seconds of a step with it."""
    return {
        "CSSGD (best r)": best_of({r: step(requests, task, coded(r), n, setup) for r in redundancies(n)}),
        "grouped-rs (best r)": best_of({r: step(requests, task, grouped(r), n, setup) for r in redundancies(n)}),
        "SSGD by multicast": (None, step(requests, task, MULTICAST, n, setup)),
    }


def shown(run, times, zoom: bool):
    """x and y of a curve, as a whole or about the target accuracy."""
    accuracy, at = run.curve["test_accuracy"], snapshot_at_target(run)
    if not zoom:
        return times, accuracy
    at = len(times) - 1 if at is None else at
    part = slice(max(0, at - SNAPSHOTS_AROUND_TARGET), at + SNAPSHOTS_AROUND_TARGET + 1)
    return times[part], accuracy[part]
