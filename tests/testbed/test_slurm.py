"""The batch scripts on a Slurm cluster of this machine. Most jobs are submitted at the start, to run side by side."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from grsgd.machine.binding import ALL_MINE, TOO_MANY, Sharing, describe
from grsgd.machine.cores import allowed_cores
from grsgd.runs.run_file import load_run
from grsgd.testbed.hosts import STATE, Testbed, TestbedError
from slurm import local_cluster

ROOT = Path(__file__).parents[2]
SECONDS = 240
"""Until any job must be done."""
ENDED = ("COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", "NODE_FAIL", "OUT_OF_MEMORY")
SHORT = ("--set", "train.steps=20")
DELAYS = [f"stragglers.tail.0.{key}" for key in ("probability=1", "seconds=0.1")]
SLOW = [word for setting in ["train.steps=200", *DELAYS] for word in ("--set", setting)]
OWN_SCRIPT = """
import torch
from mpi4py import MPI
import grsgd

samples = grsgd.shard(torch.arange(64.0))
model = torch.nn.Linear(1, 1)
optimizer = grsgd.distribute(model, torch.optim.SGD(model.parameters(), lr=1e-4), "dpsgd")
for x in torch.utils.data.DataLoader(samples, batch_size=8):
    optimizer.zero_grad()
    (model(x[:, None]) - x).square().mean().backward()
    optimizer.step()
optimizer.finish()
print("host", MPI.Get_processor_name(), "of", MPI.COMM_WORLD.size, "has", model.weight.item(), flush=True)
"""
OWN_BATCH_FILE = """#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --time=10
cd {folder}
export PATH={bin}:$PATH
unset PRTE_MCA_rmaps_default_mapping_policy
{command}
"""
GPU_OF_RANK = "import os; print('task', os.environ['SLURM_PROCID'], 'has GPU', os.environ['CUDA_VISIBLE_DEVICES'])"
PMIX = [*Path("/usr/lib").glob("*/pmix2/lib/libpmix.so")]


@pytest.fixture(scope="module")
def machine():
    """One that can have a cluster."""
    try:
        local_cluster.check_machine()
        with Testbed(hosts=1):
            pass
    except (local_cluster.ClusterError, TestbedError) as error:
        pytest.skip(str(error))


def command(*words, **environment) -> str:
    """What a command prints; it must succeed."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("PMI", "SLURM", "SBATCH"))}
    # As a user has it in a shell where mpiexec is used without Slurm, too.
    inherited |= {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}
    done = subprocess.run(
        [str(word) for word in words],
        cwd=ROOT, env=inherited | environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout


def local(*words) -> str:
    return command(sys.executable, "slurm/local_cluster.py", *words)


class SlurmJob:
    """A job, from its submission on."""

    def __init__(self, cluster, *words, **variables):
        self.cluster, self.folder = cluster, cluster.folder
        words = (f"--output={self.folder}/%j-%x.out", *words)
        self.number = cluster("sbatch", "--parsable", *words, **variables).strip()

    def show(self) -> list[dict]:
        """What Slurm knows of it, of each task if it is an array."""
        lines = self.cluster("scontrol", "--oneliner", "show", "job", self.number).splitlines()
        return [dict(word.split("=", 1) for word in line.split() if "=" in word) for line in lines]

    def output(self) -> str:
        numbers = [job["JobId"] for job in self.show()]
        return "\n".join(path.read_text() for n in numbers for path in sorted(self.folder.glob(f"{n}-*.out")))

    def wait_for(self, what: str, condition, seconds: float = SECONDS):
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                pytest.fail(f"job {self.number}: {what} not within {seconds} s: {self.show()}\n{self.output()}")
            time.sleep(0.5)

    def states(self) -> set[str]:
        return {job["JobState"] for job in self.show()}

    def starts(self):
        self.wait_for("start", lambda: "PENDING" not in self.states())
        return self

    def ends(self, state: str = "COMPLETED"):
        self.wait_for("end", lambda: self.states() <= set(ENDED))
        assert self.states() == {state}, self.output()
        return self


class Cluster:
    """A cluster that is up; a call runs a command with it."""

    def __init__(self, folder: Path, nodes: int):
        said = local("up", "--nodes", nodes, "--gpus", 2).split()
        self.name = said[said.index("cluster") + 1].rstrip(":")
        self.conf = next(word.removeprefix("SLURM_CONF=") for word in said if word.startswith("SLURM_CONF="))
        self.folder = folder

    def __call__(self, *words, **variables) -> str:
        variables = {"RESULTS": str(self.folder), "SCRATCH": f"{self.folder}-scratch"} | variables
        return command(*words, SLURM_CONF=self.conf, **variables)

    def leftovers(self) -> list[str]:
        """What there still is of it."""
        found = [str(path) for path in (STATE / self.name, Path(f"/sys/class/net/{self.name}-slurm")) if path.exists()]
        found += [str(path) for path in Path("/run/netns").glob(f"{self.name}-*")]
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if self.conf.encode() in (process / "environ").read_bytes():
                    found.append((process / "cmdline").read_text().replace("\0", " "))
            except OSError:
                pass
        return found


@pytest.fixture(scope="module")
def cluster(machine, tmp_path_factory):
    cluster = Cluster(tmp_path_factory.mktemp("jobs"), nodes=4)
    yield cluster
    if (STATE / cluster.name).exists():
        local("down", cluster.name)


@pytest.fixture(scope="module")
def jobs(cluster) -> dict[str, SlurmJob]:
    """One of each kind."""
    makefile = cluster.folder / "tiny.mk"
    makefile.write_text(
        "all: $(RESULTS)/tiny/first $(RESULTS)/tiny/second\n"
        "$(RESULTS)/tiny/first:\n\tmkdir -p $(@D)\n\techo made >> $@\n"
        '$(RESULTS)/tiny/second:\n\ttest -n "$$SLURM_RESTART_COUNT" || sleep 600\n\techo made >> $@\n'
    )
    submitted = {
        "mpiexec": SlurmJob(cluster, "slurm/train.sbatch", *SHORT, LAUNCHER="mpiexec"),
        "requeued": SlurmJob(cluster, "--nodes=2", "slurm/train.sbatch", "experiments/demo/sgp.toml", *SHORT).starts(),
        "tables": SlurmJob(cluster, "--exclusive=user", "slurm/tables.sbatch", f"--file={makefile}", "all"),
    }
    cluster("scontrol", "requeue", submitted["requeued"].number)
    if PMIX:
        words = "slurm/train.sbatch", "experiments/demo/dpsgd.toml", *SHORT
        submitted["srun"] = SlurmJob(cluster, *words, LAUNCHER="srun")
        submitted["own srun"] = own_job(cluster, "srun --mpi=pmix python own.py")
        submitted["doctor"] = own_job(cluster, "srun --mpi=pmix python -m grsgd doctor --json")
    submitted["own mpirun"] = own_job(cluster, "mpirun -n $SLURM_NTASKS python own.py")
    return submitted


def own_job(cluster, command: str, *options) -> SlurmJob:
    """A script and a batch file that know nothing of the project's."""
    (cluster.folder / "own.py").write_text(OWN_SCRIPT)
    batch_file = cluster.folder / f"own-{len([*cluster.folder.glob('own-*')])}.sbatch"
    python = Path(sys.executable).parent
    batch_file.write_text(OWN_BATCH_FILE.format(folder=cluster.folder, bin=python, command=command))
    return SlurmJob(cluster, *options, batch_file)


def the_run(job: SlurmJob, name: str):
    return load_run(job.folder / f"{name}-{job.number}.h5")


NO_PMIX = "Slurm's plugin for PMIx does not find its library; Debian: apt-get install libpmix-dev"


@pytest.mark.parametrize("launcher, config", [("mpiexec", "grsgd"), ("srun", "dpsgd")])
def test_a_job_trains_with_a_rank_on_each_of_four_hosts(jobs, launcher, config):
    if launcher not in jobs:
        pytest.skip(NO_PMIX)
    job = jobs[launcher].ends()
    run = the_run(job, config)
    assert run.attributes["hosts"] == [f"{job.cluster.name}-{index}" for index in range(4)]
    assert run.attributes["reason"] == "steps"
    assert f"4 ranks by {launcher}" in job.output()
    why = TOO_MANY if len(allowed_cores()) > 1 else ALL_MINE  # the job asks for one core per task
    assert run.attributes["bindings"] == [describe(Sharing(allowed_cores(), why))] * 4


@pytest.mark.parametrize("launcher", ["mpirun", "srun"])
def test_a_script_and_a_batch_file_of_ones_own_train_on_two_nodes(jobs, launcher):
    if f"own {launcher}" not in jobs:
        pytest.skip(NO_PMIX)
    job = jobs[f"own {launcher}"].ends()
    hosts, models = zip(*re.findall(r"host (\S+) of 2 has (\S+)", job.output()), strict=True)
    assert sorted(hosts) == [f"{job.cluster.name}-{index}" for index in range(2)]
    assert models[0] == models[1]


def test_the_doctor_has_no_finding_in_a_job(jobs):
    if "doctor" not in jobs:
        pytest.skip(NO_PMIX)
    output = jobs["doctor"].ends().output()
    report = json.loads(output[output.index("{") : output.rindex("}") + 1])
    values = {each["name"]: each["value"] for each in report["findings"]}
    assert report["hurts"] == 0, [each for each in report["findings"] if each["verdict"] == "hurts"]
    assert values["launcher"] == "srun" and values["interface"] == "PMIx" and values["ranks"] == "2 found, 2 asked for"


@pytest.mark.exhaustive
def test_each_task_of_a_job_sees_its_own_pretended_gpu(cluster):
    if not PMIX:
        pytest.skip(NO_PMIX)
    words = f'srun python -c "{GPU_OF_RANK}"\nsrun --mpi=pmix python own.py'
    job = own_job(cluster, words, "--nodes=1", "--ntasks-per-node=2", "--gpus-per-task=1").ends()
    assert sorted(re.findall(r"task (\d) has GPU (\S+)", job.output())) == [("0", "0"), ("1", "1")]
    assert len(re.findall(r"host \S+ of 2 has", job.output())) == 2, job.output()


@pytest.mark.exhaustive
def test_an_array_of_ones_own_script(cluster):
    words = "grsgd run own.py && echo task $SLURM_ARRAY_TASK_ID of $SLURM_ARRAY_TASK_COUNT is done"
    job = own_job(cluster, words, "--array=0-1").ends()
    assert sorted(re.findall(r"task (\d) of 2 is done", job.output())) == ["0", "1"]
    assert len(re.findall(r"host \S+ of 2 has", job.output())) == 4, job.output()


def test_a_table_that_reaches_its_time_limit_puts_itself_into_the_queue_and_goes_on(jobs):
    job = jobs["tables"]
    made = job.folder / "tiny"
    job.wait_for("first file", (made / "first").exists)
    job.cluster("scancel", "--batch", "--signal=USR1", job.number)
    job.ends()
    assert (made / "first").read_text() == (made / "second").read_text() == "made\n"
    assert job.show()[0]["Restarts"] == "1"
    assert "the job is requeued" in job.output()


@pytest.mark.exhaustive
def test_a_sweep_makes_what_is_missing(cluster):
    words = ("--nodes=2", "--array=0-1", "slurm/sweep.sbatch", *SHORT)
    sweep = {"ALGORITHMS": "grsgd dpsgd", "SEEDS": "0", "RANKS": "2"}
    first = SlurmJob(cluster, *words, **sweep).ends()
    files = [file for name in ("grsgd", "dpsgd") for file in (first.folder / "sweep").glob(f"{name}-n2-seed0-*.h5")]
    assert [load_run(path).attributes["reason"] for path in files] == ["steps", "steps"]
    files[1].unlink()
    made = files[0].stat().st_mtime_ns
    second = SlurmJob(cluster, *words, **sweep).ends()
    assert files[0].stat().st_mtime_ns == made and files[1].exists()
    assert second.output().count("already exists") == 1


def test_a_requeued_run_starts_over(jobs):
    job = jobs["requeued"].ends()
    assert job.show()[0]["Restarts"] == "1"
    assert "start 1" in job.output()  # what it said before is kept or was not said yet
    assert the_run(job, "sgp").attributes["reason"] == "steps"


def test_a_run_takes_a_checkpoint_when_asked_and_goes_on_from_another_after_its_time_limit(cluster):
    words = ("--nodes=2", "slurm/train.sbatch", "experiments/demo/dpsgd.toml")
    job = SlurmJob(cluster, *words, *SLOW, EVERY="1000s")
    kept = job.folder / f"dpsgd-{job.number}.checkpoints"
    job.wait_for("progress", lambda: " loss " in job.output())
    job.cluster("scancel", "--batch", "--signal=USR2", job.number)
    job.wait_for("checkpoint", lambda: any(kept.glob("samples-*/rank-0001.ckpt")))
    assert job.states() == {"RUNNING"}
    job.cluster("scancel", "--batch", "--signal=USR1", job.number)
    job.ends()
    run = the_run(job, "dpsgd")
    assert job.show()[0]["Restarts"] == "1" and run.attributes["resumed"] >= 10
    assert run.attributes["reason"] == "steps" and list(run.ranks["steps"]) == [200, 200]
    assert not kept.exists()


@pytest.mark.exhaustive
def test_a_run_that_reaches_its_time_limit_keeps_what_it_measured(cluster):
    delays = [f"stragglers.tail.{rank}.{key}" for rank in (0, 1) for key in ("probability=1", "seconds=0.5")]
    slow = [word for setting in ["train.epochs=1000", *delays] for word in ("--set", setting)]
    limits = ("--time=2", "--signal=B:USR1@30", "--nodes=2")
    job = SlurmJob(cluster, *limits, "slurm/train.sbatch", *slow).ends("FAILED")
    run = the_run(job, "grsgd")
    assert run.attributes["reason"] == "terminated (SIGTERM)" and run.ranks["steps"].min() > 0
    assert job.show()[0]["Restarts"] == "0"


def test_a_cluster_whose_keeper_is_killed_goes_by_itself(machine, tmp_path):
    cluster = Cluster(tmp_path, nodes=1)
    assert cluster.leftovers()
    os.kill(int((Path(cluster.conf).parent / "keeper.pid").read_text()), 9)
    deadline = time.monotonic() + 60
    while cluster.leftovers():
        assert time.monotonic() < deadline, cluster.leftovers()
        time.sleep(0.1)


def test_nothing_is_left_of_a_cluster(cluster, jobs):
    assert cluster.leftovers()
    local("down", cluster.name)
    assert cluster.leftovers() == []
