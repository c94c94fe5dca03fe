"""Choice of the classes of `AlgorithmTests` that start jobs in ``make test``; the tests of other classes are
exhaustive."""

import pytest

ON_REAL_RANKS = ("test_real_ranks_do_what_simulated_ones_do", "test_it_goes_on_from_a_checkpoint")
"""Tests of the kit that take ten seconds of a processor each; tests/mpi/ranks does the same with all algorithms."""
QUICK = "TestNoLoCo"


@pytest.hookimpl(tryfirst=True)  # before cases are chosen by their marks
def pytest_collection_modifyitems(items):
    for item in items:
        if item.name in ON_REAL_RANKS and item.cls.__name__ != QUICK:
            item.add_marker(pytest.mark.exhaustive)
