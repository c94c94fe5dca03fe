"""Training run that goes on when processes die. Spare processes can take the ranks of dead processes."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from grsgd.comm.backend import MpiBackend
from grsgd.comm.communicator import Communicator
from grsgd.comm.elastic.meeting import GO_ON
from grsgd.comm.elastic.membership import LOOK_SECONDS
from grsgd.comm.stop_signal import Stopped
from grsgd.job.agreement import on_the_living
from grsgd.job.conclusion import RunEnd, SavedElsewhere, evaluate
from grsgd.job.prepared import Prepared
from grsgd.mpi_environment import flush, say
from grsgd.runs.ending import ASKED_TO_END, end_attributes, joint_reason
from grsgd.training.deaths import accounts, after_training, comes_back, planned_deaths, without
from grsgd.training.description import describe
from grsgd.training.record import RankMeasurements
from grsgd.training.trainer import Trainer

LATER_LOOK_SECONDS = 0.05
"""Seconds between two checks of a spare process for deaths, while another spare is the next to take a rank."""


class RankEnd(NamedTuple):
    """Result of one rank's training, which the rank sends to the other ranks."""

    rank: int
    record: RankMeasurements
    reason: str
    seconds: float
    deaths: list[tuple]
    longest_wait: float


def run(job: Prepared, models, interruption, timed):
    """Train on a rank, or wait as a spare, and return the `RunEnd`. The function does not return on a spare that was
    not needed."""
    survival = job.survival
    interruption.on_signal = partial(while_training, job)
    takes_none = interruption.on_checkpoint
    interruption.on_checkpoint = partial(take_checkpoint, job, takes_none)
    with timed():
        trainer = job.trainer or stand_by(job)
        survival.driver.start(survival.membership.attend())
        if survival.silence:
            survival.driver.start(survival.silence.attend())
        part = train(job._replace(trainer=trainer)) if trainer else None
    interruption.on_checkpoint = takes_none
    return conclude(job._replace(trainer=trainer), part, models)


def while_training(job: Prepared, reason: str):
    """Save the measurements after a signal, and end the run, as `grsgd.job.run.while_training` does. A spare saves no
    measurements, and ends when the ranks have ended."""
    trainer = job.rescue.trainer
    if trainer is None:
        return
    if not trainer.recovery.asks_for_checkpoint(reason):
        job.rescue.interrupted(reason)
    elif reason != ASKED_TO_END:
        job.rescue.interrupted(reason, stop=False)


def take_checkpoint(job: Prepared, takes_none: Callable[[], None]):
    """Ask all ranks to take a checkpoint after a signal, and to go on with the training. ``takes_none()`` is called if
    no checkpoint can be taken."""
    trainer = job.rescue.trainer
    if trainer is None or not trainer.recovery.asks_for_checkpoint(GO_ON):
        takes_none()


def stand_by(job: Prepared) -> Trainer | None:
    """Wait, on a spare process, until the process must take the rank of a dead process. Return the trainer of the dead
    process's rank, or None if all ranks have ended."""
    survival = job.survival
    membership, config = survival.membership, survival.config
    began, number = time.monotonic(), membership.process - membership.size
    away = comes_back(config.faults, membership.size, config.seed, number)
    # this loop takes less time of a core on which a rank trains than a schedule would take
    while not membership.is_called():
        membership.is_there = time.monotonic() - began >= away
        if survival.silence:
            survival.silence.look()
        time.sleep(LOOK_SECONDS if membership.is_next else LATER_LOOK_SECONDS)
    if membership.rank is None:
        return None
    trainer = job.make_trainer()
    job.rescue.trainer = trainer
    job.rescue.attributes = describe(trainer) | {
        name: value for name, value in job.rescue.attributes.items() if value is not None
    }
    return trainer


def train(job: Prepared) -> RankEnd | None:
    """Train on this process's rank. Return None if the run had ended before this process could train. The function does
    not return if the run has failed."""
    survival, trainer = job.survival, job.trainer
    membership = survival.membership
    is_late = job.mpi.rank >= membership.size
    job.line.training(trainer)
    try:
        if is_late:
            job.driver.run(trainer.recovery.take_over())
        threading.Thread(target=die_as_planned, args=(trainer,), name="grsgd-faults", daemon=True).start()
        reason = job.driver.run(trainer.train())
    except Exception as error:
        job.rescue.failed(error)
    if job.stop_signal.failed:
        job.rescue.failed(Stopped(job.stop_signal.reason))
    if not trainer.recovery.has_trained:
        return None
    began = trainer.progress.began
    deaths = [death.after(began) for death in membership.deaths]
    return RankEnd(
        membership.rank,
        job.rescue.measured(),
        reason,
        trainer.progress.elapsed(),
        deaths,
        trainer.recovery.longest_wait,
    )


def die_as_planned(trainer: Trainer):
    """Kill this process at the time at which the configuration plans the death of its rank."""
    config, membership = trainer.config, trainer.recovery.membership
    while not trainer.progress.began and not trainer.has_ended:
        time.sleep(LOOK_SECONDS)
    for seconds, rank in planned_deaths(config.faults, membership.size, config.seed):
        left = seconds - trainer.progress.elapsed()
        if left < 0:
            continue
        time.sleep(left)
        if trainer.has_ended:
            return
        if rank == membership.rank:
            os.kill(os.getpid(), signal.SIGKILL)


def conclude(job: Prepared, part: RankEnd | None, models):
    """Evaluate and save the run, on all living processes. If a process dies during evaluation or saving, repeat
    evaluation and saving without the dead process."""
    known = {part.rank: part} if part else {}
    if job.survival.silence:
        job.survival.silence.is_over = True
    evaluated = partial(attempt, job, part, models, known)
    end, problem = on_the_living(job.survival.world, job.driver.timeout, evaluated)
    if part is None:
        flush()
        os._exit(0)
    if problem:
        raise SavedElsewhere(problem, end)
    return end


def attempt(job: Prepared, part: RankEnd | None, models, known: dict[int, RankEnd], living, made: list):
    """Evaluate and save the run, with all processes of ``living``. The function appends each communicator that it
    creates to ``made``.

    ``known`` is a dictionary from rank to the rank's result of training, for all results that this process knows.
    Results from earlier calls of this function are included. A rank whose process dies during the evaluation still
    counts as having trained to the end. Returns the `RunEnd`, and an error message about files that could not be
    written, or None. Returns (None, None) on a process that has not trained.
    """
    if not any(living.allgather(part is not None)):
        if living.rank == 0:
            say("the processes of all ranks have died: there is no run file")
        os._exit(1)
    mpi = living.Split(part is None, part.rank if part else 0)
    made.append(mpi)
    if part is None:
        return None, None
    left = set(mpi.allgather(part.rank))
    for theirs in mpi.allgather(known):
        known |= theirs
    membership, rescue = job.survival.membership, job.rescue
    lost = sorted(set(range(membership.size)) - left)
    records = records_of(known, left, membership.size, job.trainer)
    parts = [known[rank] for rank in sorted(left)]
    reason = joint_reason([each.reason for each in parts])
    attributes = rescue.attributes | end_attributes(reason) | {"lost": lost or None}
    attributes["wall_seconds"] = max(each.seconds for each in parts)
    made.append(mpi.Dup())
    evaluation = Communicator(MpiBackend(made[-1], job.driver.timeout))
    problem = evaluate(job, records, attributes, mpi, evaluation, models)
    return RunEnd(reason, mpi, job.trainer.recovery.last, survived=True), problem


def records_of(known: dict[int, RankEnd], left: set[int], ranks: int, trainer: Trainer) -> list[RankMeasurements]:
    """Return the measurements of all ranks. A rank outside of ``left``, whose process has died, gets a warning."""
    config, labels = trainer.config, trainer.data.train.labels
    died = {rank for each in known.values() for rank, *_ in each.deaths}
    records, lost = [], sorted(set(range(ranks)) - left)
    for rank in range(ranks):
        record = known[rank].record if rank in known else RankMeasurements.of_nothing()
        if rank not in left:
            has_trained = rank in known or rank not in died
            why = after_training(rank in known) if has_trained else without(rank, lost, ranks, config, labels)
            record = replace(record, warnings=[*record.warnings, why])
        records.append(record)
    deaths = (death for rank in left for death in known[rank].deaths)
    waits = {rank: known[rank].longest_wait for rank in left}
    first = min(left)
    records[first] = replace(records[first], extra=records[first].extra | accounts(deaths, waits, ranks))
    return records
