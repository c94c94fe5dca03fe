"""Occasions: calibrations at different times, on which simulated times rest by the seed of their run."""

CALIBRATIONS = 3
"""How many times each processor and link is calibrated."""


def occasion(seed: int) -> int:
    """Return which calibration the simulated times of a seed rest on."""
    return seed % CALIBRATIONS


def seeds(count: int, share_first: bool) -> range:
    """Return ``count`` seeds from 0 on; with ``share_first`` the first seeds that all rest on the first calibration."""
    step = CALIBRATIONS if share_first else 1
    return range(0, count * step, step)
