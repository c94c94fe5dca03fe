"""Faults outside of the training loop of ``grsgd train``, and those of rank 0, which otherwise saves."""

import re
import signal

import pytest

from grsgd import load_run
from tests.support.training_job import PROGRAM, RANKS, reasons

MATRIX, EXHAUSTIVE = pytest.mark.matrix, pytest.mark.exhaustive

LATE = """
import os, sys, time
sys.argv.pop()
if os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK")) == "1":
    time.sleep(1000)
from grsgd import cli
sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    "launcher", ["openmpi", pytest.param("ulfm", marks=MATRIX), pytest.param("mpich", marks=MATRIX)]
)
def test_a_rank_that_does_not_come_to_the_start_of_mpi(launcher, start):
    job = start(launcher, program=LATE, environment={"GRSGD_START_SECONDS": "2"})
    code, output = job.finish(90)
    assert code != 0 and "waited 2 s in MPI_Init: other ranks of the job have not come" in output, output
    assert "Traceback" not in output


STOPS_BEFORE_GROUPS = PROGRAM.replace(
    "Trainer.step = stepped",
    """
from grsgd.comm.coded.multicast import Multicast
made = Multicast.open
def stop(transport, packets, blocks):
    if rank == 1:
        os.kill(os.getpid(), 19)
    made(transport, packets, blocks)
Multicast.open = stop
""",
)


@EXHAUSTIVE
@pytest.mark.parametrize(
    "launcher", ["openmpi", pytest.param("ulfm", marks=MATRIX), pytest.param("mpich", marks=MATRIX)]
)
def test_a_rank_that_stops_while_groups_are_made(launcher, start):
    job = start(launcher, "cssgd", options="r = 2", program=STOPS_BEFORE_GROUPS, ranks=4)
    code, output = job.finish(120)
    assert code != 0 and "Traceback" not in output, output
    last = r"making a communicator of ranks 0, 1, [23]: not done after 10 s: another rank has not joined"
    assert re.search(last, output), output  # ranks 0 and 2, or rank 3, say so first


OWN_LOOP = (
    PROGRAM[: PROGRAM.index("from grsgd")]
    + """
import torch, grsgd
model = torch.nn.Linear(4, 2)
optimizer = grsgd.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1), sys.argv[5], timeout=60)
import time
for step in range(3000):
    optimizer.zero_grad()
    model(torch.randn(3, 4)).sum().backward()
    if step == 20 and rank == int(sys.argv[6]):
        raise RuntimeError("boom")
    time.sleep(0.01)
    optimizer.step()
optimizer.finish()
"""
)


@pytest.mark.parametrize("rank", [1, pytest.param(0, marks=MATRIX)])
@pytest.mark.parametrize(
    "algorithm",
    [
        pytest.param("grsgd", marks=EXHAUSTIVE),
        pytest.param("ring_allreduce", marks=EXHAUSTIVE),
        pytest.param("dpsgd", marks=MATRIX),
    ],
)
def test_an_exception_in_a_loop_of_ones_own_under_a_fault_tolerant_mpi(algorithm, rank, start):
    program = OWN_LOOP.replace("sys.argv[5]", repr(algorithm)).replace("sys.argv[6]", str(rank))
    job = start("ulfm", program=program)
    code, output = job.finish(120)
    assert code != 0 and output.count("RuntimeError: boom") == 1 == output.count("Traceback"), output


@pytest.mark.parametrize(
    "launcher", ["ulfm", pytest.param("mpich", marks=MATRIX), pytest.param("openmpi", marks=MATRIX)]
)
def test_an_exception_on_rank_0(launcher, start):
    job = start(launcher, "dpsgd")
    job.wait_for_snapshots()
    job.fail(0)
    code, output = job.finish(45)
    assert code != 0 and output.count("RuntimeError: boom\n") == 1 == output.count("Traceback"), output
    run = load_run(job.out)
    assert run.attributes["reason"] == "RuntimeError: boom on rank 0" and (run.ranks["steps"] > 0).all()


@MATRIX
@pytest.mark.parametrize("launcher", ["ulfm", "openmpi"])
def test_rank_0_is_killed(launcher, start):
    """The lowest of the others saves."""
    job = start(launcher, "dpsgd")
    job.wait_for_snapshots()
    job.signal(0, signal.SIGKILL)
    code, output = job.finish(45)
    assert code != 0 and "Traceback" not in output and len(reasons(output)) <= 1, output
    run = load_run(job.out)
    assert run.attributes["reason"] == "rank 0 lost: its process has died"
    assert run.ranks["steps"][0] == 0 and (run.ranks["steps"][1:] > 0).any()


PREPARES_FOR_EVER = PROGRAM.replace(
    "Trainer.step = stepped",
    """
import grsgd.job.run, time
def prepare(*arguments):
    (folder / f"{rank}.begun").touch()
    time.sleep(1000)
grsgd.job.run.prepare = prepare
""",
)


@pytest.mark.parametrize("launcher", ["openmpi", pytest.param("mpich", marks=MATRIX)])
@pytest.mark.parametrize("name", [pytest.param("SIGINT", marks=MATRIX), "SIGTERM"])
def test_a_signal_before_training(launcher, name, start):
    job = start(launcher, program=PREPARES_FOR_EVER)
    job.wait_until_it_trains(RANKS)
    job.signal_launcher(signal.Signals[name])
    code, output = job.finish(45)
    assert code != 0 and "Traceback" not in output and not job.out.exists(), output
    assert output.count("before training began: there is no run file") == 1, output
