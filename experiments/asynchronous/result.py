"""The numbers of a run by which a method is compared with other methods on the same distribution of times."""

import math
from typing import NamedTuple

from experiments.asynchronous.points import DISTRIBUTIONS, StrategyRun, bound_gradients, gradients_per_update
from grsgd.runs.bound import optimal_seconds
from grsgd.runs.measures import crossing, simulating_seconds
from grsgd.runs.run_file import Run


class StrategyNumbers(NamedTuple):
    """The numbers of one run by which its method is compared with other methods."""

    seconds: float
    """Simulated seconds to the target accuracy, interpolated between snapshots; NaN if the run missed it."""
    computed: int
    """Number of gradients that all workers began to compute, including gradients under way at the end."""
    applied: int
    """Number of gradients that the model of the last snapshot contains."""
    updates: int
    """Number of updates of the model from the start to the last snapshot."""
    over_optimum: float
    """Seconds of the run per ``bound_gradients`` gradients, divided by the least possible seconds for them.

    The least possible seconds are for gradients of a single model, as in the reports of ``grsgd report``.
    ``over_optimum`` is NaN if workers' times are random, and may be below 1 if the gradients belong to different
    models.
    """
    ended: float
    """Simulated seconds at the last snapshot; NaN without snapshots.

    If the run missed the target, ``ended`` is a lower bound of the seconds to the target.
    """
    simulating: float
    """Real seconds that this machine took to simulate the run."""

    @classmethod
    def of(cls, point: StrategyRun, run: Run) -> "StrategyNumbers":
        seconds, size = crossing(run, "time"), bound_gradients(point.method)
        known = run.curve["samples"].size > 0
        applied = int(run.curve["samples"][-1]) // run.attributes["batch_size"] if known else 0
        least = DISTRIBUTIONS[point.distribution].fixed_seconds
        over = math.nan
        if least is not None and applied:
            over = float(run.curve["time"][-1]) / applied * size / optimal_seconds(least, size)
        return cls(
            math.nan if seconds is None else seconds,
            int(run.ranks["steps"].sum()),
            applied,
            applied // gradients_per_update(point.method),
            over,
            float(run.curve["time"][-1]) if known else math.nan,
            simulating_seconds(run),
        )
