"""About how long the runs of the atlas take, before any was made."""

from experiments.atlas.analytic import step_seconds
from experiments.atlas.points import HOSTS, AtlasRun
from experiments.runner.costs import Seconds

SIMULATED_SECONDS = {"gpt": 40.0, "cnn": 12.0}
"""About how long a simulation takes on one core."""
AROUND = 20.0
"""Seconds around the training of a measured run, most of them for its test values; its part of making a testbed is
among them."""


def expect_seconds(point: AtlasRun) -> Seconds:
    """Return the seconds of a run: of a core if it is simulated, of the testbed if it is measured."""
    if not point.measured:
        return Seconds(SIMULATED_SECONDS[point.task], 0.0)
    config = point.config()
    return Seconds(config.train.samples / config.data.batch_size / HOSTS * step_seconds(point), AROUND)
