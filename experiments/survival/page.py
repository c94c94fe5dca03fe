"""Writes the generated parts of documentation pages on recorded jobs in which processes or hosts were lost.

    python -m experiments.survival.page

The tables in docs/findings have the results of jobs of `experiments.survival.own_loops` and
`experiments.survival.hosts`. Each generated part of a page lies between two comments of the page. The program replaces
the text between the two comments of each part.
"""

import csv
import re
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from experiments.survival import hosts
from experiments.survival.own_loops import CALM_RUNS, MAX_DIFFERENCE, PROCESSES, Job, is_right, outside, read

DOCS = Path(__file__).parents[2] / "docs"
FINDINGS = DOCS / "findings"
END = "<!-- end of recorded -->"


class Part(NamedTuple):
    """A generated part of the documentation page at ``path``, with the part's name and text."""

    path: Path
    name: str
    text: str

    def put_into(self, page: str) -> str:
        """Return the text of ``page`` with its generated part of this name replaced by the text of this part."""
        between = re.compile(f"(?<=<!-- recorded: {self.name} -->\n).*?(?={re.escape(END)})", re.DOTALL)
        return between.sub(lambda _: f"\n{self.text}\n\n", page, count=1)


def parts() -> list[Part]:
    """Return the generated parts of all pages, made from the tables in docs/findings."""
    own_loops = text_of_own_loops(read(FINDINGS / "own-loops.csv"), read(FINDINGS / "own-loops-train.csv"))
    lost_hosts = text_of_lost_hosts(hosts.read(FINDINGS / "lost-hosts.csv"))
    with (FINDINGS / "simulated-storms.csv").open(newline="") as file:
        storms = text_of_storms(list(csv.DictReader(file)))
    return [
        Part(DOCS / "how-to" / "failures.md", "own_loops", own_loops),
        Part(FINDINGS / "goodput.md", "hosts", lost_hosts),
        Part(FINDINGS / "goodput.md", "storms", storms),
    ]


def text_of_lost_hosts(jobs: list[hosts.Job]) -> str:
    """Return the text and the table of the page for jobs that lost hosts."""
    right = [job for job in jobs if not job.exit_code]
    lost = sum(job.losses for job in jobs)
    return "\n".join(
        [
            f"In {len(jobs)} jobs {lost} hosts were lost; {len(right)} of the jobs ended with exit code 0 and a whole "
            "run file.",
            f"The code is commit {in_words(job.commit for job in jobs)}; the jobs are in "
            "[lost-hosts.csv](lost-hosts.csv).",
            "",
            hosts.table(jobs),
        ]
    )


def text_of_storms(runs: list[dict[str, str]]) -> str:
    """Return the Markdown table of simulated runs in which processes died.

    ``runs``: rows of the table that `experiments.survival.goodput.table_of_runs` has made.
    """
    lines = [
        "| algorithm | kills per hour | runs | kills | goodput, mean (lowest) | participation | "
        "accuracy, and without kills |",
        "|---|---|---|---|---|---|---|",
    ]
    for algorithm, kills in dict.fromkeys((run["algorithm"], run["kills_per_hour"]) for run in runs):
        alike = [run for run in runs if (run["algorithm"], run["kills_per_hour"]) == (algorithm, kills)]
        calm, stormy = ([run for run in alike if run["is_calm"] == is_calm] for is_calm in "10")
        steps, accuracies, takes_part = (
            [[float(run[name]) for run in some] for some in (stormy, calm)]
            for name in ("steps", "accuracy", "participation")
        )
        goodput = [100 * each / fmean(steps[1]) for each in steps[0]]
        cells = [
            f"`{algorithm}`",
            f"{float(kills):g}",
            len(stormy),
            sum(int(run["deaths"]) for run in stormy),
            f"{fmean(goodput):.1f} % ({min(goodput):.1f})",
            f"{100 * fmean(takes_part[0]):.1f} %",
            ", ".join(f"{100 * fmean(each):.1f} %" for each in accuracies),
        ]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    commits = in_words(run["commit"] for run in runs)
    lines += ["", f"The code is commit {commits}; the runs are in [simulated-storms.csv](simulated-storms.csv)."]
    return "\n".join(lines)


def in_words(commits: Iterable[str]) -> str:
    """Return commits as text, without repetitions."""
    return ", ".join(f"`{commit}`" for commit in sorted(set(commits)))


def text_of_own_loops(jobs: list[Job], trained: list[Job]) -> str:
    """Return the generated part of the documentation page on jobs that have their own training loops.

    The part has sentences on ``jobs``, and a table that compares ``jobs`` with ``trained``, the jobs of `grsgd train`.
    """
    right = [job for job in jobs if is_right("gpt", job)]
    largest = max((outside(float(job.loss), job.losses_without_deaths) for job in right), default=0.0)
    rows = [
        row(*key, *([job for job in each if key_of(job) == key] for each in (jobs, trained)))
        for key in sorted({key_of(job) for job in jobs})
    ]
    return "\n".join(
        [
            f"- **Tried** with {len(jobs)} jobs of `experiments/demo/gpt.py` on {PROCESSES} processes, in which rank 0 "
            "and another rank were killed at drawn moments.",
            f"  Of these jobs, {len(right)} ended with exit code 0 and a loss at most {MAX_DIFFERENCE:.0%} from "
            f"the loss without deaths; their largest difference is {max(largest, 0):.2%}.".replace("%", " %"),
            f"  The losses of equal jobs of `grsgd` differ, so its loss without deaths is the range of "
            f"{CALM_RUNS['grsgd']} jobs.",
            "  Goodput is the duration of the loop without deaths, divided by the duration with deaths, of all jobs "
            "with exit code 0.",
            f"  An own loop takes the same number of steps with and without deaths, so it may end sooner on fewer "
            f"ranks: {PROCESSES} processes share two cores here.",
            "  `grsgd train` takes the same number of samples, so the ranks that are left take more steps.",
            f"  The code is commit {in_words(job.commit for job in (*jobs, *trained))}; the jobs are in "
            "[own-loops.csv](../findings/own-loops.csv) and [own-loops-train.csv](../findings/own-loops-train.csv).",
            "  `python -m experiments.survival.own_loops --script gpt` repeats the trial, and `--script train` "
            "repeats it with `grsgd train`.",
            "",
            "  | algorithm | spares | jobs | right | goodput of own loops, mean (lowest) | goodput of `grsgd train` |",
            "  |---|---|---|---|---|---|",
            *rows,
        ]
    )


def row(algorithm: str, spares: int, jobs: list[Job], trained: list[Job]) -> str:
    """Return the row of the Markdown table for an algorithm with ``spares`` spare processes."""
    right = sum(is_right("gpt", job) for job in jobs)
    cells = [f"`{algorithm}`", spares, len(jobs), right, goodput(jobs), goodput(trained)]
    return f"  | {' | '.join(map(str, cells))} |"


def goodput(jobs: list[Job]) -> str:
    """Return the mean and the lowest goodput in percent of the jobs with exit code 0, as text.

    Returns "" if no job has exit code 0.
    """
    shares = [float(job.seconds_without_deaths) / float(job.seconds) for job in jobs if not job.exit_code]
    return f"{100 * sum(shares) / len(shares):.0f} % ({100 * min(shares):.0f})" if shares else ""


def key_of(job: Job) -> tuple[str, int]:
    return job.algorithm, job.spares


def main():
    for part in parts():
        part.path.write_text(part.put_into(part.path.read_text()))


if __name__ == "__main__":
    main()
