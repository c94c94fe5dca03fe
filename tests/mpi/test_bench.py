"""The benchmarks run to their end; what they measure is not judged here."""

import importlib.util
import subprocess
import sys

import pytest

from tests.support.launcher import bin_of, finish, start_command

WITH_LIBRARIES = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("lightning", "accelerate", "transformers"))), reason="pip install .[bench]"
)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "section", ["training", "stand_in", "allreduce", pytest.param("integrations", marks=WITH_LIBRARIES)]
)
def test_several_algorithms_in_one_process(section):
    """On two ranks: one must not wait in one algorithm for the other, which waits in another."""
    bin_of("openmpi")
    command = [sys.executable, "-m", "experiments.bench", section, "--quick"]
    code, output = finish(start_command(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True), 300)
    assert code == 0 and " on 2 ranks, " in output, output
