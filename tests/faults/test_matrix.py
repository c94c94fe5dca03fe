"""Every algorithm, under every MPI library: a rank is killed, stopped or fails, and the job gets a signal.

The job ends soon, with an exit code other than 0 and one reason, and keeps what was measured. ``make test`` tries two
cells, ``make test-all`` those that a seed has drawn, and ``make test-faults`` all of them.
"""

import itertools
import random
import signal
import time

import pytest

from grsgd import load_run
from grsgd.algorithms import ALGORITHMS
from grsgd.algorithms.central import workers_of
from tests.support.training_job import LAUNCHERS, RANKS, reasons

FAULTS = ("killed", "stopped", "raises", "SIGINT", "SIGTERM")
CELLS = [
    cell
    for cell in itertools.product(sorted(ALGORITHMS), FAULTS, LAUNCHERS)
    if not (cell[1:] == ("killed", "ulfm") and ALGORITHMS[cell[0]].traits.survives_deaths)  # see test_spares
]
DRAWN = random.Random(8).sample(CELLS, 3)
QUICK = [("dpsgd", "SIGTERM", "ulfm"), ("gossip", "raises", "openmpi")]
BOUND = 45
"""Seconds from the fault to the end of the job: comm.timeout, and what ranks wait for each other's measurements."""

EXPECTED = {
    "killed": "lost: ",
    "stopped": "rank",
    "raises": "RuntimeError: boom on rank 1",
    "SIGINT": "(",
    "SIGTERM": "terminated (SIGTERM)",
}
"""What the run file says of the reason. Open MPI's launcher makes a SIGTERM of a SIGINT."""


def marked(cell):
    mark = pytest.mark.exhaustive if cell in DRAWN else pytest.mark.matrix
    return pytest.param(*cell, id="-".join(cell), marks=[] if cell in QUICK else [mark])


def training_ranks(algorithm):
    options = ALGORITHMS[algorithm].Options()
    return workers_of(ALGORITHMS[algorithm], options, RANKS)


@pytest.mark.parametrize(("algorithm", "fault", "launcher"), [marked(cell) for cell in CELLS])
def test_a_fault(algorithm, fault, launcher, start):
    # Asynchronous ranks notice a stopped one when they end: not soon in a long run.
    job = start(launcher, algorithm, seconds=4.0 if fault == "stopped" else 60.0)
    job.wait_for_snapshots(training_ranks(algorithm))
    if fault == "raises":
        job.fail(1)
    elif fault in ("killed", "stopped"):
        job.signal(1, signal.SIGKILL if fault == "killed" else signal.SIGSTOP)
    else:
        job.signal_launcher(signal.Signals[fault])
    code, output = job.finish(BOUND)
    assert code != 0, output
    assert output.count("Traceback") == (fault == "raises"), output
    assert len(reasons(output)) <= 1, output
    if fault == "killed" and launcher == "mpich":  # its launcher kills all ranks at once
        return
    deadline = time.monotonic() + 60  # a process that outlives Open MPI's ranks may still write the file
    while fault.startswith("SIG") and not job.out.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    run = load_run(job.out)
    assert EXPECTED[fault] in run.attributes["reason"], run.attributes["reason"]
    assert (run.attributes["reason"] in ("interrupted (Ctrl-C)", "terminated (SIGTERM)")) == fault.startswith("SIG")
    assert f"{job.out}: stopped early: {run.attributes['reason']}" in output, output
    assert run.ranks["steps"].max() > 0 and len(run.curve["time"]) > 0
