"""What is seen of a run while it goes on, as users see it: on a terminal, of tmux, and in a file."""

import csv
import os
import re
import shlex
import shutil
import subprocess
import time

import pytest

from grsgd import load_run
from grsgd.mpi_environment import without_launcher
from tests.support.launcher import ENVIRONMENT, ROOT, bin_of, finish, start

CONFIG = """
[algorithm]
name = "dpsgd"
[model]
name = "mlp"
hidden = [32]
[data]
name = "digits"
batch_size = 16
[optimizer]
lr = 0.1
[train]
seconds = 3.0
snapshots = 4
target_accuracy = 0.5
"""
PERCENTAGE = r"(\d+) %, epoch \d+\.\d, loss [\d.e-]+, [\d,]+ samples/s, waiting \d+ %, \d+ s left$"
RESULT = r": \d\d\.\d\d % test accuracy \(50 % after [\d.]+ s\), [\d.]+ s of training, [\d.]+ .iB sent$"


@pytest.fixture
def config(tmp_path):
    (tmp_path / "run.toml").write_text(CONFIG)
    return tmp_path / "run.toml"


class Tmux:
    """A terminal in which one command runs."""

    def __init__(self, folder, command: list):
        if shutil.which("tmux") is None:
            pytest.skip("tmux is not installed")
        self.socket = str(folder / "tmux")
        self.tell("new-session", "-d", "-x", "100", "-y", "30", shlex.join(map(str, command)), ";", *KEEP)

    def tell(self, *words: str) -> str:
        command = ["tmux", "-S", self.socket, "-f", os.devnull, *words]
        environment = without_launcher(os.environ) | ENVIRONMENT | {"PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=True
        )
        return done.stdout

    def seen(self) -> list[str]:
        """The lines on the screen, and above it; one that the terminal has broken is one."""
        return [line for line in self.tell("capture-pane", "-p", "-J", "-S", "-").split("\n") if line]

    def has_ended(self) -> bool:
        return self.tell("display-message", "-p", "#{pane_dead}").strip() == "1"

    def close(self):
        subprocess.run(["tmux", "-S", self.socket, "kill-server"], capture_output=True, timeout=60, check=False)


KEEP = ("set-option", "-w", "remain-on-exit", "on")

LAUNCHED = [
    ("openmpi", "mpiexec"),
    pytest.param("mpich", "mpiexec", marks=pytest.mark.exhaustive),
    pytest.param("openmpi", "grsgd run", marks=pytest.mark.exhaustive),
]


@pytest.mark.parametrize(("library", "launcher"), LAUNCHED)
def test_the_line_on_a_terminal_moves(library, launcher, config, tmp_path):
    folder, out = bin_of(library), tmp_path / "run.h5"
    command = [folder / "mpiexec", "-n", 2, folder / "python", "-m", "grsgd", "train"]
    if launcher == "grsgd run":
        command = [folder / "python", "-m", "grsgd", "run", "-n", 2]
    terminal, percentages = Tmux(tmp_path, [*command, config, "--out", out]), []
    try:
        deadline = time.monotonic() + 90
        while not terminal.has_ended():
            lines = terminal.seen()
            assert time.monotonic() < deadline, lines
            found = [match for line in lines if (match := re.match("dpsgd: " + PERCENTAGE, line))]
            assert len(found) <= 1, lines
            percentages += [int(match[1]) for match in found]
            time.sleep(0.05)
        lines = terminal.seen()
    finally:
        terminal.close()
    assert len(set(percentages)) >= 2 and percentages == sorted(percentages), (percentages, lines)
    assert not any(re.search(PERCENTAGE, line) for line in lines), lines
    assert any(re.search(RESULT, line) for line in lines), lines
    assert load_run(out).attributes["reason"] == "seconds"


def test_lines_in_a_file_while_the_job_runs(config, tmp_path):
    log, table, out = tmp_path / "log", tmp_path / "course.csv", tmp_path / "run.h5"
    with open(log, "w") as file:
        arguments = ["-m", "grsgd", "train", config, "--out", out, "--csv", table, "--set", "train.seconds=6"]
        job = start("openmpi", 2, arguments, stdout=file)
    seen, rows, deadline = [], 0, time.monotonic() + 90
    while job.poll() is None and len(seen) < 2:
        assert time.monotonic() < deadline, log.read_text()
        seen = re.findall("^" + PERCENTAGE, log.read_text(), re.MULTILINE)
        rows = len(table.read_text().splitlines()) - 1 if table.exists() else 0
        time.sleep(0.05)
    code, _ = finish(job, 60)
    text = log.read_text()
    assert code == 0 and len(seen) >= 2 and seen[0] != seen[1] and rows >= 2, text
    assert "\r" not in text and "\x1b" not in text
    last = text.splitlines()[-1]
    assert last.split(": ")[0] == str(out) and re.search(RESULT, last), text
    check_course(table, load_run(out))


def check_course(table, run):
    with open(table) as file:
        rows = list(csv.DictReader(file))
    going_on = [row for row in rows if row["loss"]]
    assert 2 <= len(going_on) <= 20 and all(float(row["samples_per_second"]) > 0 for row in going_on)
    for name in ("step", "seconds", "samples", "epoch"):
        values = [float(row[name]) for row in going_on]
        assert values == sorted(values) and values[0] < values[-1], name
    evaluated = [row for row in rows if row["test_accuracy"]]
    assert [float(row["test_accuracy"]) for row in evaluated] == run.curve["test_accuracy"].tolist()
    assert [int(row["step"]) for row in evaluated] == run.curve["step"].tolist()
    assert len(rows) == len(going_on) + len(evaluated)
