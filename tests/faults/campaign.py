"""Faults drawn at random, on all algorithms in real time: ``python -m tests.faults.campaign --faults 200 --seed 0``.

Every job must end within its time and as docs/how-to/failures.md says. It must leave whole files only, and no process.
In the end a table has the outcomes by kind of fault. Exit code 0 if all were as documented.
"""

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from grsgd import load_run
from grsgd.algorithms import ALGORITHMS
from grsgd.algorithms.central import workers_of
from grsgd.testbed.hosts import Testbed
from tests.faults.conftest import CONFIG
from tests.support.launcher import bin_of
from tests.support.training_job import RANKS, TrainingJob

BOUND = 60
"""Seconds from the fault to the end of the job."""
SURVIVORS = sorted(name for name, algorithm in ALGORITHMS.items() if algorithm.traits.survives_deaths)
KEEPING = sorted(name for name, algorithm in ALGORITHMS.items() if algorithm.remembers is not None)


class Case(NamedTuple):
    """One fault: its kind, and what it happens to. ``moment``: seconds after training has begun."""

    number: int
    kind: str
    algorithm: str
    launcher: str
    rank: int
    moment: float

    def __str__(self):
        return f"{self.number}: {self.kind}, {self.algorithm}, {self.launcher}, rank {self.rank}, {self.moment:.2f} s"


class Attempt:
    """A case with its folder, and the jobs that were started in it."""

    def __init__(self, case: Case, folder: Path):
        self.case, self.folder = case, folder
        self.jobs: list[TrainingJob] = []

    def start(
        self, seconds=60.0, steps=None, ranks=RANKS, arguments=(), data="digits", testbed=None
    ) -> TrainingJob:
        """Start the job, which trains for so long, or so many steps; on a testbed, if there is one."""
        text = CONFIG.format(algorithm=self.case.algorithm, options="", seconds=seconds, timeout=10.0)
        text = text if steps is None else text.replace(f"seconds = {seconds}", f"steps = {steps}")
        text, arguments = text.replace("digits", data), [str(argument) for argument in arguments]
        job = TrainingJob(testbed or self.case.launcher, self.folder, text, ranks=ranks, arguments=arguments)
        self.jobs.append(job)
        return job

    def started(self, **options) -> TrainingJob:
        """Start the job, and return when it is the moment."""
        job = self.start(**options)
        algorithm = ALGORITHMS[self.case.algorithm]
        job.wait_until_it_trains(workers_of(algorithm, algorithm.Options(), RANKS))
        time.sleep(self.case.moment)
        return job

    def ends(self, job: TrainingJob, succeeds: bool, words: str = "") -> str:
        """Check how a job ends; returns its outcome in a few words."""
        code, output = job.finish(BOUND)
        assert (code == 0) == succeeds, f"exit code {code}: {output[-3000:]}"
        assert words in output, output[-3000:]
        if not job.out.exists():
            assert not succeeds, "no run file"
            return "ended, without a run file"
        run = load_run(job.out)
        assert (run.attributes["ended"] == "completed") == succeeds, run.attributes["reason"]
        return "went on to its end" if succeeds else "ended, with what was measured"


KINDS: dict[str, tuple[Callable[[Attempt], str], list[str], list[str]]] = {}
"""By kind of fault: what does it and returns the outcome, the algorithms, and the launchers."""


def kind(name: str, algorithms=None, launchers=("openmpi", "ulfm", "mpich")):
    def add(function):
        KINDS[name] = function, list(algorithms or sorted(ALGORITHMS)), list(launchers)
        return function

    return add


@kind("a process is killed")
def killed(attempt: Attempt) -> str:
    case = attempt.case
    survives = case.launcher == "ulfm" and case.algorithm in SURVIVORS
    job = attempt.started(seconds=4.0 if survives else 60.0)
    job.signal(case.rank, signal.SIGKILL)
    return attempt.ends(job, succeeds=survives)


@kind("two are killed, one while the other is replaced", SURVIVORS, ["ulfm"])
def killed_twice(attempt: Attempt) -> str:
    case = attempt.case
    job = attempt.started(seconds=5.0, ranks=RANKS + 3, arguments=["--spares", 3])
    job.signal(case.rank, signal.SIGKILL)
    time.sleep(0.04 * case.moment)
    job.signal((case.rank + 1) % (RANKS + 1), signal.SIGKILL)  # the spare that takes over among them
    return attempt.ends(job, succeeds=True)


@kind("a process stands still for a while")
def paused(attempt: Attempt) -> str:
    job = attempt.started(seconds=4.0)
    job.signal(attempt.case.rank, signal.SIGSTOP)
    time.sleep(0.3 + attempt.case.moment)
    job.signal(attempt.case.rank, signal.SIGCONT)
    return attempt.ends(job, succeeds=True)


@kind("a process stands still for good, and is not waited for", SURVIVORS, ["ulfm"])
def silent(attempt: Attempt) -> str:
    arguments = ["--spares", 1, "--set", "comm.silent_seconds=1.5"]
    job = attempt.started(seconds=6.0, ranks=RANKS + 1, arguments=arguments)
    job.signal(attempt.case.rank, signal.SIGSTOP)
    return attempt.ends(job, succeeds=True, words="has given no sign of life")


@kind("a link is cut for a while", launchers=["openmpi"])
def cut(attempt: Attempt) -> str:
    """TCP sends again what was lost; after longer and longer pauses, so it takes longer than the cut."""
    if os.geteuid():
        return "not tried: needs root"
    with Testbed(hosts=RANKS) as testbed:
        job = attempt.started(seconds=5.0, testbed=testbed)
        with testbed.cut(attempt.case.rank):
            time.sleep(0.2 + attempt.case.moment)
        return attempt.ends(job, succeeds=True)


@kind("a rank raises an exception")
def raises(attempt: Attempt) -> str:
    algorithm = ALGORITHMS[attempt.case.algorithm]
    workers = workers_of(algorithm, algorithm.Options(), RANKS)
    job = attempt.started()
    job.fail(attempt.case.rank % workers)
    return attempt.ends(job, succeeds=False, words="RuntimeError: boom")


@kind("SIGTERM to the launcher")
def terminated(attempt: Attempt) -> str:
    job = attempt.started()
    job.signal_launcher(signal.SIGTERM)
    return attempt.ends(job, succeeds=False)


@kind("SIGINT to the launcher")
def interrupted(attempt: Attempt) -> str:
    job = attempt.started()
    job.signal_launcher(signal.SIGINT)
    return attempt.ends(job, succeeds=False)


@kind("the launcher is killed")
def launcher_killed(attempt: Attempt) -> str:
    job = attempt.started()
    pids = [job.pid(rank) for rank in range(RANKS)]
    job.signal_launcher(signal.SIGKILL)
    deadline = time.monotonic() + BOUND
    while any(is_running(pid) for pid in pids):
        assert time.monotonic() < deadline, "ranks go on without their launcher"
        time.sleep(0.1)
    return "ended, with what was measured" if job.out.exists() else "ended, without a run file"


@kind("all are killed between checkpoints", KEEPING, ["openmpi", "mpich"])
def resumed(attempt: Attempt) -> str:
    """With a checkpoint every fifth step many are killed while one is written, some while the run file is.

    The model of a synchronous algorithm must be the one of a run that was not disturbed.
    """
    kept, undisturbed, disturbed = (attempt.folder / name for name in ("kept", "undisturbed.pt", "disturbed.pt"))
    job = attempt.started(steps=70, arguments=["--checkpoint", kept, "--every", 5])
    for rank in range(RANKS):
        with suppress(ProcessLookupError):  # it may have ended
            job.signal(rank, signal.SIGKILL)
    job.finish(BOUND)
    is_there = any(kept.glob("samples-*"))
    arguments = ["--resume" if is_there else "--checkpoint", kept, "--save", disturbed]
    attempt.ends(attempt.start(steps=70, arguments=arguments), succeeds=True)
    outcome = "went on from its checkpoint" if is_there else "began anew: no checkpoint yet"
    if not ALGORITHMS[attempt.case.algorithm].traits.synchronous:
        return outcome
    attempt.ends(attempt.start(steps=70, arguments=["--save", undisturbed]), succeeds=True)
    models = [torch.load(path, weights_only=True) for path in (undisturbed, disturbed)]
    assert all(torch.equal(models[0][name], models[1][name]) for name in models[0]), "another model than undisturbed"
    return f"{outcome}, with the same model in the end"


@kind("the disk is full", launchers=["openmpi"])
def disk_full(attempt: Attempt) -> str:
    if os.geteuid():
        return "not tried: needs root"
    with small_disk(attempt.folder / "disk") as disk:
        job = attempt.started(seconds=4.0, arguments=["--out", disk / "run.h5"])
        with suppress(OSError), (disk / "filler").open("wb", buffering=0) as filler:
            while True:
                filler.write(bytes(4096))
        code, output = job.finish(BOUND)
        assert code == 1 and "the run was saved as " in output and "Traceback" not in output, output
        saved = output.partition("the run was saved as ")[2].partition(" instead")[0].replace("\n", "")
        load_run(saved)
        shutil.rmtree(Path(saved).parent) if Path(saved).parent.name.startswith("grsgd-") else Path(saved).unlink()
        return "ended, and saved the run elsewhere"


@kind("the data cannot be read", launchers=["openmpi", "mpich"])
def data_missing(attempt: Attempt) -> str:
    job = attempt.start(data="mnist", arguments=["--data-dir", attempt.folder / "nowhere"])
    code, output = job.finish(BOUND)
    assert code == 2 and output.strip().startswith("grsgd: error: ") and "Traceback" not in output, output
    return "refused"


@contextmanager
def small_disk(folder: Path):
    """A file system of half a MiB."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("X", "Z")
    except OSError:
        return False


def is_there(launcher: str) -> bool:
    try:
        bin_of("mpich" if launcher == "mpich" else "openmpi")
    except pytest.skip.Exception:
        return False
    return True


def draw(number: int, seed: int, only: str | None = None) -> Case:
    """Return case ``number`` of a campaign: the kinds in turn, or ``only`` one, all else at random."""
    random_ = random.Random(f"{seed} {number}")
    name = only or list(KINDS)[number % len(KINDS)]
    _, algorithms, launchers = KINDS[name]
    launcher = random_.choice([launcher for launcher in launchers if is_there(launcher)])
    return Case(number, name, random_.choice(algorithms), launcher, random_.randrange(RANKS), 1.5 * random_.random())


def carry_out(case: Case) -> str:
    """Return the outcome; raises AssertionError, or what pytest raises, where it is not what is documented."""
    with tempfile.TemporaryDirectory(prefix="campaign-") as folder:
        attempt = Attempt(case, Path(folder))
        try:
            outcome = KINDS[case.kind][0](attempt)
            broken = [file.name for file in Path(folder).rglob("*.h5") if not is_whole(file)]
            assert not broken, f"broken files: {broken}"
            return outcome
        finally:
            for job in attempt.jobs:
                job.clean_up()


def is_whole(file: Path) -> bool:
    """Whether a run file can be read; checkpoints are read when a run goes on from them."""
    if file.name.startswith("rank-"):
        return True
    try:
        return load_run(file) is not None
    except ValueError:
        return False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--faults", type=int, default=200, help="how many (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=KINDS, metavar="KIND", help=f"one kind of fault: {', '.join(KINDS)}")
    parser.add_argument("--at-once", type=int, default=2, help="jobs side by side (default: %(default)s)")
    options = parser.parse_args()
    outcomes: dict[str, Counter] = defaultdict(Counter)
    wrong, began, printing = [], time.monotonic(), threading.Lock()

    def one(number: int):
        case = draw(number, options.seed, options.only)
        try:
            outcome = carry_out(case)
        except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001  told, and the campaign goes on
            outcome = "NOT AS DOCUMENTED"
            wrong.append(f"{case}\n{error}")
        with printing:
            outcomes[case.kind][outcome] += 1
            print(f"{case}: {outcome}", flush=True)

    with ThreadPoolExecutor(options.at_once) as pool:
        list(pool.map(one, range(options.faults)))
    print(f"\n{options.faults} faults in {(time.monotonic() - began) / 60:.0f} min, {len(wrong)} not as documented\n")
    print("| fault | outcomes |\n|---|---|")
    for name in filter(outcomes.get, KINDS):
        print(f"| {name} | {'; '.join(f'{count} {outcome}' for outcome, count in outcomes[name].most_common())} |")
    print("\n\n".join(["", *wrong]) if wrong else "")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
