"""Runs the tests in tests/mpi/ranks on 1 to 5 ranks, under every MPI library that is installed."""

import pytest
from launcher import mpiexec


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("library", ["openmpi", "mpich"])
def test_on_ranks(library, ranks):
    arguments = ["-m", "pytest", "-q", "--color=no", "-p", "no:cacheprovider", "tests/mpi/ranks"]
    code, output = mpiexec(library, ranks, arguments, timeout=300, environment={"GRSGD_TEST_RANKS": str(ranks)})
    assert code == 0, output[-8000:]
    assert " passed" in output, output[-2000:]
