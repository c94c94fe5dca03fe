"""Functions that compute the numbers of a run for tables, such as seconds per step, staleness and accuracy."""

import math
import re
import tomllib

import numpy as np

from grsgd.runs.run_file import Run

LAST_SNAPSHOTS = 3
"""Number of snapshots at the end of a run over whose accuracies the mean is taken."""
OWN_WORK = re.compile(r"and (\S+) s of the algorithm")
"""Pattern for the seconds of the algorithm's own work in the text on a simulated run's computing times."""


def part_of_a_step(run: Run, part: str) -> np.ndarray:
    """Return the seconds per step that each training rank spends on ``part``: "compute", "communicate" or "wait"."""
    trains = run.ranks["steps"] > 0
    return run.ranks[f"{part}_seconds"][trains] / run.ranks["steps"][trains]


def gradient_seconds(run: Run) -> float:
    """Return the seconds per step in which a rank computes gradients, as the mean over the ranks that train.

    The computing time of a simulated run includes the algorithm's own work, such as adding up gradients of other
    ranks. In a measured run, a rank does the algorithm's own work while it communicates, so that its computing time
    excludes this work. The algorithm's own work is therefore subtracted from the computing time of a simulated run.
    """
    own = OWN_WORK.search(run.attributes.get("compute", ""))
    return float(part_of_a_step(run, "compute").mean()) - (float(own[1]) if own else 0.0)


def ages(run: Run) -> tuple[np.ndarray, np.ndarray]:
    """Return the values of staleness in a run in ascending order, and how many gradients or models have each value."""
    return run.staleness["value"], run.staleness["count"].sum(axis=0)


def mean_staleness(run: Run) -> float:
    """Return the mean staleness of a run's gradients, in updates of the model."""
    values, gradients = ages(run)
    return float(np.average(values, weights=gradients))


def final_accuracy(run: Run, column: str = "test_accuracy") -> float | None:
    """Return the mean test accuracy of the last three snapshots, in per cent; None if one of them is unknown.

    Snapshots after the configured number of samples (plus the samples of one step) are ignored. Ranks that do not wait
    train on more samples, but all algorithms are compared after equally many samples.
    """
    epochs = tomllib.loads(run.attributes["config"])["train"].get("epochs", math.inf)
    most = epochs * run.attributes["train_samples"] + run.attributes["ranks"] * run.attributes["batch_size"]
    last = run.curve[column][run.curve["samples"] <= most][-LAST_SNAPSHOTS:]
    return 100 * float(last.mean()) if last.size and not np.isnan(last).any() else None
