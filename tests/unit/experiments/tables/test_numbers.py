"""Numbers of a run that tables need."""

import pytest

from experiments.tables.numbers import gradient_seconds, part_of_a_step
from tests.support.runs import fake_run


def test_simulated_gradients_take_the_computing_time_without_the_algorithms_own_work():
    """The same run by the clock, which counts the own work as communication, has nothing to subtract."""
    measured = fake_run()
    computing = float(part_of_a_step(measured, "compute").mean())
    assert gradient_seconds(measured) == computing > 0
    simulated = fake_run(clock="virtual", compute="lognormal:0.04617,0.0179, and 0.01926 s of the algorithm")
    assert gradient_seconds(simulated) == pytest.approx(computing - 0.01926)
    assert gradient_seconds(fake_run(clock="virtual", compute="lognormal:0.04617,0.0179")) == computing
