"""Occasions: calibrations at different times; the seed of a run decides which one its simulated times use."""

CALIBRATIONS = 3
"""Number of calibrations of each processor and link."""


def occasion(seed: int) -> int:
    """Return the number of the calibration that simulated times of a seed use."""
    return seed % CALIBRATIONS


def seeds(count: int, share_first: bool) -> range:
    """Return ``count`` seeds from 0 on; with ``share_first`` only seeds that use the first calibration."""
    step = CALIBRATIONS if share_first else 1
    return range(0, count * step, step)
