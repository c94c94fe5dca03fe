"""Jobs with a loop of their own in which two of six processes die, rank 0 among them, at drawn moments.

    python -m experiments.survival.own_loops --jobs 50
    python -m experiments.survival.own_loops --jobs 50 --script gpt --out FILE.csv

Every job must end by itself with exit code 0, on all ranks that are left, with a loss at most 1 % from the loss without
deaths. Jobs without and with two spares take turns. The scripts are `experiments.survival.loop`, and
``experiments/demo/gpt.py``, which knows nothing of the deaths.
"""

import argparse
import csv
import re
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import numpy as np

from experiments.arguments import parse_once
from grsgd.job.words import asked_for
from grsgd.mpi_environment import SPARES, find_mpiexec, job_environment

ALGORITHMS = {
    "loop": ("ring_allreduce", "grsgd", "local_sgd", "gossip", "dpsgd"),
    "gpt": ("ring_allreduce", "diloco", "grsgd", "dpsgd"),
}
"""Algorithms of the jobs, by script."""
SIZES = "--batch 96 --accumulate 1 --block 8 --layers 1 --heads 2 --width 8".split()
GPT = [*SIZES, *"--steps 400 --every 100 --warm-up 20 --lr 1e-2".split()]
TEXT = Path(tempfile.gettempdir(), "grsgd-own-loops.txt")
LETTERS, CHARACTERS = 8, 20_000
"""Numbers of letters and characters of the text: a Markov chain, whose entropy the training reaches soon."""
PROGRAMS = {
    "loop": ["-m", "experiments.survival.loop"],
    "gpt": ["-m", "experiments.survival.mortal", "experiments/demo/gpt.py", "--timeout", "120", *GPT, "--text", TEXT],
}
"""Arguments of Python, by script."""
LOSSES = {"loop": r"rank \d+: \d+ steps, loss ([\d.]+)", "gpt": r"end: loss on unseen text ([\d.]+)"}
"""Lines with the final loss: of each rank that is left, or of the main rank."""
PROCESSES, SPARES_OF_JOBS = 6, (0, 2)
BOUND_SECONDS, LARGEST_DIFFERENCE = 300.0, 0.01
"""Time after which a job has hung, and the largest relative difference of the loss."""


def run(script: str, algorithm: str, spares: int, die: str) -> tuple[int, str, list[float]]:
    """Run a job; return its exit code, its output, and the final losses that its ranks have printed."""
    command = [find_mpiexec(), "--with-ft", "ulfm", "-x", f"{SPARES}={spares}", "-n", f"{PROCESSES}"]
    command += [sys.executable, "-u", *PROGRAMS[script], "--algorithm", algorithm, "--die", die]
    with asked_for() as words:
        with tempfile.TemporaryFile("w+") as file:
            job = subprocess.Popen(command, env=job_environment(), stdout=file, stderr=subprocess.STDOUT)
            for _ in range(int(BOUND_SECONDS)):  # seconds in which this process itself did not stand still
                with suppress(subprocess.TimeoutExpired):
                    job.wait(1)
                    break
            else:
                job.kill()
            file.seek(0)
            output = file.read()
        code, line = words.judged(job.poll() if job.poll() is not None else 124, False)
    return code, output + (line or ""), [float(loss) for loss in re.findall(LOSSES[script], output)]


def text_of_chain() -> str:
    """Return a text whose letters follow each other with fixed probabilities."""
    random = np.random.default_rng(0)
    bounds = random.dirichlet(np.full(LETTERS, 0.3), LETTERS).cumsum(1)
    letters = [0]
    for draw in random.random(CHARACTERS - 1):
        letters.append(min(int(np.searchsorted(bounds[letters[-1]], draw)), LETTERS - 1))
    return "".join("abcdefgh"[letter] for letter in letters)


def write(path: Path | None, rows: list[list]):
    """Write a table of the jobs, if it has a ``path``."""
    if path is not None:
        with path.open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["job", "algorithm", "spares", "deaths", "exit_code", "loss", "loss_without_deaths"])
            writer.writerows(rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=50)
    parser.add_argument("--first", type=int, default=0, help="number of the first job")
    parser.add_argument("--script", choices=PROGRAMS, default="loop")
    parser.add_argument("--out", type=Path, help="table of the jobs; by default none")
    options = parse_once(parser)
    script, undisturbed, failed, rows = options.script, {}, 0, []
    algorithms = ALGORITHMS[script]
    TEXT.write_text(text_of_chain())
    for job in range(options.first, options.first + options.jobs):
        algorithm = algorithms[job // 2 % len(algorithms)]
        spares = SPARES_OF_JOBS[job % 2]
        random = np.random.default_rng(job)
        ranks = PROCESSES - spares
        if (algorithm, ranks) not in undisturbed:
            code, output, losses = run(script, algorithm, spares, "")
            undisturbed[algorithm, ranks] = losses[0] if losses else np.nan
            print(f"{algorithm} on {ranks} ranks without deaths: exit code {code}, losses {losses}", flush=True)
            print("" if losses else output[-3000:], end="")
        moments = np.sort(random.uniform(0.05, 0.95, 2))
        victims = random.permutation([0, random.integers(1, ranks)])
        die = ",".join(f"{victim}:{moment:.4f}" for victim, moment in zip(victims, moments, strict=True))
        began = time.perf_counter()
        code, output, losses = run(script, algorithm, spares, die)
        worst = max((abs(loss / undisturbed[algorithm, ranks] - 1) for loss in losses), default=np.nan)
        left = 1 if script == "gpt" else ranks if spares else ranks - 2
        is_right = code == 0 and len(losses) == left and worst <= LARGEST_DIFFERENCE
        failed += not is_right
        rows.append([job, algorithm, spares, die, code, *losses[:1], undisturbed[algorithm, ranks]])
        write(options.out, rows)
        print(
            f"job {job}: {algorithm}, {spares} spares, deaths {die}: exit code {code}, {len(losses)} of {left} losses, "
            f"loss {worst:+.3%}, {time.perf_counter() - began:.0f} s{'' if is_right else ': WRONG'}",
            flush=True,
        )
        if not is_right:
            print(output[-3000:], flush=True)
    print(f"{options.jobs - failed} of {options.jobs} jobs as they should be")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
