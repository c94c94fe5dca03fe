"""Several runs in one MPI job: starting Python and torch takes longer than many a run, and most of all on few cores.

`make` starts ``mpiexec ... python -m experiments.batch LIST.json``, which makes one run after the other.
"""

import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import NamedTuple

import torch

from experiments.cache import Unfinished, finished
from experiments.ending import with_parent
from experiments.environment import environment
from grsgd import calibrate, config, launch
from grsgd.run import run

STARTING_SECONDS = 120
"""What a job may take until all of its ranks are there."""
POLL_SECONDS = 0.1


class Place(NamedTuple):
    """Where ranks run. ``mpiexec``: from its arguments to the command that runs it. ``hurried()``: a context in which
    programs may start and end faster than they may compute in between."""

    mpiexec: Callable[[list], list]
    hurried: Callable[[], AbstractContextManager] = nullcontext


class Training(NamedTuple):
    """One run: its configuration, ``key=value``s that replace some of it, and its run file."""

    config: str
    overrides: list[str]
    out: str

    def make(self, mpi, partly: Path):
        """On all ranks. Raises UsageError; where the run neither reaches its end nor diverges, the job ends with it."""
        stopped, living = run(mpi, load(mpi, self.config, self.overrides), partly)
        if not finished(stopped) or living.size < mpi.size:
            if living.rank == 0:
                print(f"grsgd: error: {stopped}", file=sys.stderr)
            launch.leave(living, 1, complete=living.size == mpi.size)


class Calibration(NamedTuple):
    """What ``grsgd calibrate`` does, with so many steps of training."""

    config: str
    overrides: list[str]
    out: str
    steps: int = 30

    def make(self, mpi, partly: Path):
        """On all ranks. Raises UsageError."""
        loaded = load(mpi, self.config, self.overrides)
        measured = calibrate.calibrate(mpi, loaded, self.steps)
        if mpi.rank == 0:
            settings = [word for override in self.overrides for word in ("--set", override)]
            words = ["grsgd", "calibrate", self.config, *settings, "--steps", str(self.steps), "--out", self.out]
            calibrate.write(partly, calibrate.network_file(measured, loaded, shlex.join(words)))


KINDS = {kind.__name__: kind for kind in (Training, Calibration)}


def load(mpi, path: str, overrides: list[str]) -> config.Config:
    """Raises UsageError, on all ranks."""
    with launch.together(mpi, (config.ConfigError,)):
        return config.load(Path(path), overrides)


def make(place: Place, ranks: int, runs: list[Training | Calibration], seconds: float) -> Iterator[NamedTuple]:
    """Make all runs in one job of so many ranks; yields each when its file is there, and whole.

    seconds: for one run, at most.

    Raises Unfinished if the job fails or a run takes too long.
    """
    for one in runs:
        Path(one.out).unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        todo, said = Path(folder) / "runs.json", Path(folder) / "said"
        todo.write_text(json.dumps([(type(one).__name__, *one) for one in runs]))
        command = place.mpiexec(["-n", ranks, sys.executable, "-m", "experiments.batch", todo])
        with said.open("w") as output, started(command, output, [partly(one.out) for one in runs]) as job:

            def wait_for(file: Path, seconds: float):
                deadline = time.monotonic() + seconds
                while not file.exists():
                    if job.poll() is not None and not file.exists():
                        raise Unfinished(f"{file.name}: {reason(said.read_text(errors='replace'))}")
                    if time.monotonic() > deadline:
                        raise Unfinished(f"{file.name}: no end within {seconds:g} s")
                    time.sleep(POLL_SECONDS)

            with place.hurried():
                wait_for(here(todo), STARTING_SECONDS)
            here(todo).unlink()
            for one in runs:
                wait_for(Path(one.out), seconds)
                yield one
            with place.hurried(), suppress(subprocess.TimeoutExpired):  # all files are there
                job.wait(STARTING_SECONDS)


@contextmanager
def started(command: list, output, leftovers: list[Path]) -> Iterator[subprocess.Popen]:
    """A job that has ended, one way or the other, when the block is left, and is killed with this process."""
    words = [str(word) for word in command]
    job = subprocess.Popen(
        words,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        text=True,
        preexec_fn=with_parent(),
    )
    try:
        yield job
    finally:
        if job.poll() is None:
            job.terminate()
            with suppress(subprocess.TimeoutExpired):
                job.wait(10)
            job.kill()
            job.wait(STARTING_SECONDS)
        for path in leftovers:
            path.unlink(missing_ok=True)


def here(todo: Path) -> Path:
    """The file that says that all ranks are here; they begin when it is gone."""
    return todo.with_name("here")


def partly(out: str) -> Path:
    """Where a run is written first: its file is there before its accuracies are."""
    return Path(out).with_suffix(f".part{Path(out).suffix}")


def reason(said: str) -> str:
    """Why a job failed: what grsgd says in one line, or else the end of what there is."""
    lines = [line for line in said.splitlines() if line.startswith("grsgd: ") and not line.endswith("failed:")]
    return lines[0] if lines else said[-3000:].strip() or "it said nothing"


def main() -> int:
    """On every rank: make the runs of the list."""
    mpi, todo = launch.world(), Path(sys.argv[1])
    launch.abort_on_error(mpi)
    warm_up()
    try:
        launch.meet(mpi)
        if mpi.rank == 0:
            here(todo).touch()
            wait_until_gone(here(todo))
        launch.meet(mpi)
        runs = json.loads(todo.read_text()) if mpi.rank == 0 else None
        for kind, *what in mpi.bcast(runs):  # the list may lie on a disk of rank 0's host alone
            one = KINDS[kind](*what)
            one.make(mpi, partly(one.out))
            launch.meet(mpi)
            if mpi.rank == 0:
                os.replace(partly(one.out), one.out)
    except launch.UsageError as error:
        if mpi.rank == 0:
            print(f"grsgd: error: {error}", file=sys.stderr)
        return 2
    return 0


def warm_up():
    """A first step: torch imports much of itself only then."""
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    torch.nn.functional.cross_entropy(model(torch.zeros(1, 1)), torch.zeros(1, dtype=torch.int64)).backward()
    optimizer.step()


def wait_until_gone(file: Path):
    """Raises UsageError if that takes too long."""
    deadline = time.monotonic() + STARTING_SECONDS
    while file.exists():
        if time.monotonic() > deadline:
            raise launch.UsageError("nobody has said that the runs may begin")
        time.sleep(POLL_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
