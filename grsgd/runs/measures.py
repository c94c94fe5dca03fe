"""Numbers of one run: what reports, figures and tables compare."""

import math

import numpy as np

from grsgd.runs.ending import Ended
from grsgd.runs.run_file import Run


def is_virtual(run: Run) -> bool:
    """Whether the times of the run are simulated ones."""
    return run.attributes.get("clock") == "virtual"


def epochs(run: Run) -> float:
    """Return the passes over the training data, all ranks together; NaN if the length of the data is not known."""
    return float(run.ranks["samples"].sum() / (run.attributes.get("train_samples") or math.nan))


def snapshot_at_target(run: Run) -> int | None:
    """Return the first snapshot whose averaged model has at least the target accuracy.

    None if there is none, and for a run that diverged, before or after it.
    """
    if run.attributes["ended"] == Ended.DIVERGED:
        return None
    reached = run.curve["test_accuracy"] >= target_accuracy(run)
    return int(reached.argmax()) if reached.any() else None


def time_to_target(run: Run) -> float:
    """Return the time [s] to the target accuracy, as `snapshot_at_target` defines it; NaN if it was not reached."""
    return math.nan if (at := snapshot_at_target(run)) is None else float(run.curve["time"][at])


def samples_to_target(run: Run) -> float:
    """Return the samples of all ranks to the target accuracy; NaN if it was not reached."""
    return math.nan if (at := snapshot_at_target(run)) is None else float(run.curve["samples"][at])


def time_split(run: Run) -> dict[str, float]:
    """Return the mean over the ranks of the time [s] spent on each of compute, communicate and wait."""
    return {name: float(run.ranks[f"{name}_seconds"].mean()) for name in ("compute", "communicate", "wait")}


def seconds_per_step(run: Run) -> float:
    """Return n / (steps per second of all ranks), while they train: what a step of all ranks takes on average [s].

    From the times of the ranks' steps alone, because the end of the curve includes what is drained after them.
    """
    steps = run.ranks["steps"]
    seconds = sum(run.ranks[f"{what}_seconds"] for what in ("compute", "communicate", "wait"))
    trains = steps > 0  # others serve
    return float(trains.sum() / (steps[trains] / seconds[trains]).sum())


def target_accuracy(run: Run) -> float:
    """Return the target accuracy of the run, a fraction; NaN if it has none."""
    return run.attributes.get("target_accuracy") or math.nan


def best_accuracy(run: Run) -> float:
    """Return the highest test accuracy of the averaged model, a fraction; NaN if none was measured."""
    return max(known_values([*run.curve["test_accuracy"], run.attributes["final_test_accuracy"]]), default=math.nan)


def samples_per_second(run: Run) -> float:
    """Return the samples of all ranks per second, up to the last snapshot."""
    time = run.curve["time"]
    return float(run.curve["samples"][-1] / time[-1]) if time.size and time[-1] > 0 else math.nan


def waiting_share(run: Run) -> float:
    """Return the part of the ranks' time that they wait, a fraction."""
    split = time_split(run)
    return split["wait"] / total if (total := sum(split.values())) else math.nan


def final_consensus(run: Run) -> float:
    """Return the last consensus distance that is known."""
    known = known_values(run.curve["consensus_distance"])
    return known[-1] if known else math.nan


def known_values(values) -> list[float]:
    """Return the values that are not NaN."""
    return [float(value) for value in values if not math.isnan(value)]


def bytes_sent(run: Run) -> float:
    """Return the payload of all ranks."""
    return float(run.traffic["sent"].sum())


def bytes_sent_once(run: Run) -> float:
    """Return the payload of all ranks, a multicast counted once."""
    return float(run.traffic["sent_once"].sum())


def median_staleness(values: np.ndarray, counts: np.ndarray) -> float:
    """Return the median of `values` (ascending), each of them `counts` times; NaN if there are none."""
    up_to = counts.cumsum(dtype=float)
    total = up_to[-1] if up_to.size else 0
    if not total:
        return math.nan
    middle = np.searchsorted(up_to, [(total + 1) // 2, total // 2 + 1])
    return float(values[middle].mean())
