"""Approximate durations of the atlas's runs, for the forecast before any run exists."""

from experiments.atlas.analytic import step_seconds
from experiments.atlas.points import HOSTS, AtlasRun
from experiments.runner.costs import Seconds

SIMULATED_SECONDS = {"gpt": 40.0, "cnn": 12.0}
"""Approximate seconds of a simulation on one core, by task."""
AROUND = 20.0
"""Seconds of a measured run before and after its training.

Most of these seconds are for evaluations of the model. They include a part of the time for making the testbed.
"""


def expect_seconds(point: AtlasRun) -> Seconds:
    """Return the expected seconds of a run: processor seconds if it is simulated, wall time if it is measured."""
    if not point.measured:
        return Seconds(SIMULATED_SECONDS[point.task], 0.0)
    config = point.config()
    return Seconds(config.train.samples / config.data.batch_size / HOSTS * step_seconds(point), AROUND)
