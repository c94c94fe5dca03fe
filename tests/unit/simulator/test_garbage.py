"""Python looks for circles of objects as before when a run has ended."""

import gc

import pytest

from grsgd.simulator import garbage


def test_garbage_is_looked_for_as_before_after_a_run():
    before = gc.get_threshold()
    for timing_only in (True, False):
        with pytest.raises(KeyError), garbage.not_looked_for(timing_only):
            assert gc.get_freeze_count() > 0 and (gc.get_threshold()[0] > before[0]) == timing_only
            raise KeyError
        assert (gc.get_threshold(), gc.get_freeze_count()) == (before, 0)
