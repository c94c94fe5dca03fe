"""Functions that derive numbers, such as the time to the target, from a run, for reports, figures and tables."""

import math

import numpy as np

from grsgd.runs.ending import Ended
from grsgd.runs.metric import final_of, metric_of, target_of, values_of
from grsgd.runs.numbers import known_values
from grsgd.runs.run_file import Run

PARTS = ("compute", "communicate", "wait")
"""Names of the parts into which the time of a rank's steps is divided."""


def is_virtual(run: Run) -> bool:
    """Return whether the times of the run are simulated."""
    return run.attributes.get("clock") == "virtual"


def epochs(run: Run) -> float:
    """Return the number of passes over the training data of all ranks together; NaN if the number of training samples
    is not known."""
    return samples(run) / (run.attributes.get("train_samples") or math.nan)


def snapshot_at_target(run: Run) -> int | None:
    """Return the index of the first snapshot whose averaged model reaches the target of the run's metric.

    Return None if no snapshot reaches the target, and for any run that diverged.
    """
    if run.attributes["ended"] == Ended.DIVERGED:
        return None
    reached = metric_of(run).is_reached(values_of(run), target_of(run))
    return int(reached.argmax()) if reached.any() else None


def time_to_target(run: Run) -> float:
    """Return the time [s] of the snapshot that `snapshot_at_target` returns; NaN if the target was not reached."""
    return math.nan if (at := snapshot_at_target(run)) is None else float(run.curve["time"][at])


def samples_to_target(run: Run) -> float:
    """Return the number of samples of all ranks until the target was reached; NaN if the target was not reached."""
    return math.nan if (at := snapshot_at_target(run)) is None else float(run.curve["samples"][at])


def crossing(run: Run, column: str) -> float | None:
    """Return the value of the curve's ``column`` at the point at which the averaged model reaches the target.

    The value is interpolated linearly between the first snapshot that reaches the target and the snapshot before. If
    already the run's first snapshot reaches the target, this snapshot's value is returned, which is an upper bound
    (`crosses_before_first`). Return None if `snapshot_at_target` returns None.
    """
    if (at := snapshot_at_target(run)) is None:
        return None
    reached, values = values_of(run), run.curve[column]
    around = np.append(_known_before(run, at)[-1:], at)
    upwards = around if metric_of(run).higher_is_better else around[::-1]  # np.interp needs ascending values
    return float(np.interp(target_of(run), reached[upwards], values[upwards]))


def crosses_before_first(run: Run) -> bool:
    """Return whether already the first snapshot of the averaged model reaches the target, so that the target was
    perhaps reached earlier.

    Return False if the target is reached at time 0, before any training, because this time is exact.
    """
    at = snapshot_at_target(run)
    return at is not None and not _known_before(run, at).size and float(run.curve["time"][at]) > 0


def _known_before(run: Run, at: int) -> np.ndarray:
    """Return the indices of the snapshots before snapshot ``at`` whose metric is known."""
    return np.flatnonzero(~np.isnan(values_of(run)[:at]))


def seconds(run: Run) -> float:
    """Return the time [s] from the start of training to its end: simulated seconds for a simulation."""
    if not is_virtual(run):
        return run.attributes["wall_seconds"]
    time = run.curve["time"]
    return run.attributes.get("virtual_seconds", float(time[-1]) if time.size else math.nan)


def simulating_seconds(run: Run) -> float:
    """Return the real time [s] that a simulation took; NaN for a measured run."""
    return run.attributes["wall_seconds"] if is_virtual(run) else math.nan


def time_split(run: Run) -> dict[str, float]:
    """Return the time [s] spent on each of compute, communicate and wait: the mean over the ranks that train."""
    trains = _trains(run)
    return {name: float(run.ranks[f"{name}_seconds"][trains].mean()) for name in PARTS}


def other_seconds(run: Run) -> float:
    """Return the time [s] of the run outside of compute, communicate and wait: before, between and after the ranks'
    steps."""
    return max(seconds(run) - sum(time_split(run).values()), 0.0)


def seconds_per_step(run: Run) -> float:
    """Return the mean time [s] of a step: the number of ranks that train, divided by the sum of these ranks' steps per
    second.

    Only time within steps counts, because the time of the whole run includes receiving the last messages after the
    steps. Returns NaN if no rank has taken a step.
    """
    trains = _trains(run)
    steps, seconds = run.ranks["steps"][trains], sum(run.ranks[f"{name}_seconds"][trains] for name in PARTS)
    if not steps.any() or not (seconds > 0).all():
        return math.nan
    return float(len(steps) / (steps / seconds).sum())


def _trains(run: Run) -> np.ndarray:
    """Return a boolean mask of the ranks that have taken steps. Ranks without steps are servers or were lost. If no
    rank has taken a step, the mask selects all ranks."""
    trains = run.ranks["steps"] > 0
    return trains if trains.any() else ~trains


def best(run: Run) -> float:
    """Return the best value of the run's metric that the averaged model had at a snapshot or at the end; NaN if no
    value was measured."""
    return metric_of(run).best_of([*values_of(run), final_of(run)])


def samples_per_second(run: Run) -> float:
    """Return the number of samples per second of all ranks together, up to the last snapshot."""
    time = run.curve["time"]
    return float(run.curve["samples"][-1] / time[-1]) if time.size and time[-1] > 0 else math.nan


def waiting_share(run: Run) -> float:
    """Return the share of waiting in the time of the ranks' steps, as a fraction from 0 to 1."""
    split = time_split(run)
    return split["wait"] / total if (total := sum(split.values())) else math.nan


def last_value(run: Run, name: str) -> float:
    """Return the last value that is not NaN in the curve's column ``name``; NaN if no value is known."""
    values = run.curve.get(name)
    is_curve = values is not None and values.ndim == 1 and values.dtype.kind in "biuf"
    known = known_values(values) if is_curve else []
    return known[-1] if known else math.nan


def final_consensus(run: Run) -> float:
    """Return the last known consensus distance of the run (distance of the ranks' models from their average)."""
    return last_value(run, "consensus_distance")


def bytes_sent(run: Run) -> float:
    """Return the payload that all ranks together have sent, in bytes."""
    return float(run.traffic["sent"].sum())


def bytes_sent_once(run: Run) -> float:
    """Return the payload that all ranks together have sent, in bytes. The payload of a multicast counts once."""
    return float(run.traffic["sent_once"].sum())


def median_staleness(values: np.ndarray, counts: np.ndarray) -> float:
    """Return the median of ``values`` (ascending), where ``values[k]`` occurs ``counts[k]`` times; NaN if all counts
    are 0."""
    up_to = counts.cumsum(dtype=float)
    total = up_to[-1] if up_to.size else 0
    if not total:
        return math.nan
    middle = np.searchsorted(up_to, [(total + 1) // 2, total // 2 + 1])
    return float(values[middle].mean())


def samples(run: Run) -> float:
    """Return the number of samples that all ranks together have processed in training.

    Lost ranks have 0 samples in ``run.ranks``, but the curve includes their samples. So the larger number is returned:
    the sum of ``run.ranks``, or the last number of samples in the curve.
    """
    last = run.curve["samples"][-1] if run.curve["samples"].size else 0
    return float(max(run.ranks["samples"].sum(), last))


def participation(run: Run) -> float:
    """Return the share of the steps of living ranks that entered the model, a fraction from 0 to 1; NaN in a run file
    without this share."""
    value = run.attributes.get("participation")
    return math.nan if value is None else value


def steps(run: Run) -> float:
    """Return the number of steps of the rank that has taken the most steps."""
    return float(run.ranks["steps"].max())
