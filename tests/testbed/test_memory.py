"""Loss of hosts, after which a job goes on from the memory of other hosts.

The hosts of a testbed share /dev/shm, so the test removes the folder of a dead host there.
"""

import re
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from grsgd.mpi_environment import job_environment, without_launcher
from grsgd.runs.run_file import load_run
from grsgd.testbed.hosts import Testbed, TestbedError

ROOT = Path(__file__).parents[2]
STEPS, RANKS, BATCH = 60, 3, 12
RUN = f"""
[algorithm]
name = "ring_allreduce"
[model]
name = "mlp"
hidden = [32]
[data]
name = "synthetic"
samples = 360
shape = [1, 8, 8]
batch_size = {BATCH}
[optimizer]
momentum = 0.9
[train]
steps = {STEPS}
snapshots = 2
[stragglers.pause]
0 = {{ every = 1, seconds = 0.08 }}
"""


@pytest.fixture(scope="module")
def testbed():
    try:
        with Testbed(hosts=6, rate="1gbit") as found:
            yield found
    except TestbedError as error:
        pytest.skip(str(error))


@pytest.fixture
def memory(tmp_path_factory):
    folder = Path(tempfile.mkdtemp(prefix="grsgd-test-", dir="/dev/shm"))
    yield folder
    shutil.rmtree(folder)


def start(testbed, folder: Path, memory: Path) -> subprocess.Popen:
    """``grsgd run`` on three hosts, with three spare hosts."""
    (folder / "run.toml").write_text(RUN)
    hosts = ",".join(f"{host}:1" for host in testbed.hosts)
    command = ["-m", "grsgd", "run", "-n", RANKS, "--hosts", hosts, "--restarts", 2, "run.toml", "--out", "run.h5"]
    command += ["--save", "model.pt", "--checkpoint", "kept", "--every", 36, "--memory", 5, "--memory-folder", memory]
    return subprocess.Popen(
        testbed.enter(testbed.head, [sys.executable, *command]),
        env=without_launcher(job_environment()) | testbed.settings(),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def kill(testbed, memory: Path, numbers: list[int]):
    """Kill all processes on hosts, and remove the states in the memory of these hosts."""
    for number in numbers:
        testbed.kill(number)
        for place in memory.glob(f"*-{testbed.hosts[number]}"):
            shutil.rmtree(place)


def wait_for(condition, job, seconds: float = 120.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert job.poll() is None and time.monotonic() < deadline, job.communicate(timeout=60)[0]
        time.sleep(0.02)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The final model of a run that loses no host."""
    folder = tmp_path_factory.mktemp("undisturbed")
    (folder / "run.toml").write_text(RUN)
    command = [sys.executable, "-m", "grsgd", "run", "-n", str(RANKS), "run.toml", "--out", "run.h5", "--save", "m.pt"]
    environment = without_launcher(job_environment())
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return torch.load(folder / "m.pt", weights_only=True)


def test_a_job_goes_on_from_memory_and_if_two_neighbours_are_lost_from_disk(testbed, tmp_path, memory, undisturbed):
    job = start(testbed, tmp_path, memory)
    with ExitStack() as cuts:
        for step, numbers in ((20, [1]), (45, [2, 3])):  # the second time ranks 1 and 2
            kept = f"*-{testbed.hosts[0]}/samples-*{step * RANKS * BATCH}/rank-0002.ckpt"
            wait_for(lambda kept=kept: list(memory.glob(kept)), job)
            for number in numbers:
                cuts.enter_context(testbed.cut(number))
            kill(testbed, memory, numbers)
        said, _ = job.communicate(timeout=200)
    assert job.returncode == 0, said
    losses = load_run(tmp_path / "run.h5").attributes["restarts"]
    found = [re.search(r"from step (\d+)( in memory)?, on 3 ranks$", loss).groups() for loss in losses]
    (first, of_memory), (second, of_disk) = found
    assert of_memory and int(first) % 5 == 0 and int(first) >= 15 and (second, of_disk) == ("36", None), losses
    model = torch.load(tmp_path / "model.pt", weights_only=True)
    assert all(torch.equal(model[name], undisturbed[name]) for name in undisturbed)
    assert not [*memory.glob("*/samples-*")]
