"""One training job to which something happens."""

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "mpi"))
from launcher import ENVIRONMENT, ROOT, bin_of  # noqa: E402

RANKS = 3
WAY = {"openmpi": ("openmpi", []), "ulfm": ("openmpi", ["--with-ft", "ulfm"]), "mpich": ("mpich", [])}
"""How jobs are started: the library, and arguments of its launcher."""
START_SECONDS = 90
CONFIG = """
[algorithm]
name = "{algorithm}"
{options}
[model]
name = "mlp"
hidden = [16]
[data]
name = "digits"
batch_size = 16
[optimizer]
lr = 0.05
[train]
seconds = {seconds}
snapshots = 400
[comm]
timeout = {timeout}
[stragglers.pause]
0 = {{ every = 1, seconds = 0.02 }}
1 = {{ every = 1, seconds = 0.02 }}
2 = {{ every = 1, seconds = 0.02 }}
"""
PROGRAM = """
import os, pathlib, sys
folder = pathlib.Path(sys.argv.pop())
from mpi4py import MPI
rank = MPI.COMM_WORLD.rank
(folder / "rank.part").with_suffix(f".{rank}.part").write_text(str(os.getpid()))
(folder / "rank.part").with_suffix(f".{rank}.part").rename(folder / f"{rank}.pid")
from grsgd import cli
from grsgd.train import Trainer
step = Trainer.step
def stepped(trainer, number):
    if trainer.snapshots.moments:
        (folder / f"{rank}.begun").touch()
    if (folder / f"{rank}.raise").exists():
        raise RuntimeError("boom")
    yield from step(trainer, number)
Trainer.step = stepped
sys.exit(cli.main(sys.argv[1:]))
"""
"""Says which process is which rank and when it trains, and fails when it is asked to."""


class Job:
    """``way``: how it is started; ``program``: what it runs, given the folder as its last argument."""

    def __init__(
        self,
        way,
        folder,
        algorithm,
        options="",
        seconds=60.0,
        timeout=10.0,
        program=PROGRAM,
        ranks=RANKS,
        environment=(),
    ):
        library, arguments = WAY[way]
        self.folder, self.out = folder, folder / "run.h5"
        (folder / "run.toml").write_text(
            CONFIG.format(algorithm=algorithm, options=options, seconds=seconds, timeout=timeout)
        )
        place = bin_of(library)
        command = [place / "mpiexec", *arguments, "-n", ranks, place / "python", "-c", program]
        command += ["train", folder / "run.toml", "--out", self.out, folder]
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(("PMI", "PMIX", "SLURM"))}
        self.said = folder / "said.txt"
        with self.said.open("w") as said:
            self.process = subprocess.Popen(
                [str(word) for word in command],
                env=inherited | ENVIRONMENT | dict(environment),
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_for(self, *names):
        """Until these files are in the folder."""
        deadline = time.monotonic() + START_SECONDS
        while not all((self.folder / name).exists() for name in names):
            assert time.monotonic() < deadline and self.process.poll() is None, f"no {names}: {self.output()}"
            time.sleep(0.05)

    def wait_until_it_trains(self, ranks=RANKS):
        self.wait_for(*(f"{rank}.begun" for rank in range(ranks)))

    def pid(self, rank) -> int:
        self.wait_for(f"{rank}.pid")
        return int((self.folder / f"{rank}.pid").read_text())

    def signal(self, rank, number):
        os.kill(self.pid(rank), number)

    def signal_launcher(self, number):
        os.kill(self.process.pid, number)

    def fail(self, rank):
        """An exception on this rank, in its next step."""
        (self.folder / f"{rank}.raise").touch()

    def finish(self, bound) -> tuple[int, str]:
        """Exit code and output; fails the test if the job has not ended within ``bound`` seconds."""
        try:
            code = self.process.wait(bound)
        except subprocess.TimeoutExpired:
            pytest.fail(f"no end within {bound:g} s; output:\n{self.output()[-5000:]}")
        return code, self.output()

    def output(self) -> str:
        return self.said.read_text(errors="replace")

    def clean_up(self):
        """End what this job has left, and nothing else."""
        if self.process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        for file in self.folder.glob("*.pid"):
            with suppress(OSError, ValueError):
                pid = int(file.read_text())
                if str(self.folder) in Path(f"/proc/{pid}/cmdline").read_text():
                    os.kill(pid, signal.SIGKILL)


def reasons(output: str) -> list[str]:
    """What grsgd itself has said of what went wrong, on which rank."""
    return re.findall(r"^grsgd: rank .*", output, re.MULTILINE)
