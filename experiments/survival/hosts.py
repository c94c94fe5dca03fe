"""Jobs of ``grsgd run --restarts`` on a testbed that loses a host again and again, as by power failures.

    python -m experiments.survival.hosts --losses 10 --rate 1gbit --rate 10mbit --out FILE.csv

Ranks train on four hosts, with ``--ranks-per-host`` ranks on each host. A fifth host is spare. On average every
``--every`` seconds, a random host that has ranks is lost: its link is cut, its processes are stopped, and the states
that it keeps in memory are erased. A lost host is back after ``--back`` seconds. A job without losses of hosts would
take ``--losses`` times ``--every`` seconds. A training step is mostly a pause, so that two cores suffice for all hosts.

Goodput is the duration of the job without losses and without checkpoints in memory, divided by the duration of the job
with losses. The jobs with and without losses take the same training steps. The duration of a job is the time of its
whole command, from the start to the exit code. A job that is already in the table of results is not run again.
"""

import argparse
import csv
import json
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import numpy as np

from experiments.arguments import parse_once, positive
from grsgd import load_run
from grsgd.mpi_environment import job_environment
from grsgd.runs.ending import Ended
from grsgd.testbed import links
from grsgd.testbed.hosts import Testbed
from grsgd.training.description import commit

ALGORITHMS = {"grsgd": {}, "ring_allreduce": {}, "diloco": {"H": 8}}
HOSTS = 5
"""Number of hosts of the testbed, including the spare host."""
STEP_SECONDS = 0.5
MEMORY_STEPS = {"grsgd": 20, "ring_allreduce": 2, "diloco": 2}
"""Number of steps from one checkpoint in memory to the next, by algorithm.

At each checkpoint, the ranks of an asynchronous algorithm wait for each other, for half a step on average.
"""
NO_RESULT = 99
"""Exit code in the table for a job that ended with exit code 0 without a complete run file."""


class Job(NamedTuple):
    """A row of the table of jobs: a job, the losses of its hosts, and its results.

    ``slots`` is the number of ranks on each host, and ``every`` is the mean number of seconds from one loss of a host
    to the next. The job counts as hung after ``bound`` times its planned duration. ``losses`` is the number of hosts
    that were lost during the job. ``seconds`` is the duration of the job with losses of hosts, and ``calm_seconds`` is
    its duration without losses. ``accuracy`` and ``calm_accuracy`` are the final test accuracies with and without
    losses of hosts. ``back`` has, for each lost host, the seconds from the detection of the loss until the training
    went on. ``said`` is the last line of the output if the job failed.
    """

    algorithm: str
    rate: str
    slots: int
    every: float
    bound: float
    seed: int
    losses: int
    exit_code: int
    seconds: float
    calm_seconds: float
    back: str
    accuracy: float
    calm_accuracy: float
    participation: float
    said: str
    commit: str

    @property
    def goodput(self) -> float:
        return self.calm_seconds / self.seconds


def config_of(algorithm: str, steps: int, ranks: int) -> str:
    """Return the configuration of a job as TOML text."""
    lines = ["seed = 0", "[algorithm]", f'name = "{algorithm}"']
    lines += [f"{key} = {json.dumps(value)}" for key, value in ALGORITHMS[algorithm].items()]
    lines += ["[model]", 'name = "mlp"', "hidden = [256]", "[data]", 'name = "digits"', "batch_size = 32"]
    lines += ["[optimizer]", "lr = 0.05", "[train]", f"steps = {steps}", "snapshots = 4", "[comm]", "timeout = 60.0"]
    lines += ["[stragglers.pause]", *(f"{rank} = {{ every = 1, seconds = {STEP_SECONDS} }}" for rank in range(ranks))]
    return "\n".join(lines) + "\n"


class Storm:
    """A thread that disconnects a random host every ``every`` seconds on average.

    A disconnected host is connected again after ``back`` seconds. ``memory`` is the folder of the states that the
    hosts keep in memory.
    """

    def __init__(self, testbed: Testbed, every: float, back: float, seed: int, memory: Path):
        self.testbed, self.every, self.back, self.memory = testbed, every, back, memory
        self.random, self.losses = np.random.default_rng(seed), 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *exception):
        self._end.set()
        self._thread.join()

    def _run(self):
        away, due = {}, time.monotonic() + self._interval()
        with ExitStack() as cuts:
            while not self._end.wait(0.1):
                now = time.monotonic()
                for index in [index for index, (until, _) in away.items() if until <= now]:
                    away.pop(index)[1].close()
                if now < due:
                    continue
                taken = [index for index, host in enumerate(self.testbed.hosts) if links.processes(host)]
                taken = [index for index in taken if index not in away]
                if taken:
                    index = int(self.random.choice(taken))
                    away[index] = now + self.back, cuts.enter_context(ExitStack())
                    away[index][1].enter_context(self.testbed.lost(index))
                    for states in self.memory.glob(f"*-{self.testbed.hosts[index]}"):
                        shutil.rmtree(states, ignore_errors=True)
                    self.losses += 1
                    due = now + self._interval()

    def _interval(self) -> float:
        return self.every * self.random.uniform(0.5, 1.5)


class Found(NamedTuple):
    """The result of a job's command, with its exit code and its duration.

    ``said`` is the last line of output if the job failed, and ``losses`` is the number of lost hosts.
    The exit code of a job is 124 if the job has hung. If the job has left no complete run file, the exit code 0 is
    replaced by `NO_RESULT`.
    """

    code: int
    seconds: float
    said: str
    losses: int
    back: list[float]
    accuracy: float = np.nan
    participation: float = np.nan


def run(testbed: Testbed, slots: int, config: Path, bound: float, options: list[str], storm: Storm | None) -> Found:
    """Run a job with ``slots`` ranks on each host except the spare host.

    If ``storm`` is given, the storm disconnects hosts during the job. A job that has not ended after ``bound`` seconds
    is ended and counts as hung.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        out, kept, log = (Path(folder, name) for name in ("run.h5", "kept", "log"))
        hosts = ",".join(f"{host}:{slots}" for host in testbed.hosts)
        command = [sys.executable, "-m", "grsgd", "run", "-n", (HOSTS - 1) * slots, "--hosts", hosts]
        command += ["--restarts", 1000, config, "--out", out, "--checkpoint", kept, *options]
        began = time.monotonic()
        with log.open("w") as file, storm or ExitStack():
            job = subprocess.Popen(
                testbed.enter(testbed.head, command),
                cwd=folder,
                env=job_environment() | testbed.settings(),
                stdout=file,
                stderr=file,
            )
            try:
                code = job.wait(bound)
            except subprocess.TimeoutExpired:
                job.kill()
                job.wait()
                code = 124
        seconds = time.monotonic() - began
        lines = log.read_text().splitlines()
        losses = storm.losses if storm else 0
        about = load_run(out).attributes if out.exists() else {}
        if code or about.get("ended") != Ended.COMPLETED:
            print("\n".join(lines[-20:]), flush=True)
            return Found(code or NO_RESULT, seconds, lines[-1] if lines else "", losses, [])
        back = [float(text) for text in re.findall(r"went on after ([\d.]+) s", str(about.get("restarts")))]
        return Found(code, seconds, "", losses, back, about["final_test_accuracy"], about["participation"])


def make(options, algorithm: str, rate: str, seed: int, calm: Found | None) -> tuple[Job, Found]:
    """Run a job with losses of hosts.

    If ``calm``, the result of the same job without losses, is None, the job is first run without losses.
    """
    planned, slots = options.losses * options.every, options.ranks_per_host
    bound = planned * options.bound
    with ExitStack() as opened:
        folder = opened.enter_context(tempfile.TemporaryDirectory())
        memory = opened.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm"))
        testbed = opened.enter_context(Testbed(hosts=HOSTS, rate=rate))
        config = Path(folder, "run.toml")
        config.write_text(config_of(algorithm, round(planned / STEP_SECONDS), (HOSTS - 1) * slots))
        on_disk = ["--every", options.checkpoints]
        in_memory = ["--memory", MEMORY_STEPS[algorithm], "--memory-folder", memory]
        calm = calm or run(testbed, slots, config, bound, on_disk, None)
        if calm.code:
            raise SystemExit(f"the job without losses has failed with exit code {calm.code}: {calm.said}")
        storm = Storm(testbed, options.every, options.back, seed, Path(memory))
        found = run(testbed, slots, config, bound, [*on_disk, *in_memory], storm)
    back = " ".join(f"{seconds:g}" for seconds in found.back)
    seconds = round(found.seconds, 1), round(calm.seconds, 1)
    quality = found.accuracy, calm.accuracy, found.participation
    row = algorithm, rate, slots, options.every, options.bound, seed, found.losses, found.code, *seconds, back, *quality
    return Job(*row, found.said, str(commit())), calm


def read(path: Path) -> list[Job]:
    """Return the jobs in the table of the CSV file ``path``; an empty list if the file does not exist."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return [Job(**{name: Job.__annotations__[name](row[name]) for name in Job._fields}) for row in rows]


def write(path: Path, jobs: list[Job]):
    with path.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([Job._fields, *jobs])


def set_up(job: Job) -> tuple[str, str, int, float]:
    """Return a job's algorithm, link rate, ranks per host, and mean seconds from one loss of a host to the next."""
    return job.algorithm, job.rate, job.slots, job.every


def table(jobs: list[Job]) -> str:
    """Return the jobs as a Markdown table.

    A row of the table has all jobs of one algorithm, link rate, number of ranks, and time from one loss to the next.
    """
    lines = [
        "| algorithm | links | ranks | a loss every | lost hosts | hung or failed | goodput, mean (lowest) | "
        "seconds back, median (longest) | participation | accuracy, and without losses |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for key in dict.fromkeys(map(set_up, jobs)):
        of_key = [job for job in jobs if set_up(job) == key]
        algorithm, rate, slots, every = key
        right = [job for job in of_key if job.exit_code == 0]
        goodput = [100 * job.goodput for job in right] or [np.nan]
        back = [float(seconds) for job in right for seconds in job.back.split()] or [np.nan]
        names = "participation", "accuracy", "calm_accuracy"
        shares = [100 * np.mean([getattr(job, name) for job in right] or [np.nan]) for name in names]
        cells = [
            *(f"`{algorithm}`", rate, (HOSTS - 1) * slots, f"{every:g} s"),
            *(sum(job.losses for job in of_key), len(of_key) - len(right)),
            f"{np.mean(goodput):.1f} % ({min(goodput):.1f})",
            f"{np.median(back):.1f} ({max(back):.1f})",
            "{:.1f} % | {:.1f} %, {:.1f} %".format(*shares),
        ]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithms", nargs="+", choices=ALGORITHMS, default=list(ALGORITHMS))
    parser.add_argument("--rate", action="append", metavar="RATE", help="rate of the links (default: 1gbit and 10mbit)")
    parser.add_argument(
        "--ranks-per-host", type=positive, default=2, metavar="N", help="ranks on each host (default: %(default)s)"
    )
    parser.add_argument("--jobs", type=int, default=1, help="jobs per algorithm and rate (default: %(default)s)")
    parser.add_argument("--losses", type=float, default=10, help="planned losses of a job (default: %(default)s)")
    parser.add_argument("--every", type=float, default=60, metavar="SECONDS", help="(default: %(default)s)")
    parser.add_argument("--back", type=float, default=30, metavar="SECONDS", help="(default: %(default)s)")
    parser.add_argument(
        "--bound",
        type=float,
        default=4.0,
        metavar="TIMES",
        help="end a job as hung after this multiple of LOSSES times SECONDS of --every (default: %(default)s)",
    )
    parser.add_argument(
        "--checkpoints", default="60s", metavar="SECONDS", help="between checkpoints on disk (default: %(default)s)"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.csv", help="table of the jobs")
    options = parse_once(parser)
    jobs = read(options.out)
    for rate in options.rate or ["1gbit", "10mbit"]:
        for algorithm in options.algorithms:
            calm = None
            for seed in range(options.jobs):
                wanted = (algorithm, rate, options.ranks_per_host, options.every), options.bound, seed
                if any((set_up(job), job.bound, job.seed) == wanted for job in jobs):
                    continue
                job, calm = make(options, algorithm, rate, seed, calm)
                print(job, flush=True)
                write(options.out, jobs := [*jobs, job])
    print(table(jobs))
    return int(any(job.exit_code for job in jobs))


if __name__ == "__main__":
    sys.exit(main())
