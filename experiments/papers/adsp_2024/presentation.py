"""How the figures of adsp show and judge their numbers."""

import math

from experiments.papers.adsp_2024.runs import (
    BUCKETS,
    FACTOR,
    PROBABILITY,
    SLOW,
    delay,
    gradients_of,
    mean_staleness,
    pushes_per_second,
    share_of,
)
from experiments.tables.numbers import each, median_or_nan, rises
from experiments.tables.requests import MIN_DIFFERENCE_PERCENT, RunRequests
from experiments.tables.run_spec import SIMULATED
from experiments.tables.section import Section
from grsgd.runs.run_file import Run

MIN_SAVING_PERCENT = MIN_DIFFERENCE_PERCENT[SIMULATED]
TOLERANCE = MIN_SAVING_PERCENT / 100
"""Share by which a number may fall and still counts as one that does not."""

DELAYS_NOTE = (
    f"One slow worker: worker {SLOW} computes {FACTOR:g} times longer. Random delays: every step of every worker takes "
    f"longer with probability {PROBABILITY:g}, by {{:g}} s on average, exponentially distributed. n is the number of "
    "workers; the server is one rank more. All strategies take the same step a sample, and train on alike shards."
)

# ---- what is shown


def staleness_row(found: list[Run], n: int) -> list[str]:
    return [
        f"{median_or_nan(each(mean_staleness, found)):.2f}",
        *(f"{median_or_nan(each(share_of(bucket), found)):.0f}" for bucket in BUCKETS),
        shares([median_or_nan(each(gradients_of(worker), found)) for worker in range(n)]),
        f"{median_or_nan(each(pushes_per_second, found)):.3g}",
    ]


def shares(values: list[float]) -> str:
    """Return the slow worker's, and the range of the others'."""
    others = [value for worker, value in enumerate(values) if worker != SLOW]
    return f"worker {SLOW}: {values[SLOW]:.1f}; others: {min(others):.1f} to {max(others):.1f}"


def wrapped(kind: str) -> str:
    """Return the name in several lines, for narrow places."""
    return "\n".join(kind.rsplit(maxsplit=1))


def bars(found: dict, value) -> dict[str, dict[str, list[float]]]:
    """Return the bars of a sweep: one label, groups by s alone."""
    return {"adsp": {label.partition(",")[0].removeprefix("s = "): values[value] for label, values in found.items()}}


def note(requests: RunRequests, section: Section):
    section.note(DELAYS_NOTE.format(delay(requests)))


# ---- what is decided


def separated(ours: list[float], theirs: list[float]) -> bool | None:
    """Return whether each of ours is above all of theirs; None if one is not known."""
    return None if any(map(math.isnan, (*ours, *theirs))) else min(ours) > max(theirs)


def within_ends(values: list[float]) -> bool | None:
    """Return whether all are between the first and the last, but for the tolerance."""
    first, *inner, last = values
    cases = [rises([first, value, last], TOLERANCE) for value in inner]
    return all_true(cases)


def all_true(cases) -> bool | None:
    """None if one is not known."""
    known = list(cases)
    return None if None in known else all(known)
