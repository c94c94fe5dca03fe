"""The effect of encoding on the computing time, measured against training on the same blocks of data without coding."""

from experiments.papers.cssgd_2021 import tasks
from experiments.papers.cssgd_2021.tasks import CNN, DNN, TESTBED, Method, Task, coded, combined
from experiments.runner import decide, sample
from experiments.runner.outcome import Case
from experiments.runner.run_spec import MEASURED
from experiments.runner.sample import Sample
from experiments.tables.numbers import gradient_seconds
from experiments.tables.section import Section
from experiments.tables.targets import Found
from grsgd.runs.run_file import Run

SLOWER = 5.0
"""Greatest additional computing time, in per cent of a step's computing time, that counts as no effect.

The 5 per cent are inferred, because the paper states no limit.
"""


def redundancies(n: int) -> list[int]:
    """Return the compared redundancies: 2 and 3, the paper's best, and n-1, the best of CSSGD in the measured runs."""
    return sorted({2, 3, n - 1} - {n})


def same_blocks(r: int) -> Method:
    """Return SSGD that adds up the gradients of the blocks of CSSGD, each of which is computed once."""
    return Method(f"SSGD with the blocks of r = {r}", "ssgd", r)


def needs(conditions) -> dict:
    n = conditions.scale.tuning_ranks
    both = [method(r) for r in redundancies(n) for method in (coded, same_blocks)]
    parts = [tasks.steps(conditions, task, [TESTBED], lambda n, network: both) for task in (DNN, CNN)]
    return {key: need for part in parts for key, need in part.items() if key[-1] == n}


def show(found: Found, section: Section):
    rows, cases = [], []
    for task, _, method, n in found:
        if method.config == "coded":
            apart, itself = (measure(found, task, method.r, n) for measure in (slower, coding))
            rows.append([task.name, method.name, apart.text(".1f"), itself.text(".1f")])
            cases += decided(f"{task.name}, {method.name}", method.r, apart, itself)
    section.table(
        "Computing time of CSSGD beyond r times the computing time of SSGD with the same blocks, in per cent; and time "
        "of encoding and decoding, in per cent of CSSGD's computing time.",
        ["model", "algorithm", "computes longer [%]", "encodes and decodes [%]"],
        rows,
    )
    section.finding(
        "cssgd-encoding",
        f"measured seconds of a step; up to {SLOWER:g} % counts as no effect. CSSGD and SSGD compute gradients of the "
        "same blocks, so both sides have small blocks, which compute more slowly",
        cases,
        "Encoding reads every number from memory once more for each of the r blocks in a packet.",
    )


def decided(condition: str, r: int, apart: Sample, itself: Sample) -> list[Case]:
    return [
        decide.at_most(apart, SLOWER, condition, "% more time", f"{r} times {same_blocks(r).name}", MEASURED),
        decide.at_most(itself, SLOWER, f"{condition}, encoding and decoding", "% of computing time", "", MEASURED),
    ]


def slower(found: Found, task: Task, r: int, n: int) -> Sample:
    """Return how many per cent longer CSSGD computes than r times as long as SSGD with the same blocks, by seed."""
    ours, once = (sample.of(found[task, TESTBED, method(r), n], gradient_seconds) for method in (coded, same_blocks))
    return combined(lambda own, other: 100 * (own / (r * other) - 1), ours, once)


def coding(found: Found, task: Task, r: int, n: int) -> Sample:
    """Return the time of encoding and decoding, in per cent of the computing time of a step, by seed."""
    return sample.of(found[task, TESTBED, coded(r), n], coding_share)


def coding_share(run: Run) -> float | None:
    """Return the time of encoding and decoding in one run, in per cent of the computing time.

    Returns None if the run file does not state the time.
    """
    seconds = run.extra.get("coding_seconds")
    return None if seconds is None else 100 * float(seconds[0]) / float(run.ranks["compute_seconds"][0])
