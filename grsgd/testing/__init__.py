"""A kit for testing an algorithm of one's own::

    from grsgd.testing import AlgorithmTests

    class TestMine(AlgorithmTests):
        algorithm = "mine.py:MyGossip"
        options = {"period": 2}

`AlgorithmTests` says what is tested; `Job` are ranks in simulated time that minimise quadratics, for tests of your own.
"""

from grsgd.testing.algorithm_tests import AlgorithmTests
from grsgd.testing.quadratic import Job, Problem, shifted_job
from grsgd.testing.simulated import network_of

__all__ = ["AlgorithmTests", "Job", "Problem", "network_of", "shifted_job"]
