"""The effect on each occasion: of the seeds whose simulated times rest on the same calibration.

Seeds count as independent in an interval. Where calibrations differ more than seeds, an interval of more seeds than
calibrations is too narrow. So a case also has the range of its effect over the calibrations.
"""

from collections.abc import Callable
from dataclasses import replace
from statistics import fmean

from experiments.tables.outcome import Case
from experiments.tables.run_spec import SIMULATED
from experiments.tables.sample import Sample

CALIBRATIONS = 3
"""How many times each processor and link is calibrated."""


def occasion(seed: int) -> int:
    """Return which calibration the simulated times of a seed rest on."""
    return seed % CALIBRATIONS


def with_occasions(case: Case, minuend: Sample, subtrahend: Sample, shown: Callable[[float], float]) -> Case:
    """Return a case of simulated times with its range over the calibrations; any other as it is. shown: of a difference
    of means, the effect in the case's unit; it rises."""
    effects = effects_of(minuend, subtrahend)
    if case.source != SIMULATED or "time" not in case.unit or len(effects) < 2:
        return case
    return replace(case, spread_low=shown(min(effects)), spread_high=shown(max(effects)))


def effects_of(minuend: Sample, subtrahend: Sample) -> list[float]:
    """Return the difference of the means with each calibration of which both have exact values."""
    return [a - b for number in range(CALIBRATIONS) for a in mean(minuend, number) for b in mean(subtrahend, number)]


def mean(sample: Sample, number: int) -> list[float]:
    """Return the mean of the exact values with a calibration, in a list, which is empty if there are none."""
    values = [value for seed, value in sample.exact.items() if occasion(seed) == number]
    return [fmean(values)] if values else []
