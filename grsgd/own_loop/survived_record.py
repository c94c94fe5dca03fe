"""Saving of the run file of a recorded loop in which processes may have died while the other ranks went on."""

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
    """Data of one rank at the end of a recording: the rank's measurements, and the deaths that it has noticed.

    A process that took over the rank after the end of all training has not trained. Such a process does not have the
    measurements of the whole recording.
    """

    rank: int
    has_trained: bool
    record: LoopMeasurements
    deaths: list[tuple]
    longest_wait: float


def save_on_the_living(loop: SurvivingLoop, record: LoopMeasurements, save: Callable):
    """Call ``save(records, lost)`` on the lowest rank that lives and has trained. If that rank's process dies
    meanwhile, call ``save`` again on another rank.

    ``lost`` are the ranks that have no process. Raises RunFileError on the saving rank if the run file could not be
    written.
    """
    membership = loop.lives.membership
    deaths = [death.after(loop.progress.began) for death in membership.deaths]
    part = LoopEnd(membership.rank, loop.recovery.has_trained, record, deaths, loop.recovery.longest_wait)
    attempt = partial(save_once, part, membership.size, save, {})
    if problem := meet(loop.lives.world, loop.driver.timeout, GO_ON, attempt):
        raise problem


def save_once(part: LoopEnd, ranks: int, save: Callable, known: dict[int, LoopEnd], mpi, made: list):
    """Try once, together with all processes of ``mpi``, to save the run file. Return the error if the saving rank could
    not write the file, else None.

    ``known`` maps ranks to the `LoopEnd` objects that this process has received, in this attempt and in earlier
    attempts.
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
    """Return the measurements of all ranks, in rank order. The measurements of a rank that is not in ``left`` get a
    warning."""
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
