"""The wheel and the sdist of `make dist`, installed in an empty environment in a folder outside of the clone."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import grsgd
from grsgd.mpi_environment import without_launcher

ROOT = Path(__file__).parents[2]
LIMIT = 600
"""Seconds for one command; of all commands, the installation takes longest."""
OWN_VARIABLES = ("PYTHON", "VIRTUAL_ENV", "OMPI_", "PRTE_", "OMP_", "GRSGD_")
"""Beginnings of the variables that a user's shell does not have."""


@pytest.fixture(scope="module")
def built() -> dict[str, Path]:
    """Return the paths of the wheel and of the sdist of this version."""
    version = grsgd.__version__
    paths = {name: ROOT / "dist" / f"grsgd-{version}{name}" for name in ("-py3-none-any.whl", ".tar.gz")}
    if not all(path.is_file() for path in paths.values()):
        pytest.skip("dist/ has no wheel and sdist of this version: make release-check builds both")
    return paths


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Return a folder with an environment, in which nothing is installed."""
    folder = tmp_path_factory.mktemp("release")
    subprocess.run([sys.executable, "-m", "venv", folder / "env"], check=True, timeout=LIMIT)
    return folder


def call(folder: Path, program: str, *arguments) -> str:
    """Run a program of the environment in ``folder`` and return its output; fails the test if the program fails."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(OWN_VARIABLES)}
    command = [str(word) for word in (folder / "env" / "bin" / program, *arguments)]
    done = subprocess.run(
        command,
        cwd=folder,
        env=without_launcher(kept),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT,
    )
    assert done.returncode == 0, f"{command}: exit code {done.returncode}\n{done.stdout[-5000:]}"
    return done.stdout


def install(folder: Path, *what):
    call(folder, "python", "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt", *what)


@pytest.mark.exhaustive
def test_the_demo_runs_from_the_wheel_alone(built, folder):
    install(folder, "--no-compile", f"{built['-py3-none-any.whl']}[mpi]")
    output = call(folder, "grsgd", "demo", "--epochs", "1")
    assert "| grsgd, 4 ranks " in output and output.endswith("\nplot:\nresults/demo.png\n")
    runs = [folder / "results" / f"demo-{name}.h5" for name in ("ring_allreduce", "dpsgd", "grsgd")]
    found = [grsgd.load_run(run).attributes for run in runs]
    assert [(run["ended"], run["ranks"]) for run in found] == [("completed", 4)] * 3
    assert all(run["final_test_accuracy"] > 0.7 for run in found)
    assert (folder / "results" / "demo.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.exhaustive
def test_the_sdist_installs_the_same_files(built, folder):
    def installed() -> set[str]:
        return set(call(folder, "python", "-m", "pip", "show", "--files", "grsgd").split("Files:")[1].split())

    install(folder, "--no-deps", "--no-compile", "--force-reinstall", built["-py3-none-any.whl"])
    of_wheel = installed()
    install(folder, "--no-deps", "--no-compile", "--force-reinstall", built[".tar.gz"])
    records = {name for name in of_wheel ^ installed() if ".dist-info/" not in name}
    assert records == set()
    assert call(folder, "grsgd", "--version").strip() == grsgd.__version__
