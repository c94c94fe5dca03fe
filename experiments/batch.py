"""Several runs in one MPI job: starting Python and torch takes longer than many a run, and most of all on few cores.

`train` starts ``mpiexec ... python -m experiments.batch LIST.json``, which makes one run after the other.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from experiments.cache import Unfinished
from experiments.environment import environment
from grsgd import config, launch

STARTING_SECONDS = 60
"""What a job may take longer for its first run than for the others."""
POLL_SECONDS = 0.1


Mpiexec = Callable[[list], list]
"""From arguments of mpiexec to the command that runs it."""


class Training(NamedTuple):
    """One run: its configuration, ``key=value``s that replace some of it, and its run file."""

    config: str
    overrides: list[str]
    out: str


def train(mpiexec: Mpiexec, ranks: int, runs: list[Training], seconds: float) -> Iterator[Training]:
    """Make all runs in one job of so many ranks; yields each when its file is there, and whole.

    seconds: for one run, at most.

    Raises Unfinished if the job fails or a run takes too long.
    """
    for run in runs:
        Path(run.out).unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        todo, said = Path(folder) / "runs.json", Path(folder) / "said"
        todo.write_text(json.dumps(runs))
        command = mpiexec(["-n", ranks, sys.executable, "-m", "experiments.batch", todo])
        with said.open("w") as output, started(command, output, [partly(run.out) for run in runs]) as job:
            for number, run in enumerate(runs):
                deadline = time.monotonic() + seconds + (0 if number else STARTING_SECONDS)
                while not Path(run.out).exists():
                    if job.poll() is not None and not Path(run.out).exists():
                        raise Unfinished(f"{Path(run.out).name}: {reason(said.read_text(errors='replace'))}")
                    if time.monotonic() > deadline:
                        raise Unfinished(f"{Path(run.out).name}: no end within {seconds:g} s")
                    time.sleep(POLL_SECONDS)
                yield run


def calibrate(mpiexec: Mpiexec, ranks: int, toml: Path, overrides, out: Path, seconds: float, steps: int = 30):
    """Run ``grsgd calibrate`` on so many ranks. Raises Unfinished."""
    settings = [word for override in overrides for word in ("--set", override)]
    words = ["-n", ranks, sys.executable, "-m", "grsgd", "calibrate", toml, *settings, "--steps", steps, "--out", out]
    command = [str(word) for word in mpiexec(words)]
    try:
        done = subprocess.run(
            command, env=environment(), timeout=seconds, capture_output=True, text=True, errors="replace", check=False
        )
    except subprocess.TimeoutExpired:
        raise Unfinished(f"calibrate: no end within {seconds:g} s") from None
    if done.returncode:
        raise Unfinished(f"calibrate: {reason(done.stderr)}")


@contextmanager
def started(command: list, output, leftovers: list[Path]) -> Iterator[subprocess.Popen]:
    """A job that has ended, one way or the other, when the block is left."""
    words = [str(word) for word in command]
    job = subprocess.Popen(words, env=environment(), stdin=subprocess.DEVNULL, stdout=output, stderr=output, text=True)
    try:
        yield job
        with suppress(subprocess.TimeoutExpired):  # all files are there
            job.wait(STARTING_SECONDS)
    finally:
        if job.poll() is None:
            job.terminate()
            with suppress(subprocess.TimeoutExpired):
                job.wait(10)
            job.kill()
            job.wait(STARTING_SECONDS)
        for path in leftovers:
            path.unlink(missing_ok=True)


def partly(out: str) -> Path:
    """Where a run is written first: its file is there before its accuracies are."""
    return Path(out).with_suffix(".part.h5")


def reason(said: str) -> str:
    """Why a job failed: what grsgd says in one line, or else the end of what there is."""
    lines = [line for line in said.splitlines() if line.startswith("grsgd: ") and not line.endswith("failed:")]
    return lines[0] if lines else said[-3000:].strip() or "it said nothing"


def main() -> int:
    """On every rank: make the runs of the list."""
    from grsgd.run import run

    mpi = launch.world()
    launch.abort_on_error(mpi)
    try:
        runs = json.loads(Path(sys.argv[1]).read_text()) if mpi.rank == 0 else None
        for settings, overrides, out in mpi.bcast(runs):  # the list may lie on a disk of rank 0's host alone
            with launch.together(mpi, (config.ConfigError,)):
                loaded = config.load(Path(settings), overrides)
            stopped, living = run(mpi, loaded, partly(out))
            if stopped not in config.ENDS or living.size < mpi.size:
                if living.rank == 0:
                    print(f"grsgd: error: {stopped}", file=sys.stderr)
                launch.leave(living, 1, complete=living.size == mpi.size)
            launch.meet(mpi)
            if mpi.rank == 0:
                os.replace(partly(out), out)
    except launch.UsageError as error:
        if mpi.rank == 0:
            print(f"grsgd: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
