"""The environment of MPI jobs that this program starts."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from grsgd.mpi_environment import DEFAULTS, job_environment, srun, stderr_of, without_launcher

MAKEFILE = Path(__file__).parents[2] / "Makefile"


def test_make_sets_the_same():
    assert dict(re.findall(r"^export (\w+) \?= (\S+)$", MAKEFILE.read_text(), re.MULTILINE)) == DEFAULTS


def test_what_is_set_already_stays(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    monkeypatch.delenv("OMPI_MCA_mpi_yield_when_idle", raising=False)
    environment = job_environment()
    assert environment["OMP_NUM_THREADS"] == "4" and environment["OMPI_MCA_mpi_yield_when_idle"] == "1"


@pytest.mark.parametrize(
    "name",
    "PMI_RANK PMIX_NAMESPACE OMPI_COMM_WORLD_RANK OMPI_UNIVERSE_SIZE PRTE_LAUNCHED HYDI_FD SLURM_JOB_ID".split(),
)
def test_a_job_of_its_own_knows_no_launcher(name):
    kept = {"PATH": "/bin", "OMPI_MCA_btl": "self", "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}
    assert without_launcher(kept | {name: "1"}) == kept


SRUN = """
import socket, sys
open("/proc/self/comm", "w").write(sys.argv[1])
listening = socket.create_server(("127.0.0.1", 0))
print(listening.getsockname()[1], flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("name", ["srun", "another"])
def test_srun_is_found_by_the_port_on_which_it_listens(name, monkeypatch):
    command = [sys.executable, "-c", SRUN, name]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        port = int(process.stdout.readline())
        found = {}
        for text in (str(port), str(port - 1), "", "none"):
            monkeypatch.setenv("SLURM_STEP_LAUNCHER_PORT", text)
            found[text] = srun()
        process.stdin.close()
    monkeypatch.delenv("SLURM_STEP_LAUNCHER_PORT")
    assert found.pop(str(port)) == (process.pid if name == "srun" else None)
    assert set(found.values()) == {None} and srun() is None


def test_a_line_for_a_launchers_file_is_not_written_over(tmp_path):
    printed = tmp_path / "printed.txt"
    with printed.open("w") as file:  # as a shell's > opens it: not to append to
        launcher = subprocess.Popen(["sh", "-c", "read x; echo later >&2"], stdin=subprocess.PIPE, stderr=file)
    try:
        copied = stderr_of(launcher.pid)
        os.write(copied, b"first\n")
        os.close(copied)
    finally:
        launcher.communicate(b"\n")
    assert printed.read_text() == "first\nlater\n"


def test_there_is_no_stderr_of_a_process_that_is_not_there():
    with pytest.raises(OSError):
        stderr_of(None)
