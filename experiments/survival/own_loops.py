"""Jobs with a loop of their own in which two of six processes die, rank 0 among them, at drawn moments.

    python -m experiments.survival.own_loops --jobs 50

Every job must end by itself with exit code 0, on all ranks that are left, with a loss at most 1 % from the loss without
deaths. Jobs without and with two spares take turns.
"""

import argparse
import re
import shlex
import subprocess
import sys
import time

import numpy as np

from experiments.arguments import parse_once
from grsgd.job.words import asked_for
from grsgd.mpi_environment import SPARES, find_mpiexec, job_environment

ALGORITHMS = ("ring_allreduce", "grsgd", "local_sgd", "gossip", "dpsgd")
PROCESSES, SPARES_OF_JOBS = 6, (0, 2)
BOUND_SECONDS, LARGEST_DIFFERENCE = 300.0, 0.01
"""Time after which a job has hung, and the largest relative difference of the loss."""


def run(algorithm: str, spares: int, die: str, program: list[str]) -> tuple[int, str, dict[int, float]]:
    """Run a job; return its exit code, its output, and the loss of each rank that has come to the end."""
    command = [find_mpiexec(), "--with-ft", "ulfm", "-x", f"{SPARES}={spares}", "-n", f"{PROCESSES}", *program]
    command += ["--algorithm", algorithm, "--die", die]
    with asked_for() as words:
        try:
            done = subprocess.run(
                command,
                env=job_environment(),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=BOUND_SECONDS,
            )
        except subprocess.TimeoutExpired as hung:
            return 124, f"{hung.stdout}", {}
        code, line = words.judged(done.returncode, False)
    found = re.findall(r"rank (\d+): \d+ steps, loss ([\d.]+)", done.stdout)
    return code, done.stdout + (line or ""), {int(rank): float(loss) for rank, loss in found}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=50)
    parser.add_argument("--first", type=int, default=0, help="number of the first job")
    program = f"{sys.executable} -u -m experiments.survival.loop"
    parser.add_argument("--program", default=program, help="command of each process")
    options = parse_once(parser)
    program, undisturbed, failed = shlex.split(options.program), {}, 0
    for job in range(options.first, options.first + options.jobs):
        algorithm = ALGORITHMS[job // 2 % len(ALGORITHMS)]
        spares = SPARES_OF_JOBS[job % 2]
        random = np.random.default_rng(job)
        ranks = PROCESSES - spares
        if (algorithm, ranks) not in undisturbed:
            code, output, losses = run(algorithm, spares, "", program)
            undisturbed[algorithm, ranks] = losses.get(0, np.nan)
            print(f"{algorithm} on {ranks} ranks without deaths: exit code {code}, loss {losses.get(0)}", flush=True)
            print("" if 0 in losses else output[-3000:], end="")
        moments = np.sort(random.uniform(0.05, 0.95, 2))
        victims = random.permutation([0, random.integers(1, ranks)])
        die = ",".join(f"{victim}:{moment:.4f}" for victim, moment in zip(victims, moments, strict=True))
        began = time.perf_counter()
        code, output, losses = run(algorithm, spares, die, program)
        worst = max((abs(loss / undisturbed[algorithm, ranks] - 1) for loss in losses.values()), default=np.nan)
        left = ranks if spares else ranks - 2
        is_right = code == 0 and len(losses) == left and worst <= LARGEST_DIFFERENCE
        failed += not is_right
        print(
            f"job {job}: {algorithm}, {spares} spares, deaths {die}: exit code {code}, {len(losses)} of {left} ranks, "
            f"loss {worst:+.3%}, {time.perf_counter() - began:.0f} s{'' if is_right else ': WRONG'}",
            flush=True,
        )
        if not is_right:
            print(output[-3000:], flush=True)
    print(f"{options.jobs - failed} of {options.jobs} jobs as they should be")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
