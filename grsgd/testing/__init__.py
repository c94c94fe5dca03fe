"""Ready-made tests for users' own algorithms, to be used with pytest::

    from grsgd.testing import AlgorithmTests

    class TestMine(AlgorithmTests):
        algorithm = "mine.py:MyGossip"
        options = {"period": 2}

`AlgorithmTests` lists the tests; `Job` is a group of simulated ranks that minimise quadratics, for users' own tests.
"""

from grsgd.testing.algorithm_tests import AlgorithmTests
from grsgd.testing.quadratic import Job, Problem, shifted_job
from grsgd.testing.simulated import network_of

__all__ = ["AlgorithmTests", "Job", "Problem", "network_of", "shifted_job"]
