"""The speed of runs after their start, and the time to the target accuracy at that speed."""

from scipy.stats import linregress

from experiments.runner import sample
from experiments.runner.needs import product, to_target
from experiments.runner.sample import Sample
from grsgd.runs.run_file import Run


def seconds_per_sample(run: Run) -> float | None:
    """Return the seconds per sample of all workers in the second half of the samples, by a line through the snapshots.

    Returns None if there are fewer than two snapshots. At the start, the fast workers run ahead of a slow worker, until
    a bound stops them. The last snapshot is left out, because it waits for delays that have not ended.
    """
    time, samples = run.curve["time"], run.curve["samples"]
    counts = samples >= samples[-1] / 2
    counts[-1] = False
    return float(linregress(samples[counts], time[counts]).slope) if len(set(samples[counts])) > 1 else None


def seconds_per_gradient(run: Run) -> float | None:
    """Return the seconds per gradient of all workers in the second half of the samples."""
    seconds = seconds_per_sample(run)
    return None if seconds is None else seconds * run.attributes["batch_size"]


def lasting_times(runs: list[Run]) -> Sample:
    """Return the seconds to the target accuracy at the speed of the second half of the samples, by seed."""
    return product(to_target(runs, "samples"), sample.of(runs, seconds_per_sample))
