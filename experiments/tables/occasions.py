"""Occasions: calibrations at different times, on which simulated times rest by the seed of their run."""

CALIBRATIONS = 3
"""How many times each processor and link is calibrated."""


def occasion(seed: int) -> int:
    """Return which calibration the simulated times of a seed rest on."""
    return seed % CALIBRATIONS
