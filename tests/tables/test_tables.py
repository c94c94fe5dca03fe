"""Tables of the papers from nothing to the page, at the smallest scale: trainings by the clock and simulated ones."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from experiments.runner import outcome
from grsgd.mpi_environment import job_environment
from tests.support.exhaustive import exhaustive_unless
from tests.support.launcher import ROOT, start_command

NAMES = ("cssgd-fig12", "cssgd-precision", "cssgd-load")
"""By the clock and in simulated time, with one calibration; with learning rates; without any run."""
TIMEOUT = 600


def command(results: Path) -> list[str]:
    return [sys.executable, "-m", "experiments.tables", *NAMES, "--scale", "tiny", "--results", str(results)]


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> Path:
    """Of a command that was interrupted after its first runs, and given again."""
    folder = tmp_path_factory.mktemp("tables")
    job = start_command(command(folder))
    deadline = time.monotonic() + TIMEOUT
    while len(there := runs(folder)) < 2 and job.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    os.killpg(job.pid, signal.SIGINT)
    assert job.wait(60) == 130, "it had not ended"
    done = subprocess.run(
        command(folder), cwd=ROOT, env=job_environment(), timeout=TIMEOUT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert there.items() <= runs(folder).items(), "runs that are there are not made again"
    (folder / "printed.txt").write_text(done.stdout)
    return folder


def runs(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in folder.glob("tiny/runs/*.h5") if ".part" not in path.name}


def test_what_is_printed(results):
    printed = (results / "printed.txt").read_text()
    assert "shared medium, simulated" in printed and "switch, measured" in printed


def test_outcomes(results):
    times, precision, load = (outcome.load(results / "tiny" / f"{name}.json") for name in NAMES)
    assert {run["source"] for run in times.runs} == {"clock", "times"}
    assert {run["source"] for run in precision.runs} == {"simulated"} and precision.learning_rates
    assert all((results / "tiny" / "runs" / Path(run["file"]).name).exists() for run in times.runs + precision.runs)
    assert "cssgd-optimum" in [finding.claim for finding in times.findings]
    assert any("Simulated times, against measured" in figure.caption for figure in times.figures)
    assert times.provenance["clock"]
    assert load.findings and not load.runs, "needs no training"


def test_the_page(results):
    page = (results / "report.html").read_text()
    assert page.count("<svg") >= 1 and "make table-grsgd-time-to-acc" in page, "what is missing is named"


AGAIN = ["--hours", "0.1"]


@pytest.mark.parametrize("options", exhaustive_unless([AGAIN], [AGAIN, [], ["--dry-run"]]))
def test_given_again_nothing_is_made(results, options):
    before = runs(results)
    done = subprocess.run(
        [*command(results), *options],
        cwd=ROOT,
        env=job_environment(),
        timeout=TIMEOUT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 and runs(results) == before
    assert f"{len(before)} of them exist" in done.stdout + done.stderr


def test_unknown_names_are_refused(tmp_path):
    wrong = [sys.executable, "-m", "experiments.tables", "cssgd-fig3", "--results", str(tmp_path)]
    done = subprocess.run(wrong, cwd=ROOT, timeout=TIMEOUT, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "no table or figure 'cssgd-fig3'" in done.stderr


# ---- a command that is ended


def marked(mark: str) -> dict[int, str]:
    """The processes, by number, that have the mark in their environment, with their command lines."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has just ended
            if mark in (folder / "environ").read_text(errors="replace"):
                found[int(folder.name)] = (folder / "cmdline").read_text().replace("\0", " ")
    return found


def a_job_runs(processes: dict[int, str]) -> bool:
    return any("experiments.runner.batch" in words for words in processes.values())


def simulations_run(processes: dict[int, str]) -> bool:
    return sum("experiments.tables" in words for words in processes.values()) >= 3


def end(number: int, when: Callable, folder: Path, mark: str, seconds: float = 600):
    """Start the command, send it the signal when its processes are these, and wait until all of them are gone."""
    with start_command(command(folder), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as job:
        try:
            deadline = time.monotonic() + seconds
            while not when(marked(mark)):
                assert job.poll() is None, f"refused: {job.stderr.read()}"
                assert time.monotonic() < deadline, marked(mark)
                time.sleep(0.02)
            os.kill(job.pid, number)
            assert job.wait(120) == (128 + number if number != signal.SIGKILL else -number)
        finally:
            job.kill()
    deadline, gone = time.monotonic() + 120, 0
    while gone < 3:  # one that becomes another program just now has no environment
        left = marked(mark)
        gone = 0 if left else gone + 1
        assert time.monotonic() < deadline, f"after {signal.Signals(number).name}: {left}"
        time.sleep(0.1)


@pytest.mark.exhaustive
@pytest.mark.timeout(2400)
def test_however_it_ends_nothing_of_it_is_left_and_it_can_be_given_again(tmp_path, monkeypatch):
    mark = f"GRSGD_TEST_MARK={tmp_path}"
    monkeypatch.setenv(*mark.split("=", 1))
    end(signal.SIGKILL, a_job_runs, tmp_path, mark)
    end(signal.SIGTERM, simulations_run, tmp_path, mark)
    end(signal.SIGHUP, lambda processes: a_job_runs(processes) or simulations_run(processes), tmp_path, mark)
