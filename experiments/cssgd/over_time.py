"""Figures 4 to 7: test accuracy over time."""

from experiments.cssgd.family import (
    ASGD,
    COPIES,
    MULTICAST,
    NETWORKS,
    TRUE_MULTICAST,
    Family,
    Way,
    coded,
    grouped,
    seconds,
    step,
)
from experiments.cssgd.over_nodes import best_of, redundancies
from experiments.reproduce.cell import SIMULATED
from experiments.reproduce.compare import LESS_TIME, SHARED_TRAJECTORY, extent
from experiments.reproduce.draw import Panel
from experiments.reproduce.lab import A_DIFFERENCE, EQUAL, less, reached, samples_to, saving, spread

AROUND = 4
"""Snapshots before and after the target is reached, in the figures about the benchmark accuracy."""
OURS, THEIRS = ("CSSGD (best r)", "grouped-rs (best r)"), ("SSGD by multicast", "ASGD")


def accuracy_over_time(family: Family, zoom: bool, lab, page):
    n, target = lab.scale.tuning_ranks, family.target(lab)
    batch = n * lab.load(f"{family.folder}/ring_allreduce").data.batch_size
    same_gradient = lab.curves(f"{family.folder}/ring_allreduce", n, MULTICAST.extra(n), family.seeds(lab))
    asgd = lab.runs(f"{family.folder}/asgd", n, SIMULATED, EQUAL, ASGD.extra(n), family.seeds(lab))
    panels, rows, measured, cases = [], [], [], {}
    for way in (TRUE_MULTICAST, COPIES):
        best = steps(lab, family, n, way)
        times = {
            name: [samples_to(run) / batch * a_step for run in same_gradient] or [a_step]
            for name, (_, a_step) in best.items()
        }
        times["ASGD"] = seconds(lab, family, ASGD, n, way)
        curves = {
            name: [shown(run, run.curve["samples"] / batch * a_step, zoom) for run in same_gradient]
            for name, (_, a_step) in best.items()
        }
        curves["ASGD"] = [shown(run, run.curve["time"], zoom) for run in asgd]
        panels.append(Panel(way.name, "time [s]", "test accuracy", curves=curves, mark=(target, f"{target:.0%}")))
        chosen = {name: f" (r = {best[name][0]})" for name in OURS}
        rows.append([way.name, *(spread(times[name]) + chosen.get(name, "") for name in (*OURS, *THEIRS))])
        pairs = [(ours, theirs) for ours in OURS for theirs in THEIRS]
        for theirs in THEIRS:
            cases[f"{way.name}, against {theirs}"] = less(times[OURS[0]], times[theirs], A_DIFFERENCE[SIMULATED])
        savings = [f"{ours} {extent([saving(times[ours], times[theirs])])} than {theirs}" for ours, theirs in pairs]
        measured.append(f"{way.name}: " + ", ".join(savings))
    page.figure(f"Test accuracy over time, {n} nodes and as many classes; a curve a seed.", panels)
    page.table(
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
        f"{LESS_TIME}"
    )
    page.finding("cssgd-curves", "; ".join(measured), accounting, cases, reason)
    page.note(SHARED_TRAJECTORY.format("CSSGD, SSGD and the grouped schemes"))
    page.note(NETWORKS)
    page.note(f"The paper's benchmark is {family.benchmark:.0%}.")


def steps(lab, family: Family, n: int, way: Way) -> dict[str, tuple[int | None, float]]:
    """Of the synchronous algorithms: the best r, and the seconds of a step."""
    return {
        "CSSGD (best r)": best_of({r: step(lab, family, coded(r), n, way) for r in redundancies(n)}),
        "grouped-rs (best r)": best_of({r: step(lab, family, grouped(r), n, way) for r in redundancies(n)}),
        "SSGD by multicast": (None, step(lab, family, MULTICAST, n, way)),
    }


def shown(run, times, zoom: bool):
    """x and y of a curve, as a whole or about the target accuracy."""
    accuracy, at = run.curve["test_accuracy"], reached(run)
    if not zoom:
        return times, accuracy
    at = len(times) - 1 if at is None else at
    part = slice(max(0, at - AROUND), at + AROUND + 1)
    return times[part], accuracy[part]
