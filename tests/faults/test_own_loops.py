"""Processes of a script die, under a fault-tolerant Open MPI, and its loop goes on: with spares, or without."""

import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from grsgd import load_run
from grsgd.training.checkpoint_folder import checkpoints, name_of, parts
from tests.support import launcher

BARRIER = """
import os, signal
import torch, grsgd
from mpi4py import MPI
model = torch.nn.Linear(4, 2)
optimizer = grsgd.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1), "ring_allreduce", timeout=60)
for step in grsgd.surviving(optimizer, range(20)):
    model(torch.ones(5, 4)).square().sum().backward()
    optimizer.step()
    if step == 10:
        if grsgd.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        MPI.COMM_WORLD.Barrier()
optimizer.finish()
"""


def run(processes: int, spares: int, arguments: list) -> tuple[int, str]:
    """Run a script by ``grsgd run``; return the exit code and the output."""
    return launcher.finish(start(processes, spares, arguments), 120)


def start(processes: int, spares: int, arguments: list) -> subprocess.Popen:
    command = [sys.executable, "-m", "grsgd", "run", "-n", processes, "--spares", spares, *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return launcher.start_command(command, **pipes)


def wait_for(condition, process: subprocess.Popen):
    deadline = time.monotonic() + 120
    while not condition():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("algorithm", ["ring_allreduce", pytest.param("grsgd", marks=pytest.mark.exhaustive)])
def test_a_spare_takes_the_rank_of_a_process_that_dies(algorithm, tmp_path):
    """Rank 0, which otherwise saves; the last death has no spare any more. The spare takes the rank after a second, and
    the steps last six seconds."""
    out = tmp_path / "run.h5"
    script = ["python", "-m", "experiments.survival.loop", "--algorithm", algorithm, "--out", out, "--steps", 800]
    code, output = run(4, 1, [*script, "--die", "0:0.2,2:0.7"])
    found = re.findall(r"rank (\d): 800 steps, loss ([\d.]+)", output)
    assert code == 0 and {rank for rank, _ in found} == {"0", "1"} and "Traceback" not in output, output
    assert len({loss for _, loss in found}) == 1
    saved = load_run(out)
    assert saved.attributes["ended"] == "completed" and saved.attributes["lost"] == [2]
    assert saved.extra["death_rank"].tolist() == [0, 2]
    assert np.isfinite(saved.extra["death_replaced_seconds"]).tolist() == [True, False]
    assert saved.ranks["steps"].tolist() == [800, 800, 0]
    assert saved.curve["train_loss"][-1] == pytest.approx(float(found[0][1]), abs=1e-6)


@pytest.mark.parametrize("algorithm", ["dpsgd", pytest.param("grsgd", marks=pytest.mark.exhaustive)])
def test_a_job_goes_on_from_a_checkpoint_of_the_ranks_that_were_left(algorithm, tmp_path):
    """One process of three dies, and later the other two; the next job has three ranks again."""
    kept = tmp_path / "kept"
    script = ["python", "-m", "experiments.survival.loop", "--algorithm", algorithm]
    script += ["--checkpoints", kept, "--every", "10"]
    code, output = run(3, 0, [*script, "--die", "0:0.3,1:0.8,2:0.8"])
    newest = checkpoints(parts(kept, 0, 1))[-1]
    assert code != 0 and newest.ranks == 2 and not newest.problem and newest.samples >= 100, output
    code, output = run(3, 0, script)
    assert code == 0 and "goes on from here; 3 ranks start from the average of the models of 2\n" in output, output
    assert set(re.findall(r"rank (\d): 200 steps, loss", output)) == {"0", "1", "2"}, output


@pytest.mark.parametrize("algorithm", ["dpsgd", pytest.param("grsgd", marks=pytest.mark.exhaustive)])
def test_signals_ask_a_loop_for_checkpoints(algorithm, tmp_path):
    """After SIGUSR2 the loop goes on; SIGUSR1 ends the job, also its spare, with the code for going on."""
    kept, out = tmp_path / "kept", tmp_path / "run.h5"
    script = ["python", "-m", "experiments.survival.loop", "--algorithm", algorithm, "--steps", "1600", "--out", out]
    script += ["--checkpoints", kept, "--every", "100"]

    def whole() -> list[int]:
        return [each.samples for each in checkpoints(parts(kept, 0, 1)) if not each.problem]

    process = start(4, 1, script)
    try:
        wait_for(whole, process)  # all ranks iterate
        process.send_signal(signal.SIGUSR2)
        wait_for(lambda: any(samples % 100 for samples in whole()), process)
        first = max(whole())
        process.send_signal(signal.SIGUSR1)
    finally:
        code, output = launcher.finish(process, 60)
    newest = checkpoints(parts(kept, 0, 1))[0]
    assert code == 75 and newest.ranks == 3 and newest.samples >= first, output
    assert f"grsgd: interrupted: the same command goes on from {kept / name_of(newest.samples)}\n" in output, output
    assert load_run(out).attributes["ended"] == "interrupted", output
    code, output = run(4, 1, script)
    assert code == 0 and set(re.findall(r"rank (\d): 1600 steps, loss", output)) == {"0", "1", "2"}, output
    assert load_run(out).attributes["ended"] == "completed"


def test_a_death_in_a_barrier_of_the_scripts_own_ends_the_job(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(BARRIER)
    code, output = run(3, 0, [script])
    assert code != 0 and "the process of another rank has died" in output, output
