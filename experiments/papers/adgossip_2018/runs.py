"""Runs of the figures of adaptive gossip, and their numbers."""

import math
from collections.abc import Callable, Iterable

import numpy as np

from experiments.tables.compare import rank_counts, savings_range
from experiments.tables.numbers import (
    accuracy_gain,
    all_at_least,
    median_and_range,
    saving,
)
from experiments.tables.requests import MIN_DIFFERENCE_PERCENT, SLOW_LINKS, SOURCES, RunRequests
from experiments.tables.run_spec import MEASURED, SIMULATED
from grsgd.runs.measures import samples_to_target
from grsgd.runs.run_file import Run

ADAPTIVE = "adaptive"
GOSSIP = {ADAPTIVE: "adgossip/adaptive", "period 1": "adgossip/gossip_1", "period 10": "adgossip/gossip_10"}
ELASTIC = {ADAPTIVE: "adgossip/easgd_adaptive", "period 1": "adgossip/easgd_1", "period 10": "adgossip/easgd_10"}
SINGLE_MODELS = ("train.evaluate_replicas=true",)
"""Test every rank's own model as well as their average."""
THETAS = (0.0, 0.02, 0.05, 0.1, 0.5)
THETA = 0.05
"""A constant threshold, one of those."""
SHARES = (1 / 4, 1 / 2, 3 / 4, 1)
"""Shares of a run at the end of which exchanges are counted."""
SEEDS = range(2)
"""Seeds of trainings at a single n."""
MAX_ACCURACY_LOSS_POINTS = 1.0
"""Points of accuracy by which models may differ that are called about as accurate."""

MIN_SAVING_PERCENT = MIN_DIFFERENCE_PERCENT[MEASURED]
"""Savings are told from so many per cent on where they are not those of the paper."""

UNITS = {"[MB]": 1e6, "[%]": 0.01}

AUTOMATIC_RATE_NOTE = (
    "The automatic threshold is set to about 0.08 exchanges a step: 92 % fewer than one a step, and a fifth fewer than "
    "one in ten steps, whatever the training does. A run of few steps keeps to that rate only roughly."
)


# ---- what a run sent, and what it cost


def bytes_sent(run: Run) -> float:
    return float(run.traffic["sent"].sum())


def bytes_to_target(run: Run) -> float:
    """Bytes a sample, of the whole run, times samples to the target accuracy; NaN if it was not reached."""
    return bytes_sent(run) / float(run.ranks["samples"].sum()) * samples_to_target(run)


def exchanges(run: Run) -> float:
    """Return the exchanges of pairs, begun by any rank: each sends two models."""
    return bytes_sent(run) / (2 * run.attributes["model_bytes"])


def steps(run: Run) -> float:
    """Return the steps of all ranks."""
    return float(run.ranks["steps"].sum())


def distance(run: Run) -> float:
    """Return the distance of the ranks' models from their average at the last snapshot."""
    return last(run.curve["consensus_distance"])


def last(values: np.ndarray) -> float:
    known = values[~np.isnan(values)]
    return float(known[-1]) if known.size else math.nan


# ---- adaptive against fixed periods


def over_ranks(requests: RunRequests, numbers: Callable) -> dict[str, dict[tuple[str, int], list[float]]]:
    """Return ``numbers(configuration, n, source)`` for the seeds, on slow links, by name, source of time and n."""
    places = [(source, n) for source in (MEASURED, SIMULATED) for n in rank_counts(requests, source, SLOW_LINKS)]
    return {name: {(source, n): numbers(config, n, source) for source, n in places} for name, config in GOSSIP.items()}


def lines(found: dict, unit: float = 1.0) -> dict[str, dict[float, list[float]]]:
    """Return the lines of a panel over n."""
    return {
        f"{name}, {SOURCES[source]}": {
            n: [v / unit for v in values] for (s, n), values in places.items() if s == source
        }
        for name, places in found.items()
        for source in (MEASURED, SIMULATED)
    }


def bars(found: dict) -> dict[str, dict[str, list[float]]]:
    """Return the bars of a panel with a group for each n."""
    return {
        f"{name}, {SOURCES[source]}": {str(n): values}
        for name, places in found.items()
        for (source, n), values in places.items()
    }


def savings(found: dict) -> dict[str, list[float]]:
    """Return the savings of the adaptive form against each of the others, in per cent, wherever both were run."""
    ours = found[ADAPTIVE]
    return {
        name: [saving(ours[where], values) for where, values in places.items()]
        for name, places in found.items()
        if name != ADAPTIVE
    }


def against(claimed: float, what: str, saved: dict[str, list[float]]) -> dict[str, bool | None]:
    """Return whether so many per cent were saved against each of the others everywhere; where not, but some were, that
    too."""
    cases: dict[str, bool | None] = {}
    for name, values in saved.items():
        enough = cases[f"{what} against {name}"] = all_at_least(values, claimed)
        if not enough and all_at_least(values, MIN_SAVING_PERCENT):
            cases[f"{what} against {name}, less but not {claimed:g} % everywhere"] = True
    return cases


def in_words(saved: dict[str, list[float]]) -> str:
    return ", ".join(f"{savings_range(values)} than {name}" for name, values in saved.items())


def about_as_accurate(ours: Iterable[float], theirs: Iterable[float]) -> bool | None:
    gain = accuracy_gain(ours, theirs)
    return None if math.isnan(gain) else gain >= -MAX_ACCURACY_LOSS_POINTS


def rows_by_place(columns: dict[str, dict], form: Callable[[str, list[float]], str]) -> list[list[str]]:
    """Return a row for each number of ranks and configuration; ``columns``: by title, what ``over_ranks`` found."""
    first = next(iter(columns.values()))
    return [
        [f"{SOURCES[source]}, n = {n}", name, *(form(what, found[name][source, n]) for what, found in columns.items())]
        for source, n in next(iter(first.values()))
        for name in first
    ]


def number(what: str, values: list[float]) -> str:
    """Return the values as text, in the unit that ``what`` names."""
    unit = next((unit for unit in UNITS if unit in what), None)
    return median_and_range([value / UNITS[unit] for value in values] if unit else values)
