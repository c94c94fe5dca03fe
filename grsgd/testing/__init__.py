"""Tests for users' own algorithms, which pytest runs in a subclass of `AlgorithmTests`::

    from grsgd.testing import AlgorithmTests

    class TestMine(AlgorithmTests):
        algorithm = "mine.py:MyGossip"
        options = {"period": 2}

The class `AlgorithmTests` has tests that every algorithm must pass, also an algorithm of a user. The class `Job` is a
group of simulated ranks that minimise quadratic losses, for users' own tests.
"""

from grsgd.testing.algorithm_tests import AlgorithmTests
from grsgd.testing.quadratic import Job, Problem, shifted_job
from grsgd.testing.simulated import network_of

__all__ = ["AlgorithmTests", "Job", "Problem", "network_of", "shifted_job"]
