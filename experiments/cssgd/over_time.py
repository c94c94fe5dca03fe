"""Figures 4 to 7: test accuracy over time."""

from experiments.cssgd.family import (
    ASGD,
    COPIES,
    MULTICAST,
    NETWORKS,
    TRUE_MULTICAST,
    Family,
    coded,
    grouped,
    seconds,
    step,
)
from experiments.cssgd.over_nodes import best_of, redundancies
from experiments.reproduce.cell import SIMULATED
from experiments.reproduce.compare import SHARED_TRAJECTORY, extent
from experiments.reproduce.draw import Panel
from experiments.reproduce.lab import EQUAL, less, reached, saving, spread

AROUND = 4
"""Snapshots before and after the target is reached, in the figures about the benchmark accuracy."""


def accuracy_over_time(family: Family, zoom: bool, lab, page):
    n, target = lab.scale.tuning_ranks, family.target(lab)
    batch = n * lab.load(f"{family.folder}/ring_allreduce").data.batch_size
    same_gradient = lab.curves(f"{family.folder}/ring_allreduce", n, MULTICAST.extra(n), family.seeds(lab))
    asgd = lab.runs(f"{family.folder}/asgd", n, SIMULATED, EQUAL, ASGD.extra(n), family.seeds(lab))
    panels, rows, measured, cases = [], [], [], {}
    for way in (TRUE_MULTICAST, COPIES):
        steps = {
            "CSSGD, best r": best_of({r: step(lab, family, coded(r), n, way) for r in redundancies(n)}),
            "SSGD, multicast": (None, step(lab, family, MULTICAST, n, way)),
            "grouped-rs, best r": best_of({r: step(lab, family, grouped(r), n, way) for r in redundancies(n)}),
        }
        curves = {
            name: [shown(run, run.curve["samples"] / batch * a_step, zoom) for run in same_gradient]
            for name, (_, a_step) in steps.items()
        }
        curves["ASGD"] = [shown(run, run.curve["time"], zoom) for run in asgd]
        panels.append(Panel(way.name, "time [s]", "test accuracy", curves=curves, mark=(target, f"{target:.0%}")))
        samples = lab.samples(f"{family.folder}/ring_allreduce", n, MULTICAST.extra(n), family.seeds(lab))
        times = {name: [count / batch * a_step for count in samples] for name, (_, a_step) in steps.items()}
        times["ASGD"] = seconds(lab, family, ASGD, n, way)
        best = {name: "" if r is None else f" (r = {r})" for name, (r, _) in steps.items()} | {"ASGD": ""}
        rows.append([way.name, *(spread(values) + best[name] for name, values in times.items())])
        for ours in ("CSSGD, best r", "grouped-rs, best r"):
            for theirs in ("SSGD, multicast", "ASGD"):
                cases[f"{way.name}: {ours}, against {theirs}"] = less(times[ours], times[theirs])
                measured.append(f"{way.name}: {ours} {extent([saving(times[ours], times[theirs])])} than {theirs}")
    page.figure(f"Test accuracy over time, {n} nodes and as many classes; a curve a seed.", panels)
    headers = ["network", "CSSGD, best r", "SSGD, multicast", "grouped-rs, best r", "ASGD"]
    page.table(f"Seconds to a test accuracy of {target:.0%}, {n} nodes: median (range) of the seeds.", headers, rows)
    page.finding(
        "cssgd-curves",
        "; ".join(measured),
        f"time to {target:.0%}, {n} nodes, simulated; r from {numbers(redundancies(n))}",
        cases,
        "Coded blocks cannot be added up before they are sent, so that more is sent than by SSGD unless r = n-1; and a "
        "node computes r times as much.",
    )
    page.note(SHARED_TRAJECTORY.format("CSSGD, SSGD and the grouped schemes"))
    page.note(NETWORKS)
    page.note(f"The paper's benchmark is {family.benchmark:.0%}.")


def numbers(values) -> str:
    return ", ".join(map(str, values))


def shown(run, times, zoom: bool):
    """x and y of a curve, as a whole or about the target accuracy."""
    accuracy, at = run.curve["test_accuracy"], reached(run)
    if not zoom:
        return times, accuracy
    at = len(times) - 1 if at is None else at
    part = slice(max(0, at - AROUND), at + AROUND + 1)
    return times[part], accuracy[part]
