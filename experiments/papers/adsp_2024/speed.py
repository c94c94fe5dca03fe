"""Functions that compute the speed of runs without their start, and the time to the target accuracy at this speed."""

from scipy.stats import linregress

from experiments.runner import sample
from experiments.runner.needs import product, to_target
from experiments.runner.sample import Sample
from grsgd.runs.run_file import Run


def seconds_per_sample(run: Run) -> float | None:
    """Return the seconds per sample of all workers together in the second half of the samples.

    The seconds per sample are the slope of a line that is fitted to the snapshots of the run. Returns None if the
    second half has fewer than two snapshots. The first half of the samples is left out, because at first the fast
    workers run ahead of a slow worker, until a bound stops them. The last snapshot is left out, because it waits until
    the delays of all workers have ended.
    """
    time, samples = run.curve["time"], run.curve["samples"]
    counts = samples >= samples[-1] / 2
    counts[-1] = False
    return float(linregress(samples[counts], time[counts]).slope) if len(set(samples[counts])) > 1 else None


def seconds_per_gradient(run: Run) -> float | None:
    """Return the seconds per gradient of all workers together in the second half of the samples."""
    seconds = seconds_per_sample(run)
    return None if seconds is None else seconds * run.attributes["batch_size"]


def lasting_times(runs: list[Run]) -> Sample:
    """Return the seconds to the target accuracy if the whole training had the speed of its second half, by seed."""
    return product(to_target(runs, "samples"), sample.of(runs, seconds_per_sample))
