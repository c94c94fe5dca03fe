"""Run file of a recorded loop that has gone on without processes that died."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from grsgd.errors import RunFileError
from grsgd.own_loop.lives import GO_ON, meet
from grsgd.own_loop.loop_record import LoopMeasurements
from grsgd.own_loop.survival import SurvivingLoop
from grsgd.training.deaths import accounts, after_training

LEFT = "its process has died, and none has taken its place"


class LoopEnd(NamedTuple):
    """Part of one rank in the end of a recording: its measurements, and the deaths that it has noticed.

    A process that took its rank after the end of all training has not trained, and does not know the whole recording.
    """

    rank: int
    has_trained: bool
    record: LoopMeasurements
    deaths: list[tuple]
    longest_wait: float


def save_on_the_living(loop: SurvivingLoop, record: LoopMeasurements, save: Callable):
    """Call ``save(records, lost)`` on the lowest rank that lives and has trained, again on another rank if its process
    dies meanwhile.

    ``lost`` are the ranks that no process holds. Raises RunFileError, on the rank that saves, if it could not save.
    """
    membership = loop.lives.membership
    deaths = [death.after(loop.progress.began) for death in membership.deaths]
    part = LoopEnd(membership.rank, loop.recovery.has_trained, record, deaths, loop.recovery.longest_wait)
    attempt = partial(save_once, part, membership.size, save, {})
    if problem := meet(loop.lives.world, loop.driver.timeout, GO_ON, attempt):
        raise problem


def save_once(part: LoopEnd, ranks: int, save: Callable, known: dict[int, LoopEnd], mpi, made: list):
    """Save once, with all processes of ``mpi``; return the error of the rank that saves, if it could not save.

    ``known`` has the parts that this process knows, by rank, including earlier attempts.
    """
    left = set(mpi.allgather(part.rank))
    for theirs in mpi.allgather({**known, part.rank: part}):
        known |= theirs
    problem = None
    if part.rank == min((rank for rank in left if known[rank].has_trained), default=min(left)):
        try:
            save(records_of(known, left, ranks), sorted(set(range(ranks)) - left) or None)
        except RunFileError as error:
            problem = error
    mpi.Barrier()
    return problem


def records_of(known: dict[int, LoopEnd], left: set[int], ranks: int) -> list[LoopMeasurements]:
    """Return the records of all ranks; a rank outside of ``left`` has a warning in its record."""
    records = []
    for rank in range(ranks):
        record = known[rank].record if rank in known else LoopMeasurements.of_nothing()
        if rank not in left:
            why = after_training(True) if rank in known else LEFT
            record = replace(record, warnings=[*record.warnings, why])
        records.append(record)
    deaths = (death for rank in left for death in known[rank].deaths)
    waits = {rank: known[rank].longest_wait for rank in left}
    first = min(left)
    records[first] = replace(records[first], extra=accounts(deaths, waits, ranks))
    return records
