"""Occasions: calibrations at different times, of which a simulated run uses one, chosen by the run's seed."""

CALIBRATIONS = 3
"""Number of calibrations of each model, data set and link rate."""


def occasion(seed: int) -> int:
    """Return the number of the calibration that simulated runs with this seed use."""
    return seed % CALIBRATIONS


def seeds(count: int, share_first: bool) -> range:
    """Return ``count`` seeds from 0 on; with ``share_first``, all of them use the calibration with the number 0."""
    step = CALIBRATIONS if share_first else 1
    return range(0, count * step, step)
