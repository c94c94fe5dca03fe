"""Least time in which workers of different speeds can compute the gradients of an update. Reports compare the time of a
run with a parameter server with this least time.

Source: Tyurin, Richtárik 2023, Optimal time complexities of parallel stochastic optimization methods under a fixed
computation model; Maranjyan, Tyurin, Richtárik 2025, Ringmaster ASGD.
"""

import heapq
import math
from collections.abc import Sequence

from grsgd.runs import measures
from grsgd.runs.run_file import Run


def optimal_seconds(step_seconds: Sequence[float], gradients: int) -> float:
    """Return the smallest t with ``sum over i of floor(t / h_i) >= gradients``, where worker i takes h_i seconds per
    gradient.

    The time t, in seconds, is the least time in which the workers can compute ``gradients`` gradients of one model.
    ``step_seconds`` has h_i, the seconds per gradient of worker i, above 0 and finite. Raises ValueError if the time
    h_i of a worker is not above 0 and finite, or if ``gradients`` is below 1.
    """
    if gradients < 1:
        raise ValueError(f"gradients = {gradients}: must be at least 1")
    if not len(step_seconds) or not all(0 < h < math.inf for h in step_seconds):
        raise ValueError("every worker needs a finite time above 0 for a step")
    # one entry per worker: (end of its k-th gradient in seconds, k, h), where h is its seconds per gradient
    ends = [(h, 1, h) for h in step_seconds]
    heapq.heapify(ends)
    for _ in range(gradients):
        seconds, k, h = ends[0]
        heapq.heapreplace(ends, ((k + 1) * h, k + 1, h))
    return seconds


def time_over_optimum(run: Run) -> float:
    """Return the mean time in which the parameter server of a run applied ``bound_gradients`` gradients, divided by the
    optimal time.

    The optimal time is `optimal_seconds` with the workers' mean step times in this run. Gradients that the server
    dropped do not count. Returns NaN for a run without a parameter server, and for a user's own training loop that was
    recorded without a batch size.
    """
    gradients, batch = run.attributes.get("bound_gradients"), run.attributes.get("batch_size")
    workers = run.ranks["steps"] > 0
    samples = run.curve["samples"][-1] if run.curve["samples"].size else 0
    if gradients is None or batch is None or not workers.any() or not samples:
        return math.nan
    step_seconds = run.ranks["compute_seconds"][workers] / run.ranks["steps"][workers]
    if not (step_seconds > 0).all():
        return math.nan
    seconds = gradients * measures.seconds(run) * batch / samples
    return float(seconds / optimal_seconds(step_seconds.tolist(), gradients))
