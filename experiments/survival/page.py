"""The part of the page on failures that tells what became of the jobs of `experiments.survival.own_loops`.

    python -m experiments.survival.page OWN_LOOPS.csv TRAIN.csv

``OWN_LOOPS.csv`` is the table of the script ``gpt``, and ``TRAIN.csv`` the table of the script ``train``. The part lies
between two comments of the page, whose present text is replaced.
"""

import argparse
import re
from pathlib import Path

from experiments.arguments import parse_once
from experiments.survival.own_loops import CALM_RUNS, LARGEST_DIFFERENCE, PROCESSES, Job, is_right, outside, read

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "failures.md"
BEGIN, END = "<!-- recorded: own_loops -->", "<!-- end of recorded -->"


def text_of(jobs: list[Job], trained: list[Job]) -> str:
    """Return the part of the page: sentences on ``jobs``, which have loops of their own, and a table of these jobs and
    of the jobs ``trained`` by `grsgd train`."""
    right = [job for job in jobs if is_right("gpt", job)]
    commits = ", ".join(sorted({f"`{job.commit}`" for job in (*jobs, *trained)}))
    largest = max((outside(float(job.loss), job.losses_without_deaths) for job in right), default=0.0)
    rows = [
        row(*key, *([job for job in each if key_of(job) == key] for each in (jobs, trained)))
        for key in sorted({key_of(job) for job in jobs})
    ]
    return "\n".join(
        [
            f"- **Tried** with {len(jobs)} jobs of `experiments/demo/gpt.py` on {PROCESSES} processes, in which rank 0 "
            "and another rank were killed at drawn moments.",
            f"  Of these jobs, {len(right)} ended with exit code 0 and a loss at most {LARGEST_DIFFERENCE:.0%} from "
            f"the loss without deaths; their largest difference is {max(largest, 0):.2%}.".replace("%", " %"),
            f"  The losses of equal jobs of `grsgd` differ, so its loss without deaths is the range of "
            f"{CALM_RUNS['grsgd']} jobs.",
            "  Goodput is the duration of the loop without deaths, divided by the duration with deaths, of all jobs "
            "with exit code 0.",
            f"  An own loop takes the same number of steps with and without deaths, so it may end sooner on fewer "
            f"ranks: {PROCESSES} processes share two cores here.",
            "  `grsgd train` takes the same number of samples, so the ranks that are left take more steps.",
            f"  The code is commit {commits}; the jobs are in [own-loops.csv](../findings/own-loops.csv) and "
            "[own-loops-train.csv](../findings/own-loops-train.csv).",
            "  `python -m experiments.survival.own_loops --script gpt` repeats the trial, and `--script train` "
            "repeats it with `grsgd train`.",
            "",
            "  | algorithm | spares | jobs | right | goodput of own loops, mean (lowest) | goodput of `grsgd train` |",
            "  |---|---|---|---|---|---|",
            *rows,
        ]
    )


def row(algorithm: str, spares: int, jobs: list[Job], trained: list[Job]) -> str:
    """Return the table row of an algorithm with a number of spares."""
    right = sum(is_right("gpt", job) for job in jobs)
    cells = [f"`{algorithm}`", spares, len(jobs), right, goodput(jobs), goodput(trained)]
    return f"  | {' | '.join(map(str, cells))} |"


def goodput(jobs: list[Job]) -> str:
    """Return the mean and the lowest goodput of the jobs with exit code 0, in percent; empty without such jobs."""
    shares = [float(job.seconds_without_deaths) / float(job.seconds) for job in jobs if not job.exit_code]
    return f"{100 * sum(shares) / len(shares):.0f} % ({100 * min(shares):.0f})" if shares else ""


def key_of(job: Job) -> tuple[str, int]:
    return job.algorithm, job.spares


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("own_loops", type=Path, help="table of the jobs of the script gpt")
    parser.add_argument("train", type=Path, nargs="?", help="table of the jobs of the script train")
    options = parse_once(parser)
    text = text_of(read(options.own_loops), read(options.train))
    between = re.compile(f"(?<={re.escape(BEGIN)}\n).*?(?={re.escape(END)})", re.DOTALL)
    PAGE.write_text(between.sub(lambda _: f"\n{text}\n\n", PAGE.read_text(), count=1))


if __name__ == "__main__":
    main()
