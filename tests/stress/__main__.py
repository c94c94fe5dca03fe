"""Many short random runs on real MPI: ``python -m tests.stress [--runs 200] [--seed 0] [--library openmpi]``.

Every run is drawn from its seed: a training as of ``grsgd train``, with a random algorithm, options, optimizer, number
of ranks, length and stragglers, or a training loop of the user's own with one or two ``grsgd.distribute()`` in it. It
must end in time, all messages must have been received, and all models must be equal. Some trainings are ended early, by
a signal or by a loss that is not finite: then all ranks must leave with the same reason, and the models must stay as
they are. Exit code 1 if one fails; run its seed alone with ``--runs 1 --seed SEED``.
"""

import argparse
import os
import queue
import subprocess
import sys
import threading
import time
from collections import Counter

from tests.stress.draw import RANKS, WAIT_SECONDS, OwnLoop, drawn

MAX_SILENCE_SECONDS = 2 * WAIT_SECONDS
"""Seconds without output after which a job is killed."""


class Stress:
    """All runs, a job for each number of ranks, and another one after a failure."""

    def __init__(self, library: str, runs: int, first: int):
        self.library, self.runs, self.first = library, runs, first
        self.began = time.perf_counter()
        self.done = self.early = self.own_loops = 0
        self.failed: list[int] = []
        self.ran: Counter[str] = Counter()

    def run(self) -> int:
        seeds = range(self.first, self.first + self.runs)
        for n in RANKS:
            left = [seed for seed in seeds if drawn(seed).ranks == n]
            while left:
                left = self.job(n, left)
        failed = f"; FAILED: seeds {', '.join(map(str, self.failed))}" if self.failed else ", all well"
        seconds = time.perf_counter() - self.began
        names = ", ".join(f"{name} {count}" for name, count in sorted(self.ran.items()))
        kinds = f"{self.own_loops} of them own loops, {self.early} ended early"
        done = f"{self.done} of {self.runs} runs on {self.library} ended, {kinds}"
        print(f"\n{done}, in {seconds:.0f} s ({names}){failed}")
        return 1 if self.failed else 0

    def job(self, n: int, seeds: list[int]) -> list[int]:
        """One job; returns the seeds that are left after a failure, without the one that failed."""
        from tests.support import launcher

        arguments = ["-m", "tests.stress", "--inside", ",".join(map(str, seeds))]
        job = launcher.start(self.library, n, arguments)
        lines: queue.Queue[str | None] = queue.Queue()
        reader = threading.Thread(target=self.read, args=(job, lines), daemon=True)
        reader.start()
        output, left, unfinished = [], list(seeds), False
        try:
            while (line := lines.get(timeout=MAX_SILENCE_SECONDS)) is not None:
                word, _, rest = line.strip().partition(" ")
                if word == "begin":
                    output = []
                elif word == "end":
                    early = rest.endswith("early")
                    self.note(n, left.pop(0), early)
                    unfinished |= early
                else:
                    output.append(line)
            code = job.wait(timeout=MAX_SILENCE_SECONDS)  # its output may end before its ranks do
        except (queue.Empty, subprocess.TimeoutExpired):
            output.append(f"no output for {MAX_SILENCE_SECONDS} s: killed\n")
            os.killpg(job.pid, 9)
            code = job.wait(timeout=MAX_SILENCE_SECONDS)
        except KeyboardInterrupt:
            os.killpg(job.pid, 9)  # which no terminal does: it is in a session of its own
            raise
        # Without MPI_Finalize, which would wait for messages under way, the launcher's exit code is its own.
        if not left and (code == 0 or (unfinished and code > 0)):
            return []
        failed = left.pop(0) if left else seeds[-1]  # a library may lose what a rank has said last
        self.failed.append(failed)
        print(f"\nseed {failed} on {n} ranks failed: {drawn(failed)}\n{''.join(output)[-4000:]}", flush=True)
        return left

    @staticmethod
    def read(job, lines):
        for line in job.stdout:
            lines.put(line)
        lines.put(None)

    def note(self, n: int, seed: int, early: bool):
        self.done += 1
        self.early += early
        run = drawn(seed)
        self.own_loops += isinstance(run, OwnLoop)
        self.ran.update(run.algorithms)
        terminal = sys.stdout.isatty()
        if terminal or self.done % 25 == 0:
            text = f"{self.done} of {self.runs} runs, {len(self.failed)} failed, now on {n} ranks"
            print(text, end="\r" if terminal else "\n", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.stress", description=__doc__.partition(":")[0])
    parser.add_argument("--runs", type=int, default=200, help="number of runs (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first run; the others follow")
    parser.add_argument("--library", choices=["openmpi", "mpich"], default="openmpi")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inside:
        from tests.stress.inside import inside

        inside([int(seed) for seed in arguments.inside.split(",")])
        return 0
    return Stress(arguments.library, arguments.runs, arguments.seed).run()


if __name__ == "__main__":
    sys.exit(main())
