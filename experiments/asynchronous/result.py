"""The figures of a run that are compared."""

import math
from typing import NamedTuple

from experiments.asynchronous.points import DISTRIBUTIONS, StrategyRun, bound_gradients, gradients_per_update
from grsgd.runs.bound import optimal_seconds
from grsgd.runs.measures import crossing, simulating_seconds
from grsgd.runs.run_file import Run


class StrategyNumbers(NamedTuple):
    """The figures of a run."""

    seconds: float
    """Simulated, to the target accuracy; between two snapshots linear. NaN if it was not reached."""
    computed: int
    """Gradients of all workers, those that were under way at the end included."""
    applied: int
    """Gradients in the model at the last snapshot."""
    updates: int
    """Of the model, until then."""
    over_optimum: float
    """Seconds of as many gradients as the method is held against, over the least ones for them if they are of one
    model, as in reports; NaN where times vary. Below 1 where they are of different models."""
    ended: float
    """Simulated, of the last snapshot: those to the target are more, if it was not reached. NaN without snapshots."""
    simulating: float
    """Real seconds of this machine."""

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
