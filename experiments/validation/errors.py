"""The relative differences of simulated from measured times, and how well measured times repeat."""

import statistics
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
from tabulate import tabulate

from experiments.validation.settings import EmulatedCluster
from experiments.validation.variant import Variant

MEDIAN_ERROR, ERROR = 0.03, 0.05
"""Greatest allowed relative errors: of the median over all rows of the table, and of a single row."""
TO_SIGMA = 1.4826
"""Factor from the median of absolute deviations to the standard deviation of a normal distribution."""


class Times(NamedTuple):
    """The seconds per step of a run, and the fraction of the time in which its ranks wait for other ranks."""

    step: float
    waiting: float


class Row(NamedTuple):
    """A row of the table: a variant on an emulated cluster, with its measured and simulated times, one pair per round.
    """

    setting: EmulatedCluster
    variant: Variant
    rounds: list[tuple[Times, Times]]

    @property
    def errors(self) -> list[float]:
        """Return, for each round, the relative difference of the simulated seconds per step from the measured ones."""
        return [simulated.step / measured.step - 1 for measured, simulated in self.rounds]

    @property
    def error(self) -> float:
        """Return the median over the rounds of the relative differences in ``errors``."""
        return statistics.median(self.errors)

    @property
    def repeatability(self) -> float:
        """Return the standard deviation of the relative differences, estimated from their median absolute deviation."""
        return TO_SIGMA * statistics.median(abs(error - self.error) for error in self.errors)

    @property
    def is_close(self) -> bool:
        return abs(self.error) <= max(ERROR, 2 * self.repeatability)

    def medians(self) -> tuple[Times, Times]:
        """Return the medians over the rounds of the measured times, and of the simulated times."""
        measured, simulated = zip(*self.rounds, strict=True)
        return tuple(Times(*np.median(times, axis=0)) for times in (measured, simulated))


def table(rows: Iterable[Row]) -> str:
    """Return the table of all rows as Markdown text."""
    lines = []
    for row in rows:
        (measured, simulated), is_off = row.medians(), "" if row.is_close else "off"
        steps, waits = ([f(times) for times in (measured, simulated)] for f in (milliseconds, waiting))
        error, repeatability = f"{row.error:+.1%}", f"{row.repeatability:.1%}" if len(row.rounds) > 1 else "unknown"
        lines.append(
            (row.setting.name, f"`{row.variant.algorithm}`", row.variant.options_text, *steps, error)
            + (repeatability, is_off, *waits)
        )
    headers = ["setting", "algorithm", "options", "measured, ms", "simulated", "error", "repeatability", ""]
    return tabulate(lines, [*headers, "waiting", "simulated"], tablefmt="pipe", disable_numparse=True)


def milliseconds(times: Times) -> str:
    return f"{1e3 * times.step:.1f}"


def waiting(times: Times) -> str:
    return f"{times.waiting:.0%}"


def verdicts(rows: list[Row]) -> dict[str, bool]:
    """Return sentences on the errors of the rows, each with True if the errors are within the limits."""
    found = {}
    by_setting: Mapping[EmulatedCluster, list[Row]] = {row.setting: [] for row in rows}
    for row in rows:
        by_setting[row.setting].append(row)
    for setting, those in by_setting.items():
        close = sum(row.is_close for row in those)
        found[
            f"{setting.name} ({setting.what}): {close} of {len(those)} rows are within {ERROR:.0%} or twice their "
            f"repeatability; the median error is {median_error(those):.1%}."
        ] = close == len(those)
    found[f"All settings: the median error is {median_error(rows):.1%}."] = median_error(rows) <= MEDIAN_ERROR
    return found


def median_error(rows: list[Row]) -> float:
    return statistics.median(abs(row.error) for row in rows)
