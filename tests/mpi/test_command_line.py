"""The command line as users type it: runs, wrong input, errors in the middle, Ctrl-C, launchers without MPI."""

import itertools
import os
import re
import signal
import subprocess
import time

import numpy as np
import pytest

from grsgd import load_run
from grsgd.job.signals import REASONS
from tests.support.exhaustive import exhaustive_unless
from tests.support.launcher import ROOT, bin_of, finish, mpiexec, start, start_command

LIBRARIES = ("openmpi", "mpich")
ALGORITHMS = ("ring_allreduce", "dpsgd", "grsgd")
BOTH = list(itertools.product(LIBRARIES, ALGORITHMS))


@pytest.fixture
def config(tmp_path):
    """A short run on the digits that ship with scikit-learn, no download."""
    path = tmp_path / "run.toml"
    path.write_text(
        """
[algorithm]
name = "grsgd"
[model]
name = "mlp"
hidden = [32]
[data]
name = "digits"
batch_size = 16
[optimizer]
lr = 0.1
momentum = 0.9
[train]
epochs = 6
snapshots = 4
target_accuracy = 0.5
"""
    )
    return path


def train(library, ranks, config, *settings, out, timeout=60, **kwargs):
    arguments = ["-m", "grsgd", "train", config, "--out", out]
    for setting in settings:
        arguments += ["--set", setting]
    return mpiexec(library, ranks, arguments, timeout, **kwargs)


@pytest.mark.parametrize(("library", "algorithm"), exhaustive_unless([("openmpi", "grsgd")], BOTH))
def test_run_file(library, algorithm, config, tmp_path):
    out = tmp_path / "run.h5"
    code, output = train(library, 3, config, f"algorithm.name={algorithm}", out=out)
    assert code == 0, output
    assert str(out) in output
    run = load_run(out)
    assert run.attributes["algorithm"] == algorithm and run.attributes["ranks"] == 3
    assert run.attributes["reason"] == "epochs" and len(run.attributes["hosts"]) == 3
    assert run.attributes["final_test_accuracy"] > 0.8


@pytest.mark.parametrize("library", exhaustive_unless(["openmpi"], LIBRARIES))
def test_by_ip_multicast_the_same_model_is_trained(library, config, tmp_path):
    """With datagrams lost, and where there is no such interface, for which auto takes broadcasts."""
    runs = {}
    for name, options in {
        "multicast": "",
        "ip-multicast": ",transport='ip-multicast',loss=0.05",
        "auto": ",transport='auto',interface='eth77'",
    }.items():
        out = tmp_path / f"{name}.h5"
        code, output = train(library, 3, config, f"algorithm={{name='cssgd'{options}}}", "train.epochs=1", out=out)
        assert code == 0, output
        runs[name] = load_run(out)
    reasons = [runs[name].attributes.get("transport") for name in runs]
    assert reasons[0] is None and reasons[1].startswith("transport = ip-multicast: all 3 ranks hear each other; ")
    assert reasons[2].startswith("transport = multicast: by MPI, for rank 0: no interface 'eth77'; this host has: ")
    assert len({run.curve["train_loss"].tobytes() for run in runs.values()}) == 1
    assert len({run.traffic["sent_once"].tobytes() for run in runs.values()}) == 1
    assert runs["ip-multicast"].traffic["lost"].sum() > 0


WRONG = {
    "algorithm.polcy=succ": "algorithm.polcy",
    "optimizer.lr='fast'": "optimizer.lr",
    "optimizer.lr=-1.0": "optimizer.lr",
    "algorithm.name=sgd": "algorithm.name",
    "data.name=imagenet": "imagenet",
    "data.name=cifar-10": "data_batch_1",
    "model.name=vgg": "vgg",
    "data.replication=4": "data.replication",
    "stragglers.slowdown={5=2.0}": "stragglers.slowdown",
    "algorithm={name='ssgd',transport='ip-multicast',interface='eth77'}": "rank 0: no interface 'eth77'",
}
"""Settings, and what is named when they are refused."""
ON_THREE = ["data.name=imagenet", "data.name=cifar-10", "data.replication=4", list(WRONG)[-1]]
"""Those that are noticed when the ranks know of each other; of the others three ranks take the same path as one."""


@pytest.mark.parametrize(
    ("ranks", "setting"),
    exhaustive_unless(
        [(1, "algorithm.polcy=succ"), (1, "data.name=cifar-10"), (3, "data.replication=4")],
        [(1, setting) for setting in list(WRONG)[:-1]] + [(3, setting) for setting in ON_THREE],
    ),
)
def test_wrong_input_is_one_line(ranks, setting, config, tmp_path):
    out = tmp_path / "run.h5"
    nothing = f"data.dir={tmp_path / 'data'}"
    code, output = train("openmpi", ranks, config, setting, nothing, out=out)
    lines = [line for line in output.splitlines() if line.startswith("grsgd: error:")]
    assert code == 2 and len(lines) == 1 and WRONG[setting] in lines[0], output
    assert "Traceback" not in output
    assert list(tmp_path.iterdir()) == [config]


@pytest.mark.exhaustive
def test_topology_for_another_number_of_ranks(config, tmp_path):
    matrix = tmp_path / "W.txt"
    np.savetxt(matrix, np.full((4, 4), 0.25))
    settings = "algorithm.name=dpsgd", f"algorithm.topology={matrix}"
    code, output = train("openmpi", 2, config, *settings, out=tmp_path / "run.h5")
    assert code == 2 and "4 ranks; this job has 2 ranks" in output


@pytest.mark.parametrize("out", exhaustive_unless(["missing/run.h5"], ["missing/run.h5", ".", "/proc/run.h5"]))
def test_output_that_cannot_be_written(out, config, tmp_path):
    code, output = train("openmpi", 2, config, out=tmp_path / out)
    assert code == 2 and "grsgd: error:" in output and "Traceback" not in output, output


@pytest.mark.exhaustive
def test_truncated_data(config, tmp_path):
    folder = tmp_path / "data" / "mnist"
    folder.mkdir(parents=True)
    for name in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        (folder / f"{name}-ubyte").write_bytes(bytes([0, 0, 8, 3, 0, 0, 0, 9, 0, 0]))
    settings = "data.name=mnist", f"data.dir={tmp_path / 'data'}"
    code, output = train("openmpi", 2, config, *settings, out=tmp_path / "run.h5")
    assert code == 2 and "-ubyte" in output and "Traceback" not in output, output


@pytest.mark.exhaustive
@pytest.mark.parametrize(("library", "algorithm"), BOTH)
def test_loss_that_is_not_finite(library, algorithm, config, tmp_path):
    out = tmp_path / "run.h5"
    code, output = train(library, 3, config, f"algorithm.name={algorithm}", "optimizer.lr=1e30", out=out)
    assert code == 1 and "non-finite loss" in output and "Traceback" not in output, output
    assert "non-finite loss" in load_run(out).attributes["reason"]


USER_SCRIPT = """
import sys, torch, grsgd
model = torch.nn.Linear(4, 2)
optimizer = grsgd.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1), sys.argv[1])
for step in range(40):
    optimizer.zero_grad()
    model(torch.randn(3, 4)).sum().backward()
    if step == 20 and optimizer.algorithm.comm.rank == 1:
        exec(sys.argv[2])
    optimizer.step()
optimizer.finish()
"""


@pytest.mark.parametrize(("library", "algorithm"), exhaustive_unless([("mpich", "ring_allreduce")], BOTH))
def test_exception_on_one_rank_ends_the_job(library, algorithm, tmp_path):
    (tmp_path / "script.py").write_text(USER_SCRIPT)
    script = [tmp_path / "script.py", algorithm, "raise RuntimeError('boom')"]
    code, output = mpiexec(library, 3, script, timeout=60)
    assert code != 0 and output.count("RuntimeError: boom") == 1, output
    assert "rank 1 of 3" in output


@pytest.mark.exhaustive
@pytest.mark.parametrize(("library", "algorithm"), [("openmpi", "ring_allreduce"), ("mpich", "dpsgd")])
def test_a_rank_that_has_taken_its_last_step_ends_the_wait_of_the_others(library, algorithm, tmp_path):
    (tmp_path / "script.py").write_text(USER_SCRIPT)
    code, output = mpiexec(library, 3, [tmp_path / "script.py", algorithm, "optimizer.finish()"], timeout=60)
    assert code != 0, output
    words = rf"rank 1 finished after 20 steps, rank [02] is in step 2[12]: {algorithm} needs the same number of steps"
    assert re.search(words, output), output


LEAVE = ["sys.exit(0)", "sys.exit('no more')"]


@pytest.mark.parametrize(
    ("library", "leave"),
    exhaustive_unless([("mpich", LEAVE[1])], list(itertools.product(LIBRARIES, LEAVE))),
)
def test_rank_that_leaves_early_ends_the_job(library, leave, tmp_path):
    (tmp_path / "script.py").write_text(USER_SCRIPT)
    code, output = mpiexec(library, 3, [tmp_path / "script.py", "ring_allreduce", leave], timeout=60)
    assert code != 0 and "rank 1 of 3 ended without optimizer.finish()" in output, output


SAY_WHEN_TRAINING_BEGINS = """
import os, sys
from grsgd import cli
from grsgd.training.trainer import Trainer

folder, step = sys.argv.pop(), Trainer.step

def said(self, number):
    if number == 3:
        with open(f"{folder}/{self.comm.rank}.part", "w") as file:
            file.write(str(os.getpid()))
        os.rename(file.name, f"{folder}/{self.comm.rank}.pid")
    return step(self, number)

Trainer.step = said
sys.exit(cli.main(sys.argv[1:]))
"""


def wait_until_it_trains(job, folder, ranks=3) -> list[int]:
    """The process of each rank, as soon as all of them train."""
    files = [folder / f"{rank}.pid" for rank in range(ranks)]
    deadline = time.monotonic() + 90
    while not all(file.exists() for file in files):
        assert job.poll() is None, job.communicate()[0]
        assert time.monotonic() < deadline, "no training within 90 s"
        time.sleep(0.05)
    pids = [int(file.read_text()) for file in files]
    for file in files:
        file.unlink()
    return pids


@pytest.mark.parametrize(
    ("library", "algorithm"),
    exhaustive_unless(
        [("openmpi", "grsgd")],
        list(itertools.product(LIBRARIES, ["grsgd", "ring_allreduce"])),
    ),
)
def test_ctrl_c_keeps_what_was_measured(library, algorithm, config, tmp_path):
    """Accuracies, too: Open MPI leaves its ranks a fifth of a second, but a process that outlives them has the time."""
    settings = ["--set", "train.epochs=100000", "--set", f"algorithm.name={algorithm}"]
    for attempt in range(3):
        out = tmp_path / f"run-{attempt}.h5"
        arguments = ["-c", SAY_WHEN_TRAINING_BEGINS, "train", config, "--out", out, *settings, tmp_path]
        job = start(library, 3, arguments)
        wait_until_it_trains(job, tmp_path)
        os.kill(job.pid, signal.SIGINT)
        code, output = finish(job, 45)
        assert code != 0 and "Traceback" not in output, output
        if (run := run_with_accuracies(out)) is not None:
            break
    assert run is not None, f"no accuracies: {output}"
    assert run.attributes["reason"] in REASONS.values()  # Open MPI's launcher makes a SIGTERM of it
    assert "accuracies follow" in output, output
    assert output.count("stopped early") == output.count(f"{out}: stopped early: {run.attributes['reason']}") == 1
    assert run.ranks["steps"].max() > 0 and len(run.curve["time"]) > 0
    assert np.isfinite(run.curve["train_loss"]).all() and np.isfinite(run.curve["test_accuracy"]).all()


def run_with_accuracies(out, seconds=60):
    """The run, as soon as its file has its accuracies; None if it has none within ``seconds``."""
    deadline = time.monotonic() + seconds
    while not (out.exists() and np.isfinite(load_run(out).attributes["final_test_accuracy"])):
        if time.monotonic() > deadline:
            return None
        time.sleep(0.1)
    return load_run(out)


SAYING = """
import os
from pathlib import Path
from grsgd.algorithms.dpsgd import DPSGD

class Saying(DPSGD, name="saying"):
    steps = 0
    def step(self):
        yield from super().step()
        self.steps += 1
        if self.steps == 3:
            part = Path(__file__).parent / f"{self.comm.rank}.part"
            part.write_text(str(os.getpid()))
            part.rename(part.with_suffix(".pid"))
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("keeps, code", [(False, 130), (True, 75)])
@pytest.mark.parametrize(
    ("library", "number"),
    [("openmpi", signal.SIGINT), ("mpich", signal.SIGTERM), ("openmpi", signal.SIGUSR1), ("mpich", signal.SIGUSR1)],
)
def test_accuracies_are_kept_under_grsgd_run(library, number, keeps, code, config, tmp_path):
    """The launcher is asked gently, so that ranks have the time to evaluate."""
    out, algorithm = tmp_path / "run.h5", tmp_path / "saying.py"
    algorithm.write_text(SAYING)
    command = [bin_of(library) / "python", "-m", "grsgd", "run", "-n", 3, config, "--out", out]
    command += ["--set", "train.epochs=100000", "--set", f"algorithm.name={algorithm}:Saying"]
    command += ["--checkpoint", tmp_path / "kept"] if keeps else []
    job = start_command(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    wait_until_it_trains(job, tmp_path)
    os.kill(job.pid, number)
    returned, output = finish(job, 60)
    assert returned == code and "Traceback" not in output, output
    assert output.startswith("grsgd: imports ")
    assert "mpiexec -n 3" in output.splitlines()[1], output
    assert output.count("stopped early") == output.count(f"{out}: stopped early: interrupted: ") == 1, output
    run = load_run(out)
    assert run.attributes["reason"] == "interrupted" and run.attributes["ended"] == "interrupted"
    assert len(run.curve["time"]) > 0 and np.isfinite(run.curve["test_accuracy"]).all()
    assert np.isfinite(run.attributes["final_test_accuracy"])


def test_tasks_without_mpi_are_refused(config, tmp_path):
    """What ``srun`` without PMI support does: several tasks, each of which believes to be alone."""
    environment = {"SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "4"}
    command = [bin_of("openmpi") / "python", "-m", "grsgd", "train", config, "--out", tmp_path / "run.h5"]
    task = ["env", *(f"{name}={value}" for name, value in environment.items()), *command]
    code, output = finish(start_command(task, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True), 60)
    assert code == 2 and "--mpi=pmix" in output and "Traceback" not in output, output
    code, output = train("openmpi", 2, config, "train.epochs=1", out=tmp_path / "run.h5", environment=environment)
    assert code == 0, output


def test_nobody_waits_for_a_suspended_rank(config, tmp_path):
    """GRSGD: one of three ranks is suspended for half of the run; the others go on without waiting for it.

    Every rank is slowed down by a fixed pause, so that more ranks than cores do not disturb each other.
    """
    out = tmp_path / "run.h5"
    pauses = ", ".join(f"{rank} = {{ every = 1, seconds = 0.02 }}" for rank in range(3))
    settings = ["--set", "train.seconds=6.0", "--set", f"stragglers.pause={{ {pauses} }}"]
    job = start("openmpi", 3, ["-c", SAY_WHEN_TRAINING_BEGINS, "train", config, "--out", out, *settings, tmp_path])
    pid = wait_until_it_trains(job, tmp_path)[2]
    os.kill(pid, signal.SIGSTOP)
    time.sleep(3.0)
    os.kill(pid, signal.SIGCONT)
    code, output = finish(job, 60)
    assert code == 0, output
    ranks = load_run(out).ranks
    assert ranks["steps"][2] < 0.75 * ranks["steps"][:2].min(), "it was not suspended"
    assert ranks["wait_seconds"][:2].max() < 1.5, "of the three seconds"


@pytest.mark.parametrize("command", [["algorithms"], ["data", "list"], ["--help"], ["train", "--help"]])
def test_listings(command):
    done = subprocess.run(
        [bin_of("openmpi") / "python", "-m", "grsgd", *command], capture_output=True, text=True, cwd=ROOT, timeout=60
    )
    assert done.returncode == 0 and done.stdout and not done.stderr


@pytest.mark.exhaustive
def test_example_of_a_loop_of_ones_own():
    code, output = mpiexec("openmpi", 2, ["experiments/demo/own_loop.py"], timeout=120)
    accuracies = re.findall(r"^test accuracy ([\d.]+), results/own-loop.h5$", output, re.MULTILINE)
    # An asynchronous algorithm on a busy machine: one rank may do most of the work (0.89 to 0.96 were seen).
    assert code == 0 and len(accuracies) == 1 and float(accuracies[0]) > 0.8, output
