"""Numbers of a run that tables need."""

import math
import tomllib

import numpy as np

from grsgd.runs.run_file import Run

LAST_SNAPSHOTS = 3


def part_of_a_step(run: Run, part: str) -> np.ndarray:
    """Return the seconds per step that each rank that trains spends on compute, communicate or wait."""
    trains = run.ranks["steps"] > 0
    return run.ranks[f"{part}_seconds"][trains] / run.ranks["steps"][trains]


def ages(run: Run) -> tuple[np.ndarray, np.ndarray]:
    """Return staleness, ascending, and how many gradients, or models, had it."""
    return run.staleness["value"], run.staleness["count"].sum(axis=0)


def mean_staleness(run: Run) -> float:
    """Return the mean staleness of a run's gradients, in updates of the model."""
    values, gradients = ages(run)
    return float(np.average(values, weights=gradients))


def final_accuracy(run: Run, column: str = "test_accuracy") -> float | None:
    """Return the mean test accuracy of the last three snapshots, in per cent; None if one of them is not known.

    Snapshots within the samples that the configuration says, and a step: ranks that do not wait go beyond, and all
    algorithms are compared after equally many samples.
    """
    epochs = tomllib.loads(run.attributes["config"])["train"].get("epochs", math.inf)
    most = epochs * run.attributes["train_samples"] + run.attributes["ranks"] * run.attributes["batch_size"]
    last = run.curve[column][run.curve["samples"] <= most][-LAST_SNAPSHOTS:]
    return 100 * float(last.mean()) if last.size and not np.isnan(last).any() else None
