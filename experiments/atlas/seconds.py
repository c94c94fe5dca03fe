"""Approximate durations of the atlas's runs, for the forecast before any run exists."""

from experiments.atlas.analytic import step_seconds
from experiments.atlas.points import HOSTS, AtlasRun
from experiments.runner.costs import Seconds

SIMULATED_SECONDS = {"gpt": 40.0, "cnn": 12.0}
"""Approximate seconds of a simulation on one core, by task."""
AROUND = 20.0
"""Seconds of a measured run before and after its training.

Most of them evaluate the model; the run's share of making the testbed is included.
"""


def expect_seconds(point: AtlasRun) -> Seconds:
    """Return the seconds of a run: of a core for a simulated run, of the testbed for a measured one."""
    if not point.measured:
        return Seconds(SIMULATED_SECONDS[point.task], 0.0)
    config = point.config()
    return Seconds(config.train.samples / config.data.batch_size / HOSTS * step_seconds(point), AROUND)
