"""The soak program of tests/stress: a few runs of it, and that it goes on after a job that fails."""

import subprocess
import sys

import pytest

from tests.stress.__main__ import Stress
from tests.stress.draw import OwnLoop, Training, drawn
from tests.support import launcher

FIRST, RUNS = 20, 20
FIRST_QUICK, RUNS_QUICK = 34, 3
"""On 2 and 3 ranks: a job is started for each number of them."""


@pytest.mark.parametrize(
    ("library", "first", "runs"),
    [
        ("openmpi", FIRST_QUICK, RUNS_QUICK),
        pytest.param("openmpi", FIRST, RUNS, marks=pytest.mark.exhaustive),
        pytest.param("mpich", FIRST, RUNS, marks=pytest.mark.exhaustive),
    ],
)
def test_random_runs_end_well(library, first, runs):
    launcher.bin_of(library)
    command = [sys.executable, "-m", "tests.stress", "--runs", str(runs), "--seed", str(first), "--library", library]
    done = subprocess.run(command, cwd=launcher.ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert f"{runs} of {runs} runs" in done.stdout


def test_the_few_runs_are_of_both_kinds():
    for first, runs in ((FIRST, RUNS), (FIRST_QUICK, RUNS_QUICK)):
        kinds = [type(drawn(seed)) for seed in range(first, first + runs)]
        assert min(kinds.count(OwnLoop), kinds.count(Training)) >= runs // 4


JOB = """
import sys
for seed in sys.argv[1].split(","):
    print("begin", seed, flush=True)
    if seed == "{broken}":
        sys.exit("broken on purpose")
    print("end", seed, "", flush=True)
"""


def test_all_other_seeds_run_after_one_has_failed(monkeypatch, capsys):
    stress = Stress("openmpi", RUNS, 0)

    def start(library, ranks, arguments):
        command = [sys.executable, "-c", JOB.format(broken=7), arguments[-1]]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    monkeypatch.setattr(launcher, "start", start)
    assert stress.run() == 1
    assert (stress.failed, stress.done) == ([7], RUNS - 1)
    assert "broken on purpose" in capsys.readouterr().out
