"""Tests of training loops of users: jobs in which two of six processes die at random moments, one of which is rank 0.

    python -m experiments.survival.own_loops --jobs 50
    python -m experiments.survival.own_loops --jobs 50 --script gpt --out FILE.csv
    python -m experiments.survival.own_loops --jobs 50 --script train --out OTHER.csv

Each job must end by itself with exit code 0, on all ranks that are left. The loss of a job must differ by at most 1 %
from the losses of jobs without deaths. For algorithms whose ranks do not step together, equal jobs have different
losses. Five jobs without deaths give the range of losses of an algorithm whose ranks do not step together. Every
second job has two spare processes, and all other jobs have none. The script ``loop`` is `experiments.survival.loop`.
The script ``gpt`` is ``experiments/demo/gpt.py``, some of whose processes `experiments.survival.mortal` kills. The
script ``train`` is the command `grsgd train` with a GPT of the same size as in ``gpt``, for comparison.

After each job, the table of all jobs is written to the file of the option ``--out``. If the program is called again
with the same table, it skips the jobs in the table. `experiments.survival.page` writes the part of the documentation
on failures that quotes the table.
"""

import argparse
import csv
import json
import re
import subprocess
import sys
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from experiments.arguments import parse_once
from grsgd import load_run
from grsgd.job.words import asked_for
from grsgd.mpi_environment import SPARES, find_mpiexec, job_environment
from grsgd.training.description import commit

ALGORITHMS = {
    "loop": ("ring_allreduce", "grsgd", "local_sgd", "gossip", "dpsgd"),
    "gpt": ("ring_allreduce", "diloco", "grsgd", "dpsgd"),
    "train": ("ring_allreduce", "diloco", "grsgd", "dpsgd"),
}
"""Algorithms of the jobs, by name of the script that the jobs run."""
CALM_RUNS = {"grsgd": 5, "gossip": 5}
"""Number of jobs without deaths, for the algorithms whose results differ between equal jobs.

For algorithms that are not listed, one job without deaths suffices.
"""
BATCH = 96
"""Number of samples on which all ranks together train in a step of the GPT."""
SIZES = f"--batch {BATCH} --accumulate 1 --block 8 --layers 1 --heads 2 --width 8".split()
GPT = [*SIZES, *"--steps 400 --every 100 --warm-up 20 --lr 1e-2".split()]
TEXT = "text.txt"
"""Name of the file with the training text, in the temporary folder of a job."""
LETTERS, CHARACTERS = 8, 20_000
"""Number of different letters, and length of the training text.

The training text is a Markov chain, whose entropy the loss of a training reaches soon.
"""
PROGRAMS = {
    "loop": ["-m", "experiments.survival.loop"],
    "gpt": ["-m", "experiments.survival.mortal", "experiments/demo/gpt.py", "--timeout", "120", *GPT],
}
"""Arguments of Python for each script that has its own training loop, by name of the script."""
LOSSES = {"loop": r"rank \d+: \d+ steps, loss ([\d.]+)", "gpt": r"end: loss on unseen text ([\d.]+)"}
"""Patterns for lines with a final loss, by script: of each rank that is left (loop), or of the main rank (gpt)."""
PROCESSES, SPARES_OF_JOBS = 6, (0, 2)
BOUND_SECONDS, MAX_DIFFERENCE = 300.0, 0.01
"""Seconds after which a job counts as hung, and greatest relative difference of its loss from losses without deaths."""
OUT = "run.h5"
"""Name of the run file that `grsgd train` writes."""
SETTINGS = {
    "model": {"name": "gpt", "layers": 1, "heads": 2, "width": 8},
    "task": {"name": "language_modelling"},
    "optimizer": {"name": "adamw", "lr": 1e-2, "weight_decay": 0.1, "decay_norms": False, "clip": 1.0},
    "schedule": {"name": "cosine", "warmup": 0.05},
    "train": {"steps": 400, "snapshots": 1},
    "comm": {"timeout": 120.0},
}
"""Sections of the configuration for `grsgd train` that are equal in all jobs."""
DIGITS = 4
"""Number of decimals of a moment of death, which is a fraction of the training loop (0 to 1)."""


class Job(NamedTuple):
    """A row of the table of jobs: a job, the deaths of its processes, and its results.

    ``deaths`` is PROCESS:SHARE,...: for each process that died, the moment of death as a fraction of the training loop
    (0 to 1).

    ``seconds`` is the longest duration of the training loop on a rank, without the start of the processes; nan if it
    is unknown. ``losses_without_deaths`` has the losses of jobs without deaths, of the same algorithm and number of
    ranks, separated by spaces. ``seconds_without_deaths`` is the mean duration of the training loops of jobs without
    deaths.
    """

    job: int
    algorithm: str
    spares: int
    deaths: str
    exit_code: int
    losses: int
    loss: str
    losses_without_deaths: str
    seconds: str
    seconds_without_deaths: str
    commit: str


class Outcome(NamedTuple):
    """The result of a job: exit code, output, final losses of its ranks, and seconds of its loop (NaN if unknown)."""

    code: int
    output: str
    losses: list[float]
    seconds: float


def run(script: str, algorithm: str, spares: int, die: str, seconds: float = np.nan) -> Outcome:
    """Run a job in which processes die as ``die`` states.

    ``seconds`` is the duration of the training loop of the same job without deaths.
    """
    with tempfile.TemporaryDirectory() as folder, asked_for() as words:
        text = Path(folder, TEXT)
        text.write_text(text_of_chain())
        if script == "train":
            more, arguments = [], training(algorithm, spares, die, seconds, Path(folder))
        else:
            more, arguments = ["-x", f"{SPARES}={spares}"], [*PROGRAMS[script], "--algorithm", algorithm, "--die", die]
            arguments += ["--text", text] if script == "gpt" else []
        start = [find_mpiexec(), "--with-ft", "ulfm", *more, "-n", f"{PROCESSES}", sys.executable, "-u"]
        code, output = bounded(start + arguments)
        code, line = words.judged(code, False)
        output += line or ""
        if script != "train":
            losses = [float(loss) for loss in re.findall(LOSSES[script], output)]
            durations = [float(duration) for duration in re.findall(r"loop: ([\d.]+) s", output)]
            return Outcome(code, output, losses, max(durations, default=np.nan))
        if code:
            return Outcome(code, output, [], np.nan)
        found = load_run(Path(folder, OUT))
        return Outcome(code, output, [found.attributes["final_test_bits_per_byte"]], float(found.curve["time"][-1]))


def bounded(command: list) -> tuple[int, str]:
    """Run a command for at most `BOUND_SECONDS`; return its exit code (124 if it was ended) and its output."""
    with tempfile.TemporaryFile("w+") as file:
        job = subprocess.Popen(command, env=job_environment(), stdout=file, stderr=subprocess.STDOUT)
        # a loop of waits does not count time in which this process was itself suspended
        for _ in range(int(BOUND_SECONDS)):
            with suppress(subprocess.TimeoutExpired):
                job.wait(1)
                break
        else:
            job.kill()
        file.seek(0)
        return job.poll() if job.poll() is not None else 124, file.read()


def training(algorithm: str, spares: int, die: str, seconds: float, folder: Path) -> list:
    """Write the configuration of a GPT to ``folder``; return the arguments of Python for `grsgd train` with it."""
    ranks = PROCESSES - spares
    moments = [death.split(":") for death in die.split(",") if death]
    data = {"name": "text", "dir": str(folder), "file": TEXT, "block": 8, "batch_size": BATCH // ranks}
    sections = SETTINGS | {"algorithm": {"name": algorithm}, "data": data}
    lines = [
        line
        for section, keys in sections.items()
        for line in (f"[{section}]", *(f"{key} = {json.dumps(value)}" for key, value in keys.items()))
    ]
    lines += ["[faults.die]", *(f"{victim} = {float(share) * seconds:.4f}" for victim, share in moments)]
    config = folder / "gpt.toml"
    config.write_text("\n".join(lines) + "\n")
    return ["-m", "grsgd", "train", config, "--spares", f"{spares}", "--out", folder / OUT]


@cache
def text_of_chain() -> str:
    """Return the training text, whose letters follow each other with fixed probabilities (a Markov chain)."""
    random = np.random.default_rng(0)
    bounds = random.dirichlet(np.full(LETTERS, 0.3), LETTERS).cumsum(1)
    letters = [0]
    for draw in random.random(CHARACTERS - 1):
        letters.append(min(int(np.searchsorted(bounds[letters[-1]], draw)), LETTERS - 1))
    return "".join("abcdefgh"[letter] for letter in letters)


def read(path: Path | None) -> list[Job]:
    """Return the jobs in the table of the CSV file ``path``; an empty list if the file does not exist."""
    if path is None or not path.exists():
        return []
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return [Job(**{name: Job.__annotations__[name](row[name]) for name in Job._fields}) for row in rows]


def write(path: Path | None, jobs: list[Job]):
    """Write the table of the jobs to ``path``, unless ``path`` is None.

    An existing file is replaced only when the new table is complete.
    """
    if path is not None:
        part = path.with_name(f"{path.name}.part")
        with part.open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerows([Job._fields, *jobs])
        part.replace(path)


def calm(script: str, algorithm: str, spares: int, jobs: list[Job], code: str) -> tuple[str, float]:
    """Return the losses of jobs without deaths as text, and the mean duration of their training loops.

    If ``jobs``, the rows of the table, have results of the commit ``code``, the results in ``jobs`` are returned. If
    ``jobs`` have no results of the commit ``code``, jobs without deaths are run.
    """
    for job in jobs:
        if (job.algorithm, job.spares, job.commit) == (algorithm, spares, code):
            return job.losses_without_deaths, float(job.seconds_without_deaths)
    found = [run(script, algorithm, spares, "") for _ in range(CALM_RUNS.get(algorithm, 1))]
    for each in found:
        print(f"{algorithm}, {spares} spares, no deaths: exit code {each.code}, losses {each.losses}", flush=True)
        print("" if each.losses else each.output[-3000:], end="")
    losses = [each.losses[0] if each.losses else np.nan for each in found]
    return " ".join(f"{loss:g}" for loss in losses), float(np.mean([each.seconds for each in found]))


def make(script: str, number: int, jobs: list[Job], code: str) -> Job:
    """Run the job with the number ``number`` and print its row.

    If the result of the job is wrong, the output of the job is printed, too.
    """
    algorithm = ALGORITHMS[script][number // 2 % len(ALGORITHMS[script])]
    spares = SPARES_OF_JOBS[number % 2]
    random, ranks = np.random.default_rng(number), PROCESSES - spares
    losses, seconds = calm(script, algorithm, spares, jobs, code)
    moments = np.sort(random.uniform(0.05, 0.95, 2))
    victims = random.permutation([0, random.integers(1, ranks)])
    die = ",".join(f"{victim}:{moment:.{DIGITS}f}" for victim, moment in zip(victims, moments, strict=True))
    found = run(script, algorithm, spares, die, seconds)
    worst = max(found.losses, key=lambda loss: outside(loss, losses), default=np.nan)
    durations = [f"{one:g}" for one in (found.seconds, seconds)]
    job = Job(number, algorithm, spares, die, found.code, len(found.losses), f"{worst:g}", losses, *durations, code)
    verdict = "" if is_right(script, job) else ": WRONG"
    print(f"{job}{verdict}", flush=True)
    if verdict:
        print(found.output[-3000:], flush=True)
    return job


def outside(loss: float, losses: str) -> float:
    """Return by how much ``loss`` lies outside the range of ``losses``, relative to the nearer end.

    The result is 0 or less if ``loss`` lies within the range.
    """
    calm = np.array(losses.split(), float)
    return float(np.max([1 - loss / calm.min(), loss / calm.max() - 1]))


def is_right(script: str, job: Job) -> bool:
    """Return True if a job ended by itself, on all ranks that are left, with about the loss without deaths."""
    left = PROCESSES - 2 if script == "loop" else 1
    is_close = outside(float(job.loss), job.losses_without_deaths) <= MAX_DIFFERENCE
    return job.exit_code == 0 and job.losses == left and is_close


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=50)
    parser.add_argument("--first", type=int, default=0, help="number of the first job")
    parser.add_argument("--script", choices=ALGORITHMS, default="loop")
    parser.add_argument("--out", type=Path, help="table of the jobs, whose jobs are not run again; by default none")
    options = parse_once(parser)
    jobs, code = read(options.out), str(commit())
    numbers = range(options.first, options.first + options.jobs)
    for number in sorted(set(numbers) - {job.job for job in jobs}):
        jobs.append(make(options.script, number, jobs, code))
        write(options.out, sorted(jobs))
    right = sum(is_right(options.script, job) for job in jobs if job.job in numbers)
    print(f"{right} of {options.jobs} jobs as they should be")
    return int(right < options.jobs)


if __name__ == "__main__":
    sys.exit(main())
