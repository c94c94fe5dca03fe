"""Functions that draw the figure and write the tables of the comparison of synchronous with asynchronous methods."""

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from tabulate import tabulate

from experiments.asynchronous import tuning
from experiments.asynchronous.plan import Results, select_compared, trials
from experiments.asynchronous.points import ASYNCHRONOUS, DISTRIBUTIONS, METHODS
from experiments.asynchronous.result import StrategyNumbers
from experiments.asynchronous.verdict import comparisons
from experiments.runner.sample import Sample
from grsgd.runs.series import COLOURS

COLOUR = {True: COLOURS[1], False: COLOURS[0]}
"""Colour of a method's dots in the figure; ``COLOUR[True]`` is for asynchronous methods."""


def draw(results: Results) -> Figure:
    """Draw the seconds that runs take to the target accuracy: one panel per distribution of times, one row per method.

    Each dot is a run with one seed, and each line is the median over the seeds. The dots of the fastest synchronous
    method and of the fastest asynchronous method are filled.
    """
    names = list_distributions(results)
    rows, columns = math.ceil(len(names) / 3), min(len(names), 3)
    figure = Figure(figsize=(3 * columns, 2.7 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, sharey=True, squeeze=False).flatten()
    for panel in panels[len(names) :]:
        panel.remove()
    chosen = {each.distribution: (each.synchronous, each.asynchronous) for each in comparisons(results)}
    for panel, name in zip(panels, names, strict=False):
        for place, method in enumerate(METHODS):
            seconds = seconds_of(select_compared(name, method, results).values())
            colour, is_best = COLOUR[method in ASYNCHRONOUS], method in chosen.get(name, ())
            fill = colour if is_best else "none"
            panel.plot(seconds, [place] * len(seconds), "o", color=colour, markerfacecolor=fill, markersize=4)
            if (middle := Sample(dict(enumerate(seconds))).median()) is not None:
                panel.plot([middle, middle], [place - 0.38, place + 0.38], color=colour, linewidth=2)
        panel.set_title(DISTRIBUTIONS[name].title, fontsize=9)
        panel.set_xlim(left=0)
        panel.grid(alpha=0.3, axis="x")
        panel.tick_params(labelsize=8)
        panel.set_yticks(range(len(METHODS)), list(METHODS))
        panel.set_ylim(len(METHODS) - 0.5, -0.5)
    figure.supxlabel("simulated seconds to the target accuracy", fontsize=9)
    return figure


def list_distributions(results: Results) -> list[str]:
    """Return the names of the distributions of times for which ``results`` has runs."""
    found = {point.distribution for point in results}
    return [name for name in DISTRIBUTIONS if name in found]


def seconds_of(found: Sequence[StrategyNumbers]) -> list[float]:
    """Return the seconds to the target accuracy, without the runs that did not reach the target."""
    return [result.seconds for result in found if not math.isnan(result.seconds)]


def overview(results: Results) -> str:
    """Return the table of each method's seconds to the target accuracy and its learning rate.

    The table states the seconds as median and range, in one column per distribution of times.
    """
    names = list_distributions(results)
    rows = [[method, *(cell(name, method, results) for name in names)] for method in METHODS]
    headers = ["method", *(DISTRIBUTIONS[name].title for name in names)]
    return tabulate(rows, headers=headers, tablefmt="pipe", disable_numparse=True)


def cell(distribution: str, method: str, results: Results) -> str:
    found = select_compared(distribution, method, results)
    if not found:
        return ""
    known = trials(distribution, method, results)
    end = " †" if tuning.at_an_end(known) else ""
    seconds = {point.seed: None if math.isnan(result.seconds) else result.seconds for point, result in found.items()}
    return f"{Sample(seconds).text()}; {tuning.best(known):g}{end}"


def table(results: Results) -> str:
    """Return a table of how many gradients the workers computed and how many the server applied, as medians over seeds.

    The table has a row for each pair of a method and a distribution of times.
    """
    rows = []
    for name, distribution in DISTRIBUTIONS.items():
        for method in METHODS:
            if found := list(select_compared(name, method, results).values()):
                computed, applied, updates, over = np.median([result[1:5] for result in found], axis=0)
                ratio = "" if math.isnan(over) else f"{over:.2f}"
                rows.append([distribution.title, method, f"{computed:.0f}", f"{applied:.0f}", f"{updates:.0f}", ratio])
    headers = ["times", "method", "gradients computed", "applied", "updates", "x optimum"]
    return tabulate(rows, headers=headers, tablefmt="pipe", disable_numparse=True)
