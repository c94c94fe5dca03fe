"""The numbers of a run of the comparison that are compared with other runs."""

import math
from typing import NamedTuple

from experiments.asynchronous.points import DISTRIBUTIONS, StrategyRun, bound_gradients, gradients_per_update
from grsgd.runs.bound import optimal_seconds
from grsgd.runs.measures import crossing, simulating_seconds
from grsgd.runs.run_file import Run


class StrategyNumbers(NamedTuple):
    """The numbers of a run that are compared with other runs."""

    seconds: float
    """Simulated seconds to the target accuracy, interpolated between two snapshots; NaN if it was not reached."""
    computed: int
    """Number of gradients that all workers began to compute, including gradients under way at the end."""
    applied: int
    """Number of gradients in the model of the last snapshot."""
    updates: int
    """Number of updates of the model until the last snapshot."""
    over_optimum: float
    """Seconds per ``bound_gradients`` gradients, over the least possible seconds for them if all are of one model.

    Reports of runs (``grsgd report``) have this number, too. NaN if times vary; below 1 if the gradients belong to
    different models.
    """
    ended: float
    """Simulated seconds of the last snapshot, a lower bound if the target was not reached; NaN without snapshots."""
    simulating: float
    """Real seconds that the simulation took on this machine."""

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
