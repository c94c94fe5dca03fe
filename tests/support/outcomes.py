"""Outcomes of invented experiments, for tests of pages. The outcomes are made from random numbers and decided like real
outcomes."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from experiments.runner import decide
from experiments.runner.outcome import CONTROL, EVIDENCE, Finding, Outcome
from experiments.runner.run_spec import MEASURED, SIMULATED
from experiments.runner.sample import Sample
from experiments.tables.draw import Panel
from experiments.tables.section import Section

CONDITIONS = ("equal ranks, n = 8", "one rank 4 times slower, n = 8", "slow links, n = 8")
BASELINES = {"ring all-reduce": EVIDENCE, "D-PSGD": EVIDENCE, "one rank alone": CONTROL}
SEEDS = 5


def sample(draw: np.random.Generator, middle: float, spread: float, missed: int = 0) -> Sample:
    """Return ``SEEDS`` random numbers around ``middle``, of which the last ``missed`` are lower bounds."""
    values = {seed: float(middle * np.exp(spread * draw.standard_normal())) for seed in range(SEEDS)}
    return Sample(values, frozenset(range(SEEDS - missed, SEEDS)))


def finding(claim: dict, draw: np.random.Generator) -> Finding:
    """Return a finding about ``claim``, made from random times of one algorithm and of its baselines."""
    cases = []
    for source in (MEASURED, SIMULATED):
        for condition in CONDITIONS:
            ours = sample(draw, 10, 0.05)
            for baseline, kind in BASELINES.items():
                theirs = sample(draw, draw.uniform(8, 18), 0.1, missed=int(draw.integers(0, 6) == 5))
                case = decide.less(ours, theirs, condition, baseline, number=claim.get("low"), source=source, kind=kind)
                error = "median +3 %, from -5 % to +9 %" if source == SIMULATED else ""
                cases.append(replace(case, simulator_error=error))
    return Finding(claim["id"], "time to 80 % on the full test set", decide.corrected(cases), "Slow links favour it.")


def outcome(target: str, claims: list[dict], folder: Path) -> Outcome:
    """Return the outcome of ``target``, with parts of all kinds, which decides ``claims``. Write the outcome's figures
    to ``folder``."""
    draw = np.random.default_rng(len(target))
    section = Section(target, folder)
    section.figure(f"Time to 80 % over ranks ({target}).", panels(draw))
    section.table(
        "Seconds to 80 %.", ["n", "GRSGD", "D-PSGD"], [[n, sample(draw, n, 0.1).text(), "–"] for n in (2, 4, 8)]
    )
    section.note("Times of synchronous algorithms are computed: steps to the target times the time of a step.")
    return Outcome(
        target,
        f"Title of {target}",
        target.partition("-")[0],
        folder.name,
        f"make table-{target} SCALE={folder.name}",
        section.tables,
        section.figures,
        [finding(claim, draw) for claim in claims],
        section.notes,
        {"machine": "2 cores", "code": "abc1234", "code of the runs": "abc1234", "made": "2026-01-02 03:04 UTC"},
        [
            {"command": f"grsgd simulate {target} --set seed={seed}", "commit": "abc1234", "seed": str(seed)}
            for seed in range(SEEDS)
        ],
    )


def panels(draw: np.random.Generator) -> list[Panel]:
    """Return one panel of a figure for each kind of panel."""
    names = ("GRSGD", "ring all-reduce", "D-PSGD", "one rank alone")
    times = np.linspace(0, 10, 12)
    curves = {seed: (times, 90 * (1 - np.exp(-times / draw.uniform(1.5, 2.5)))) for seed in range(SEEDS)}
    lines = {name: {n: sample(draw, 40 / n**0.7, 0.1, missed=n == 8) for n in (2, 4, 8)} for name in names[:3]}
    savings = {
        rate: decide.less(sample(draw, 10, 0.05), sample(draw, 9 + 3 * rate, 0.05), "", "D-PSGD")
        for rate in (0.1, 0.3, 1, 3)
    }
    return [
        Panel(
            "one rank 4 times slower",
            "ranks n",
            "time to 80 % [s]",
            lines=lines,
            levels={names[3]: sample(draw, 30, 0.1)},
            logx=True,
        ),
        Panel(
            "equal ranks",
            "time [s]",
            "test accuracy [%]",
            curves={name: curves for name in names[:2]},
            levels={"target": 80},
        ),
        Panel(
            "waiting",
            "",
            "waiting per step [ms]",
            bars={name: {"n = 4": sample(draw, 9, 0.1), "n = 8": 12.0} for name in names},
            controls=names[3:],
        ),
        Panel(
            "saving",
            "T_comm / T_calc",
            "time saved [%]",
            estimates={"D-PSGD": savings},
            marks={"D-PSGD": 0.4},
            logx=True,
        ),
    ]
