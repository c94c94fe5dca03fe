"""What the batch scripts share, with a pretended launcher and file system."""

import subprocess
from pathlib import Path

import pytest

from grsgd.job.signals import CHECKPOINTED

ROOT = Path(__file__).parents[2]
SCRIPT = """
set -euo pipefail
. slurm/job.sh
launch() { out=${@: -1}; echo "$out" > "$SCRATCH/told"; echo measured > "$out"; word; exit "$CODE"; }
word() { [[ $WHOLE == no ]] || touch "$GRSGD_WORDS/whole-0"; }
cp() { command cp "$@"; [[ $FULL == no ]]; }
train 2 "$RESULTS/run.h5" config.toml
"""


@pytest.fixture
def train(tmp_path):
    """Run `train` of job.sh as job 7; what it printed and its exit code."""
    for folder in ("scratch", "results"):
        (tmp_path / folder).mkdir()

    def run(full="no", code=0, whole="yes", **others):
        variables = {"SCRATCH": tmp_path / "scratch", "RESULTS": tmp_path / "results", "FULL": full, "CODE": code}
        variables["WHOLE"] = whole
        variables |= {"LAUNCHER": "mpiexec", "SLURM_JOB_ID": 7, "SLURM_JOB_NODELIST": "n", "PATH": "/usr/bin:/bin"}
        environment = {name: str(value) for name, value in (variables | others).items()}
        return subprocess.run(
            ["bash", "-c", SCRIPT], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False
        )

    return run


def test_the_exit_code_of_a_checkpoint_is_that_of_grsgd():
    script = ["bash", "-c", ". slurm/job.sh; echo $CHECKPOINTED"]
    done = subprocess.run(script, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert int(done.stdout) == CHECKPOINTED == 75


@pytest.mark.parametrize("code", [0, 130])
def test_the_run_file_is_moved(train, tmp_path, code):
    done = train(code=code)
    assert done.returncode == code, done.stderr
    assert (tmp_path / "results" / "run.h5").read_text() == "measured\n"
    assert [path.name for path in (tmp_path / "scratch").iterdir()] == ["told"]


def test_exit_code_0_of_a_launcher_is_not_enough(train):
    done = train(whole="no")
    assert done.returncode == 1 and "but no rank has said that the run file is whole" in done.stderr


def test_grsgd_run_starts_a_run_that_goes_on_after_the_loss_of_a_node(train, tmp_path):
    python = tmp_path / "python"
    python.write_text('#!/bin/bash\necho "$SLURM_MPI_TYPE: $*"; echo measured > "${@: -1}"')
    python.chmod(0o755)
    set_by_site = {"SRUN_MPI": "pmi2", "LAUNCH_OPTIONS": "", "PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = train(whole="no", RESTARTS=3, EVERY="9s", **set_by_site)
    kept = tmp_path / "results" / "run.checkpoints"
    command = f"-P -m grsgd run -n 2 --launcher mpiexec --restarts 3 config.toml --every 9s --checkpoint {kept} --out "
    assert done.returncode == 0 and f"pmi2: {command}" in done.stdout, done.stderr
    assert (tmp_path / "results" / "run.h5").read_text() == "measured\n"
    assert "LAUNCH_OPTIONS" in train(RESTARTS=3, LAUNCH_OPTIONS="-x A").stderr


def test_no_name_in_scratch_can_be_guessed(train, tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "scratch" / "7-run.h5").symlink_to(victim)
    first, second = (train() and (tmp_path / "scratch" / "told").read_text() for _ in range(2))
    assert first != second and victim.read_text() == "precious"


def test_where_the_run_file_stays_if_it_cannot_be_moved(train, tmp_path):
    done = train(full="yes")
    stays = (tmp_path / "scratch" / "told").read_text().strip()
    assert done.returncode == 1 and "the run file remains on node" in done.stderr and stays in done.stderr
    assert Path(stays).read_text() == "measured\n"
    assert list((tmp_path / "results").iterdir()) == []


@pytest.mark.parametrize("kind, option", [("pmix", ["--mpi=pmix"]), ("default", [])])
def test_srun_gets_the_option_of_the_site_or_none(tmp_path, kind, option):
    srun = tmp_path / "srun"
    srun.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    srun.chmod(0o755)
    script = "set -euo pipefail; . slurm/job.sh; choose_launcher; launch 4 python train.py"
    variables = {"LAUNCHER": "auto", "SRUN_MPI": kind, "LAUNCH_OPTIONS": "", "PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = subprocess.run(["bash", "-c", script], cwd=ROOT, env=variables, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == [*option, "--ntasks=4", "--kill-on-bad-exit=1", "python", "train.py"], done.stderr


@pytest.mark.parametrize(
    "variables, command, first",
    [
        ({}, "python train.py", "--cpu-bind=cores"),
        ({"SLURM_GPUS_ON_NODE": "2"}, "python -P -m grsgd train run.toml", "--cpu-bind=none"),
        ({"SLURM_GPUS_ON_NODE": "2"}, "python train.py", "--ntasks=4"),
        ({"SLURM_CPU_BIND": "quiet"}, "python train.py", "--ntasks=4"),
        ({"GRSGD_BIND": "off"}, "python train.py", "--ntasks=4"),
        ({"PLUGIN": "task/cgroup"}, "python train.py", "--ntasks=4"),
    ],
)
def test_srun_binds_ranks_if_slurm_can(tmp_path, variables, command, first):
    doubles = {"srun": 'echo "$OMP_NUM_THREADS" "$@"', "scontrol": 'echo "TaskPlugin = ${PLUGIN:-affinity}"'}
    for name, text in doubles.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    script = f"set -euo pipefail; . slurm/job.sh; launch 4 {command}"
    environment = {"LAUNCHER": "srun", "SRUN_MPI": "default", "LAUNCH_OPTIONS": "", "PATH": f"{tmp_path}:/usr/bin:/bin"}
    environment |= {"SLURM_CPUS_PER_TASK": "4"} | variables
    done = subprocess.run(["bash", "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout.split()[:2] == ["3", first], done.stderr


PROFILES = {
    "openmpi-ucx": ("auto", "--mpi=pmix", "OMPI_MCA_pml=ucx"),
    "cray-mpich": ("srun", "--mpi=cray_shasta", "MPICH_GPU_SUPPORT_ENABLED=0"),
    "mvapich": ("auto", "--mpi=pmi2", "MV2_ENABLE_AFFINITY=0"),
    "intel-mpi": ("srun", "--mpi=pmi2", "I_MPI_PIN=0"),
    "ethernet": ("auto", "--mpi=pmix", "OMPI_MCA_btl=tcp,sm,self"),
}


def of_profile(tmp_path, name, **variables):
    """What srun and env say in a script that reads site.sh; a double stands for srun."""
    (tmp_path / "srun").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\nenv\n')
    (tmp_path / "srun").chmod(0o755)
    script = "set -euo pipefail; . slurm/site.sh; . slurm/job.sh; echo $LAUNCHER; LAUNCHER=srun; launch 4 true"
    environment = {"PROFILE": name, "PATH": f"{tmp_path}:/usr/bin:/bin"} | variables
    return subprocess.run(["bash", "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("name", sorted({*PROFILES, *(path.stem for path in ROOT.glob("slurm/profiles/*"))}))
def test_a_profile_sets_the_launcher_and_the_variables_of_a_library(name, tmp_path):
    done = of_profile(tmp_path, name)
    words = done.stdout.splitlines()
    launcher, option, variable = PROFILES[name]
    assert words[:2] == [launcher, option] and variable in words, done.stderr
    own = of_profile(tmp_path, name, SRUN_MPI="default", LAUNCHER="mpiexec").stdout.splitlines()
    assert own[:2] == ["mpiexec", "--ntasks=4"]
    assert f"`{name}`" in (ROOT / "docs" / "how-to" / "slurm.md").read_text()


def test_an_unknown_profile_is_refused_with_those_that_exist(tmp_path):
    done = of_profile(tmp_path, "infiniband")
    assert done.returncode == 2 and "there are: cray-mpich.sh ethernet.sh" in done.stderr


def test_gpus_per_task_over_several_nodes_need_srun():
    script = "set -euo pipefail; . slurm/job.sh; launch 4 python train.py"
    environment = {"LAUNCHER": "mpiexec", "PATH": "/usr/bin:/bin", "SLURM_GPUS_PER_TASK": "1"}
    environment |= {"SLURM_JOB_NUM_NODES": "2"}
    done = subprocess.run(["bash", "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "submit with --gpus-per-node, or with LAUNCHER=srun" in done.stderr


@pytest.mark.parametrize("name", ["results", "res[1]", "a b$(id)*?"])
def test_a_job_that_was_requeued_goes_on_from_its_checkpoints_whatever_letters_are_in_their_path(tmp_path, name):
    kept = tmp_path / name / "run.checkpoints"
    script = """
    set -euo pipefail; . slurm/job.sh
    launch() { printf '%s\n' "$@"; exit 1; }
    train 2 "$RESULTS/run.h5" config.toml
    """
    variables = {"SCRATCH": str(tmp_path), "RESULTS": str(tmp_path / name), "EVERY": "60s", "LAUNCHER": "mpiexec"}
    variables |= {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n", "PATH": "/usr/bin:/bin"}

    def words():
        done = subprocess.run(
            ["bash", "-c", script], cwd=ROOT, env=variables, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 1 and not done.stderr
        return done.stdout.splitlines()

    first = words()
    assert first[first.index(str(kept)) - 1] == "--checkpoint"
    (kept / "samples-000000000720").mkdir(parents=True)
    again = words()
    assert again[again.index(str(kept)) - 1] == "--resume"
