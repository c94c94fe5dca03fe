"""Verdicts on the papers' claims about the all-reduces Swing and Bine.

All numbers on Swing and Bine are exact, because nothing in the simulation is random.

Claim about Swing (De Sensi et al. 2024): it is up to 3 times as fast as other all-reduces on tori, for vectors of 32 B
to 128 MiB. Claim about Bine (De Sensi et al. 2025): it sends up to 33 % fewer bytes over global links than binomial
trees and butterflies. The claims about Swing and Bine are taken from the papers' abstracts.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from experiments.swing.contenders import (
    BINE,
    BUCKET,
    HALVING,
    NEAR_FIRST,
    RING,
    SWING,
    TORUS_HALVING,
    TORUS_SWING,
    TREE,
)
from experiments.swing.crossing import aligned, changes, places
from experiments.swing.measure import SIZES, STEP_SECONDS, AllreduceNumbers, AllreduceRun, size_text
from experiments.swing.networks import SETTINGS

Results = Mapping[AllreduceRun, AllreduceNumbers]
"""The numbers (`AllreduceNumbers`) of each simulated all-reduce."""
TIMES_AS_FAST, LESS_TRAFFIC = 3.0, 0.33
"""The greatest effects that the papers claim: a factor of speed (Swing), and a relative saving of traffic (Bine)."""
REPRODUCED, PARTLY, NOT = "reproduced", "partly reproduced", "not reproduced"
TRAFFIC_BYTES = SIZES[-1]
"""Number of bytes of the arrays whose traffic is compared; the traffic is proportional to this number."""
JOBS = (64, 256)
"""Numbers of ranks of the jobs whose traffic is counted between groups of all sizes."""


class Comparison(NamedTuple):
    """A variant of Swing, with the all-reduces with which it is compared."""

    title: str
    ours: str
    others: tuple[str, ...]
    step_seconds: float = 0.0


ONE_PORT = Comparison("one message at a time", SWING, (RING, HALVING, NEAR_FIRST, TREE))
ALL_PORTS = Comparison("all ports", TORUS_SWING, (BUCKET, TORUS_HALVING))
ALL_PORTS_AND_STEPS = ALL_PORTS._replace(title="all ports, 1 us a step", step_seconds=STEP_SECONDS)
COMPARISONS = (ONE_PORT, ALL_PORTS, ALL_PORTS_AND_STEPS)


class Gain(NamedTuple):
    """The speed of Swing divided by the fastest compared all-reduce's, on a network, for one size of the array."""

    times: float
    fastest: str
    setting: str
    nbytes: int


def gain(results: Results, comparison: Comparison, setting: str, nbytes: int) -> Gain | None:
    """Return the speed-up by Swing on a network for one size of the array; None if no run gives the speed-up."""

    def seconds(name):
        found = results.get(AllreduceRun(setting, name, nbytes, comparison.step_seconds))
        return None if found is None else found.seconds

    others = {name: taken for name in comparison.others if (taken := seconds(name)) is not None}
    ours = seconds(comparison.ours)
    if ours is None or not others:
        return None
    fastest = min(others, key=others.get)
    return Gain(others[fastest] / ours, fastest, setting, nbytes)


def gains(results: Results, comparison: Comparison, settings: Sequence[str]) -> list[Gain]:
    """Return the speed-ups by Swing for all sizes of the array on the networks ``settings``."""
    found = [gain(results, comparison, setting, nbytes) for setting in settings for nbytes in SIZES]
    return [each for each in found if each is not None]


def change(results: Results, setting: str, against: str) -> float | None:
    """Return the relative change of bytes over global links if Bine replaces ``against``; None if not simulated."""
    ours, theirs = (results.get(AllreduceRun(setting, name, TRAFFIC_BYTES)) for name in (BINE, against))
    return None if ours is None or theirs is None else ours.over_global / theirs.over_global - 1


def verdicts(results: Results) -> Iterator[str]:
    """Yield sentences with verdicts on the claims about Swing and Bine, and on related observations."""
    measured = {point.setting for point in results}
    tori = [title for title, setting in SETTINGS.items() if title in measured and setting.shape]
    grouped = [title for title, setting in SETTINGS.items() if title in measured and not setting.shape]
    if tori:
        yield on_swing(results, tori)
        yield from (line(results, comparison, tori, "on tori") for comparison in COMPARISONS)
    if grouped:
        yield on_bine(results, grouped)
        yield on_groups()
        yield line(results, ONE_PORT, grouped, "on the others")
    yield on_both(results)


def on_swing(results: Results, tori: Sequence[str]) -> str:
    """Return a sentence with the verdict on the claim about Swing."""
    found = [each for comparison in COMPARISONS for each in gains(results, comparison, tori)]
    best = max(found, key=lambda each: each.times)
    word = REPRODUCED if best.times >= TIMES_AS_FAST else PARTLY if best.times > 1.05 else NOT
    return (
        f"Swing, up to {TIMES_AS_FAST:g} times as fast on tori: {word}. At most {best.times:.2f} times as fast as the "
        f"fastest of the others ({described(best)})."
    )


def line(results: Results, comparison: Comparison, settings: Sequence[str], where: str) -> str:
    """Return a sentence that says how often Swing is the fastest all-reduce, and by which factor."""
    found = gains(results, comparison, settings)
    best, worst = (choose(found, key=lambda each: each.times) for choose in (max, min))
    faster = sum(each.times > 1 for each in found)
    return (
        f"{comparison.title}, {where}: {comparison.ours} is the fastest in {faster} of {len(found)} cases, "
        f"{best.times:.2f} times as fast as the next at best ({described(best)}), {worst.times:.2f} times at worst "
        f"({described(worst)})."
    )


def described(found: Gain) -> str:
    return f"{found.setting}, {size_text(found.nbytes)}, against {found.fastest}"


def on_bine(results: Results, settings: Sequence[str]) -> str:
    """Return a sentence with the verdict on the claim about Bine, from simulated cables and from counted traffic."""
    near = {title: share for title in settings if (share := change(results, title, NEAR_FIRST)) is not None}
    far = [share for title in settings if (share := change(results, title, HALVING)) is not None]
    best, worst = min(near, key=near.get), max(near, key=near.get)
    counted = np.concatenate([changes(ranks, places(ranks)) for ranks in JOBS])
    word = word_on_traffic([*near.values(), *counted])
    return (
        f"Bine, up to {LESS_TRAFFIC:.0%} less over global links, and consistently less: {word}. On these networks, "
        f"against {NEAR_FIRST}: {near[best]:+.0%} ({best}) to {near[worst]:+.0%} ({worst}); against this project's "
        f"{HALVING}, which sends the largest part farthest: {min(far):+.0%} to {max(far):+.0%}."
    )


def word_on_traffic(shares: Sequence[float]) -> str:
    """Return the verdict on Bine, given relative changes of traffic, which are below 0 if Bine sends less."""
    if max(shares) <= 0 and min(shares) <= 0.9 * -LESS_TRAFFIC:
        return REPRODUCED
    return PARTLY if min(shares) < 0 else NOT


def on_groups() -> str:
    """Return a sentence on Bine's traffic between groups, counted for groups of all sizes and offsets."""
    parts = []
    for ranks in JOBS:
        found, special = changes(ranks, places(ranks)), changes(ranks, aligned(ranks))
        quarter, middle, rest = np.quantile(found, (0.25, 0.5, 0.75))
        parts.append(
            f"{ranks} ranks: median {middle:+.0%}, quartiles {quarter:+.0%} and {rest:+.0%}, least {found.min():+.0%}, "
            f"less in {np.mean(found < 0):.0%}; in full groups of 2, 4, 8, ...: "
            + ", ".join(f"{share:+.0%}" for share in special)
        )
    return (
        f"Bine's traffic between groups of 2 to n/2 ranks, a job beginning anywhere in one, against {NEAR_FIRST}: "
        f"{'; '.join(parts)}."
    )


def on_both(results: Results) -> str:
    """Return a sentence with the networks on which Swing and Bine take equally long."""
    pairs = [
        (point.setting, found == results[twin])
        for point, found in results.items()
        if point.contender == SWING and (twin := point._replace(contender=BINE)) in results
    ]
    settings = [title for title in SETTINGS if any(setting == title for setting, _ in pairs)]
    same = [title for title in settings if all(equal for setting, equal in pairs if setting == title)]
    others = ", ".join(title for title in settings if title not in same) or "none"
    return (
        f"{SWING} and {BINE} have equal times and bytes on {len(same)} of {len(settings)} networks, whose number of "
        f"ranks is a power of two; networks on which they differ: {others}."
    )
