"""Figures 12 and 13: the time of one batch over the redundancy."""

import math

from coding.time_model import paper_step_seconds, step_seconds
from experiments.papers.cssgd_2021.tasks import (
    COPIES,
    NETWORKS,
    SHARED,
    TESTBED,
    Setup,
    Task,
    coded,
    grouped,
    short_run,
    step,
)
from experiments.tables.draw import Panel
from grsgd.runs.measures import time_split
from grsgd.units import rate

MEDIA = {SHARED: "shared", COPIES: "point-to-point", TESTBED: "point-to-point"}
"""Names of the networks in ``coding.time_model``."""
SCHEMES = {"CSSGD": coded, "grouped-rs": grouped}
LOAD_GROWS_AT_FIRST = (
    "Gradients of blocks are not added up before they are sent, so what is sent goes with C(n-1, r) / r, not 1/r: it "
    "grows at first, and is least for the greatest r, where every node computes nearly the whole batch."
)
PAPER_MODEL, LOAD_MODEL = "model r Tcalc + Tcomm / r", "model by the true loads of CSSGD"


def time_over_redundancy(task: Task, requests, section):
    n = requests.scale.tuning_ranks
    panels, rows, measured, cases = [], [], [], {}
    for setup in MEDIA:
        times = {
            name: {r: step(requests, task, scheme(r), n, setup) for r in redundancies(n, setup)}
            for name, scheme in SCHEMES.items()
        }
        computing, transfer = parts(requests, task, n, setup)
        communicating = times["CSSGD"][1] - computing
        for r in range(1, n + 1):
            times.setdefault(PAPER_MODEL, {})[r] = paper_step_seconds(r, computing, communicating)
            times.setdefault(LOAD_MODEL, {})[r] = step_seconds("coded", n, r, computing, transfer, MEDIA[setup])
        best = {name: None if math.isnan(by_r[1]) else min(by_r, key=by_r.get) for name, by_r in times.items()}
        lines = {name: {r: [value] for r, value in by_r.items()} for name, by_r in times.items()}
        panels.append(Panel(setup.name, "redundancy r", "time of a batch [s]", lines, logy=True))
        for name, by_r in times.items():
            marked = {r: f"{value:.3g}" + " *" * (r == best[name]) for r, value in by_r.items()}
            rows.append([setup.name, name, *(marked.get(r, "—") for r in range(1, n + 1))])
        optima = ", ".join(f"{name} r = {r}" for name, r in best.items())
        measured.append(f"{setup.name}: {optima}; Tcomm / Tcalc = {communicating / computing:.3g}")
        cases[setup.name] = best["CSSGD"] and best["CSSGD"] == task.best_r
    section.figure(f"Time of a batch, {n} nodes.", panels)
    section.table(
        f"Seconds of a batch on {n} nodes; * is the best r.",
        ["network", "", *(f"r = {r}" for r in range(1, n + 1))],
        rows,
    )
    section.finding(
        "cssgd-optimum",
        "the best r: " + "; ".join(measured),
        f"seconds of a step, {n} nodes; it holds where CSSGD's best is r = {task.best_r}",
        cases,
        LOAD_GROWS_AT_FIRST,
    )
    section.note(NETWORKS)
    section.note(
        "Tcalc is what a step of CSSGD with r = 1 computes, Tcomm the rest of it; the model divides Tcomm by r. "
        f"The true loads are those of coding.cost, with links of {requests.scale.rate}; copies follow one another. "
        "r = 1 sends what SSGD by unicast sends; with r = n nothing is sent, and every node computes the whole batch. "
        "Simulated time leaves encoding and decoding out."
    )


def redundancies(n: int, setup: Setup) -> list[int]:
    """Return all of them in simulated time; by the clock those about the paper's best, and n-1, which sends least."""
    return sorted({r for r in (1, 2, 3, n - 1) if 1 <= r < n}) if setup is TESTBED else list(range(1, n + 1))


def parts(requests, task: Task, n: int, setup: Setup) -> tuple[float, float]:
    """Return seconds that a step computes without redundancy, and seconds for one gradient on a link."""
    runs = short_run(requests, task, coded(1), n, setup)
    if not runs:
        return math.nan, math.nan
    computing = time_split(runs[0])["compute"] / runs[0].ranks["steps"].max()
    return float(computing), runs[0].attributes["model_bytes"] / rate(requests.scale.rate)
