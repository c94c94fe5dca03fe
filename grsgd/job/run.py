"""Training run on real MPI, from the configuration to the run file, for ``grsgd train``."""

import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path

from grsgd.comm.backend import MpiBackend, subset
from grsgd.comm.communicator import Communicator
from grsgd.comm.elastic.meeting import GO_ON
from grsgd.comm.stop_signal import Stopped
from grsgd.comm.watchdog import PASSING_ON_SECONDS, within
from grsgd.config import Config
from grsgd.job import launch, survivors
from grsgd.job.communicators import Communicators
from grsgd.job.conclusion import RunEnd, SavedElsewhere, evaluate
from grsgd.job.keeping import NOTHING_KEPT, Keeping, alone
from grsgd.job.prepare import prepare
from grsgd.job.prepared import Prepared, RunRequest
from grsgd.job.progress_line import ProgressLine
from grsgd.job.signals import EXIT_CODE, Interruption
from grsgd.job.startup import StartUp
from grsgd.mpi_environment import say
from grsgd.runs.ending import ASKED_TO_END, STOP_CRITERIA, end_attributes, joint_reason
from grsgd.training.record import RankMeasurements
from grsgd.training.saving import ModelFiles


def run(
    mpi,
    config: Config,
    out: Path,
    start_up: StartUp | None = None,
    line: ProgressLine | None = None,
    models: ModelFiles | None = None,
    timed: Callable[[], AbstractContextManager] = nullcontext,
    keeping: Keeping = NOTHING_KEPT,
    spares: int = 0,
    timeline: Path | None = None,
) -> RunEnd:
    """Train on all processes of ``mpi`` except the last ``spares``, and write the run file on the lowest remaining
    rank.

    The last ``spares`` processes take the ranks of processes that die.

    ``start_up`` has the seconds of each phase of the start of this process. If the user has asked for the times of the
    phases, the times are printed before training begins. ``line`` shows the progress; by default no line is shown.
    ``models`` are the files in which models are saved, by default none. ``timed()`` returns a context manager, in whose
    block the ranks train. Data are loaded and accuracies computed outside of the context ``timed()``. ``keeping`` has
    the options of checkpoints. ``timeline`` is the path of the file of the ranks' activities, by default none.

    The function does not return on a rank that the other ranks have excluded. The function returns on no rank if a rank
    has failed during training.

    Raises SetupError, on all ranks, for errors in configuration, data or output path. Raises SavedElsewhere, on the
    rank that saves, if a file could not be written at the end.
    """
    takes_none = partial(takes_no_checkpoint, mpi)
    early = Interruption(partial(before_training, mpi), takes_none)
    with early as interruption, alone(mpi, config, keeping) as keeping:
        comms = Communicators(MpiBackend(mpi, config.comm.timeout))
        line, models = line or ProgressLine(is_shown=False), models or ModelFiles()
        request = RunRequest(config, out, start_up or StartUp(), line, models, keeping, spares, timeline)
        job = prepare(mpi, request, comms)
        if job.survival is not None:
            return survivors.run(job, models, interruption, timed)
        interruption.on_signal = partial(while_training, job)
        interruption.on_checkpoint = partial(take_checkpoint, job)
        with timed():
            reason, records, remaining, evaluation = train(job)
        interruption.on_checkpoint = takes_none
        if job.rescue.timeline is not None:
            job.rescue.timeline.gather(remaining, job.driver.timeout)
        lost = sorted(job.trainer.lost)
        attributes = job.rescue.attributes | end_attributes(reason) | {"lost": lost or None}
        if reason in STOP_CRITERIA:
            interruption.on_signal = partial(while_evaluating, job, remaining, reason)
        problem = evaluate(job, records, attributes, remaining, evaluation, models)
        job.driver.close()
        job.rescue.handover.close()
        # free communicators only after a complete run, because messages may be under way after any other run
        if reason in STOP_CRITERIA and not lost:
            comms.free()
    end = RunEnd(reason, remaining, job.trainer.recovery.last)
    if problem:
        raise SavedElsewhere(problem, end)
    return end


def train(job: Prepared) -> tuple[str, list[RankMeasurements], object, Communicator]:
    """Train on this rank. The function does not return if any rank has failed.

    Return (reason of the end, measurements of all ranks, mpi4py communicator of the remaining ranks, communicator of
    the remaining ranks for evaluation).
    """
    mpi, driver, stop_signal, trainer, rescue = job.mpi, job.driver, job.stop_signal, job.trainer, job.rescue
    evaluation = job.evaluation
    job.line.training(trainer)
    training = trainer.train()
    if rescue.timeline is not None:
        rescue.timeline.begin(driver.timeout)
        training = rescue.timeline.observed(training)
    rescue.begin()
    try:
        reason = driver.run(training)
        record = rescue.measured()
        rescue.attributes["wall_seconds"] = time.perf_counter() - rescue.began
        lost = trainer.lost
        if mpi.rank in lost:
            launch.wait_for_abort()
        left = [rank for rank in range(mpi.size) if rank not in lost]
        remaining = subset(mpi, left) if lost else mpi
        evaluation = evaluation.subset(left) if lost else evaluation
        launch.barrier(remaining, driver.timeout, stop_signal.watch_failures)
    except Exception as error:
        rescue.failed(error)
    if stop_signal.failed:
        rescue.failed(Stopped(stop_signal.reason))
    records = [RankMeasurements.of_nothing() for _ in range(mpi.size)]
    with within(driver.timeout, "collecting the measurements of all ranks"):
        reasons = []
        for rank, theirs, of_rank in remaining.allgather((mpi.rank, record, reason)):
            records[rank] = theirs
            reasons.append(of_rank)
    return joint_reason(reasons), records, remaining, evaluation


def before_training(mpi, reason: str):
    """End this process after a signal that arrived before training began, so that no run file can be written."""
    leave_early(mpi, f"{reason} before training began: there is no run file")


def while_training(job: Prepared, reason: str):
    """Save the measurements after a signal, and end the run. With ``--checkpoint`` a checkpoint is taken first, if the
    launcher leaves enough time."""
    if not job.trainer.recovery.asks_for_checkpoint(reason):
        job.rescue.interrupted(reason)
    elif reason != ASKED_TO_END:
        job.rescue.interrupted(reason, stop=False)


def take_checkpoint(job: Prepared):
    """Ask all ranks to take a checkpoint after a signal, and to go on with the training."""
    if not job.trainer.recovery.asks_for_checkpoint(GO_ON):
        takes_no_checkpoint(job.mpi)


def takes_no_checkpoint(mpi):
    """Print on rank 0 that no checkpoint is taken, after a signal that asked for a checkpoint."""
    if mpi.rank == 0:
        say("SIGUSR2: no checkpoint is taken, because training is not under way or the run has no --checkpoint")


def while_evaluating(job: Prepared, remaining, of_run: str, reason: str):
    """End this process after a signal that arrived during the evaluation. ``of_run`` is the reason of the end of
    training."""
    follow = job.rescue.hand_over(of_run, remaining.rank == 0, job.trainer.lost)
    what = "they follow" if follow else "they are missing"
    leave_early(remaining, f"{job.rescue.out}: {reason} while accuracies were computed: {what}")


def leave_early(mpi, line: str):
    """End this process from the thread that handles signals. Rank 0 prints ``line`` before it ends."""
    if mpi.rank == 0:
        say(line)
    time.sleep(PASSING_ON_SECONDS)
    os._exit(EXIT_CODE)
