"""Approximate durations of the atlas's runs, for the forecast that is printed before any run exists."""

from experiments.atlas.analytic import step_seconds
from experiments.atlas.points import HOSTS, AtlasRun
from experiments.runner.costs import Seconds

SIMULATED_SECONDS = {"gpt": 40.0, "cnn": 12.0}
"""Approximate seconds in which one core simulates a run, by task."""
AROUND = 20.0
"""Seconds that a measured run takes before and after its training.

Most of the 20 seconds before and after a training are for evaluations of the model. The 20 seconds include a part of
the time in which the testbed is made.
"""


def expect_seconds(point: AtlasRun) -> Seconds:
    """Return the seconds that a run probably takes: processor seconds if it is simulated, real seconds if measured."""
    if not point.measured:
        return Seconds(SIMULATED_SECONDS[point.task], 0.0)
    config = point.config()
    return Seconds(config.train.samples / config.data.batch_size / HOSTS * step_seconds(point), AROUND)
