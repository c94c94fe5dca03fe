"""Occasions, on which calibrations are made at different times.

The seed of a simulated run determines the calibration from which its times are simulated.
"""

CALIBRATIONS = 3
"""Number of calibrations of each model, data set and link rate."""


def occasion(seed: int) -> int:
    """Return the number of the calibration that simulated runs with seed ``seed`` use."""
    return seed % CALIBRATIONS


def seeds(count: int, share_first: bool) -> range:
    """Return ``count`` seeds, beginning with 0.

    If ``share_first`` is true, all returned seeds use the calibration with the number 0.
    """
    step = CALIBRATIONS if share_first else 1
    return range(0, count * step, step)
