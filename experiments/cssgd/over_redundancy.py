"""Figures 12 and 13: the time of one batch over the redundancy."""

import math

from coding.time_model import paper_step_seconds, step_seconds
from experiments.cssgd.family import (
    COPIES,
    NETWORKS,
    SHARED,
    TESTBED,
    Family,
    Way,
    coded,
    grouped,
    short_run,
    step,
)
from experiments.reproduce.draw import Panel
from grsgd.report import time_split
from grsgd.simulate.network import rate

MEDIA = {SHARED: "shared", COPIES: "point-to-point", TESTBED: "point-to-point"}
"""What `coding.time_model` calls the networks."""
SCHEMES = {"CSSGD": coded, "grouped-rs": grouped}
MORE_AT_FIRST = (
    "Gradients of blocks are not added up before they are sent, so what is sent goes with C(n-1, r) / r, not 1/r: it "
    "grows at first, and is least for the greatest r, where every node computes nearly the whole batch."
)
MODEL, TRUE = "model r Tcalc + Tcomm / r", "model by the true loads of CSSGD"


def time_over_redundancy(family: Family, lab, page):
    n = lab.scale.tuning_ranks
    panels, rows, measured, cases = [], [], [], {}
    for way in MEDIA:
        times = {
            name: {r: step(lab, family, scheme(r), n, way) for r in redundancies(n, way)}
            for name, scheme in SCHEMES.items()
        }
        computing, transfer = parts(lab, family, n, way)
        communicating = times["CSSGD"][1] - computing
        for r in range(1, n + 1):
            times.setdefault(MODEL, {})[r] = paper_step_seconds(r, computing, communicating)
            times.setdefault(TRUE, {})[r] = step_seconds("coded", n, r, computing, transfer, MEDIA[way])
        best = {name: None if math.isnan(by_r[1]) else min(by_r, key=by_r.get) for name, by_r in times.items()}
        lines = {name: {r: [value] for r, value in by_r.items()} for name, by_r in times.items()}
        panels.append(Panel(way.name, "redundancy r", "time of a batch [s]", lines, logy=True))
        for name, by_r in times.items():
            marked = {r: f"{value:.3g}" + " *" * (r == best[name]) for r, value in by_r.items()}
            rows.append([way.name, name, *(marked.get(r, "—") for r in range(1, n + 1))])
        optima = ", ".join(f"{name} r = {r}" for name, r in best.items())
        measured.append(f"{way.name}: {optima}; Tcomm / Tcalc = {communicating / computing:.3g}")
        cases[way.name] = best["CSSGD"] and best["CSSGD"] == family.best_r
    page.figure(f"Time of a batch, {n} nodes.", panels)
    page.table(
        f"Seconds of a batch on {n} nodes; * is the best r.",
        ["network", "", *(f"r = {r}" for r in range(1, n + 1))],
        rows,
    )
    page.finding(
        "cssgd-optimum",
        "the best r: " + "; ".join(measured),
        f"seconds of a step, {n} nodes; it holds where CSSGD's best is r = {family.best_r}",
        cases,
        MORE_AT_FIRST,
    )
    page.note(NETWORKS)
    page.note(
        "Tcalc is what a step of CSSGD with r = 1 computes, Tcomm the rest of it; the model divides Tcomm by r. "
        f"The true loads are those of coding.load, with links of {lab.scale.rate}; copies follow one another. "
        "r = 1 sends what SSGD by unicast sends; with r = n nothing is sent, and every node computes the whole batch. "
        "Simulated time leaves encoding and decoding out."
    )


def redundancies(n: int, way: Way) -> list[int]:
    """All of them in simulated time; by the clock those about the paper's best, and n-1, which sends least."""
    return sorted({r for r in (1, 2, 3, n - 1) if 1 <= r < n}) if way is TESTBED else list(range(1, n + 1))


def parts(lab, family: Family, n: int, way: Way) -> tuple[float, float]:
    """Seconds that a step computes without redundancy, and seconds for one gradient on a link."""
    runs = short_run(lab, family, coded(1), n, way)
    if not runs:
        return math.nan, math.nan
    computing = time_split(runs[0])["compute"] / runs[0].ranks["steps"].max()
    return float(computing), runs[0].attributes["model_bytes"] / rate(lab.scale.rate)
