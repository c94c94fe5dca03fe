"""Deaths of processes during a run: the times of planned deaths, and the entries of the run file about actual
deaths."""

import heapq
import math
from collections.abc import Collection, Iterable, Iterator
from itertools import islice

import numpy as np

from grsgd.config import Config
from grsgd.config.sections import Faults
from grsgd.data.shards import held_by, shards
from grsgd.seeding import Purpose, generator


def planned_deaths(faults: Faults, ranks: int, seed: int) -> Iterator[tuple[float, int]]:
    """Yield (seconds after the start of training, rank) for each planned death of a rank's process, in the order of
    time."""
    listed = sorted((seconds, rank) for rank, seconds in faults.die.items())
    return heapq.merge(listed, random_deaths(faults.every, ranks, seed) if faults.every else ())


def comes_back(faults: Faults, ranks: int, seed: int, spare: int) -> float:
    """Return the time, in seconds after the start of training, at which spare process number ``spare`` (from 0) joins
    the run."""
    if faults.back_seconds is None:
        return 0.0
    died = next((at for at, _ in islice(planned_deaths(faults, ranks, seed), spare, None)), math.inf)
    return died + faults.back_seconds


def random_deaths(mean: float, ranks: int, seed: int) -> Iterator[tuple[float, int]]:
    random, now = generator(Purpose.DEATHS, seed), 0.0
    while True:
        now += random.exponential(mean)
        yield now, int(random.integers(ranks))


def without(rank: int, lost: Collection[int], ranks: int, config: Config, labels: np.ndarray) -> str:
    """Return a warning about ``rank``, whose process died and was not replaced. ``lost`` has all ranks whose processes
    died and were not replaced.

    The warning says whether other ranks have read the shard of training data that belongs to ``rank``. ``labels`` are
    the labels of all training data, by which the data were split into shards.
    """
    parts = shards(labels, ranks, alpha=config.data.alpha, seed=config.seed)
    left = set(range(ranks)) - set(lost)
    read = {shard for other in left for shard in held_by(other, ranks, config.data.replication)}
    said = "its process has died, and none has taken its place"
    if rank in read:
        return f"{said}; other ranks have read its shard of the training data"
    return f"{said}; its shard, {len(parts[rank]) / len(labels):.1%} of the training data, was not read any more"


def after_training(is_known: bool) -> str:
    """Return a warning about a rank whose process died after all ranks had ended their training.

    ``is_known`` says whether another rank has received the measurements of the dead process.
    """
    row = "" if is_known else ", and its measurements are not known"
    return f"its process has died after training, so its model is in no average that was tested or saved{row}"


def accounts(
    deaths: Iterable[tuple], waits: dict[int, float], ranks: int
) -> dict[str, tuple[np.ndarray, tuple[str, str]]]:
    """Return the run file's arrays about deaths of processes: a dict from name to (array, (unit, description)).

    ``deaths`` are the deaths that each remaining process has noticed (`Death.after`). ``waits`` has, by rank, the
    longest time in seconds that each remaining process has waited in one step.
    """
    noticed: dict[int, tuple[float, int]] = {}
    replaced: dict[int, float] = {}
    for rank, process, at, until in deaths:
        noticed[process] = min((at, rank), noticed.get(process, (at, rank)))
        if until is not None:
            replaced[process] = min(until, replaced.get(process, until))
    order = sorted(noticed, key=noticed.get)
    return {
        "death_rank": (np.array([noticed[process][1] for process in order], np.int64), ("", "rank whose process died")),
        "death_seconds": (
            np.array([noticed[process][0] for process in order]),
            ("s", "time at which the death was first noticed"),
        ),
        "death_replaced_seconds": (
            np.array([replaced.get(process, np.nan) for process in order]),
            ("s", "time at which another process had taken the rank; NaN if none has"),
        ),
        "longest_wait": (
            np.array([waits.get(rank, np.nan) for rank in range(ranks)]),
            ("s", "longest wait in a step of the process that held the rank at the end"),
        ),
    }
