"""A run on real MPI, from the configuration to the run file."""

import math
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from grsgd.algorithms.context import RankContext
from grsgd.comm.backend import MpiBackend, subset
from grsgd.comm.communicator import Communicator
from grsgd.comm.driver import MpiDriver
from grsgd.comm.gpu.select import select_transport
from grsgd.comm.meeting import Meeting
from grsgd.comm.membership import MembersBackend, Membership
from grsgd.comm.stop_signal import Stopped, StopSignal
from grsgd.comm.watchdog import PASSING_ON_SECONDS, within
from grsgd.config import Config
from grsgd.errors import ConfigError, RunFileError
from grsgd.job import launch, survivors
from grsgd.job import network_counters as interfaces
from grsgd.job.handover import Handover, Task
from grsgd.job.progress_line import ProgressLine
from grsgd.job.rescue import Rescue, save, save_with_models
from grsgd.job.resume import Resumed, find
from grsgd.job.signals import EXIT_CODE, Interruption
from grsgd.job.silence import Silence
from grsgd.job.startup import StartUp
from grsgd.job.survivors import Survival
from grsgd.mpi_environment import fault_tolerant, say
from grsgd.runs.ending import ASKED_TO_END, STOP_CRITERIA, TERMINATED, end_attributes, joint_reason
from grsgd.runs.run_file import check_writable
from grsgd.training import device as gpu
from grsgd.training.automatic_options import choose_options
from grsgd.training.checkpoints import Checkpoints, Every
from grsgd.training.description import describe, expected_bytes
from grsgd.training.inputs import build_model, load_data
from grsgd.training.memory import check_fits
from grsgd.training.progress import EARLY_MARKS
from grsgd.training.record import Record, assemble, marks_of
from grsgd.training.saving import ModelFiles
from grsgd.training.snapshots import MEMORY
from grsgd.training.trainer import Trainer


class RunEnd(NamedTuple):
    """Why a run ended, and the ranks that remained to its end, an mpi4py communicator; the lowest has saved it.

    checkpoint: the last one that is complete, if checkpoints were taken. survived: whether ranks could die; then all
    processes that live have come to the end.
    """

    reason: str
    remaining: object
    checkpoint: Path | None = None
    survived: bool = False


class Keeping(NamedTuple):
    """Checkpoints of a run: the folder they go to and how often, and the folder of those that it goes on from."""

    folder: Path | None = None
    every: Every | None = None
    resume: Path | None = None


NOTHING_KEPT = Keeping()


class SavedElsewhere(RunFileError):
    """The run, or a model of it, could not be written where it should be; else it has ended as ``end`` says."""

    def __init__(self, problem: str, end: RunEnd):
        super().__init__(problem)
        self.end = end


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
) -> RunEnd:
    """Train on all processes of ``mpi`` but the last ``spares``, which take the ranks of those that die, and write the
    run file on rank 0, or on the lowest that is left.

    ``start_up``: of this process, up to here; told before training begins, if it is to be shown. ``line``: says how far
    the run is, by default nothing. ``models``: the files that models are saved in, by default none. ``timed``: makes a
    context in which the ranks train, and neither load data nor compute accuracies. ``keeping``: of checkpoints.

    A rank that the others have left behind does not return, nor does any where a rank has failed while training.

    Raises SetupError, on all ranks, for what is wrong with configuration, data or output path; SavedElsewhere
    on the rank that saves if a file could not be written in the end.
    """
    with Interruption(partial(before_training, mpi)) as interruption:
        comms = Communicators(MpiBackend(mpi, config.comm.timeout))
        line, models = line or ProgressLine(is_shown=False), models or ModelFiles()
        job = prepare(mpi, config, out, comms, start_up or StartUp(), line, models, keeping, spares)
        if job.survival is not None:
            return survivors.run(job, models, interruption, timed)
        interruption.on_signal = partial(while_training, job)
        with timed():
            reason, records, remaining, evaluation = train(job)
        lost = sorted(job.trainer.lost)
        attributes = job.rescue.attributes | end_attributes(reason) | {"lost": lost or None}
        if reason in STOP_CRITERIA:
            interruption.on_signal = partial(while_evaluating, job, remaining, reason)
        problem = evaluate(job, records, attributes, remaining, evaluation, models)
        job.driver.close()
        job.rescue.handover.close()
        if reason in STOP_CRITERIA and not lost:  # else messages may still be under way
            comms.free()
    checkpoints = job.trainer.checkpoints
    end = RunEnd(reason, remaining, checkpoints.last if checkpoints else None)
    if problem:
        raise SavedElsewhere(problem, end)
    return end


class Communicators:
    """The communicators of all ranks that a run makes out of ``backend``.

    Each is made, and all are freed, by all ranks at once.
    """

    def __init__(self, backend: MpiBackend):
        self.backend = backend
        self.membership: Membership | None = None
        """Which process holds which rank, where the run goes on without those that die."""
        self.copies: list[MpiBackend] = []

    def copy(self) -> MpiBackend:
        """Return a backend with messages of its own."""
        self.copies.append(self.backend.dup())
        return self.copies[-1]

    def communicator(self) -> Communicator:
        """Return a communicator of all ranks with messages of its own."""
        backend = self.copy()
        return Communicator(MembersBackend(backend, self.membership) if self.membership else backend)

    def of_processes(self) -> Communicator:
        """Return one of all processes, spares among them."""
        return Communicator(self.copy())

    def free(self):
        """Free all: an MPI library has some thousands for all runs of a process."""
        with within(self.backend.timeout, "freeing communicators"):
            for backend in self.copies:
                backend.free()


class Prepared(NamedTuple):
    """One rank, ready to train."""

    mpi: object
    driver: MpiDriver
    stop_signal: StopSignal
    trainer: Trainer
    line: ProgressLine
    rescue: Rescue
    evaluation: Communicator
    survival: Survival | None = None


def prepare(
    mpi,
    config: Config,
    out: Path,
    comms: Communicators,
    start_up: StartUp,
    line: ProgressLine,
    models: ModelFiles,
    keeping: Keeping,
    spares: int = 0,
) -> Prepared:
    """Do everything that comes before the first step; raises SetupError. On return all ranks are there."""
    timeout, ranks = config.comm.timeout, mpi.size - spares
    with within(timeout, "looking for ranks on the same host"):
        local_rank, local_ranks = launch.local_ranks(mpi)
    with launch.collective_setup(mpi, timeout):
        config.check_measured()
        check_spares(config, keeping, spares, mpi.size)
        config.check_ranks(ranks)
        check_keeping(config, keeping)
        if mpi.rank == 0:
            check_writable(out, expected_bytes(config, ranks))
        device = gpu.pick_device(config.device, local_rank)
    gpu.use_threads()
    use_device = partial(gpu.use, device)
    use_device()
    with within(timeout, "looking for ranks on the same cores"):
        least = config.train.compute_seconds
        driver = launch.driver(
            mpi, timeout, config.comm.progress_mode, prepare_thread=use_device, compute_seconds=least
        )
    if survives(config, keeping):
        comms.membership = Membership(comms.of_processes(), ranks, driver.clock)
    resumed = find(mpi, keeping.resume, timeout) if keeping.resume else None
    if resumed:
        with launch.collective_setup(mpi, timeout):
            config = resumed.configured(config, mpi.size)
    tolerant = config.traits.tolerates_lost_ranks or comms.membership is not None
    stop_signal = StopSignal(comms.communicator(), tolerant)
    start_up.passed("MPI")
    line.doing(f"reading {config.data.name}")
    with launch.collective_setup(mpi, timeout):
        dataset = load_data(config)
        check_fits(config, dataset, mpi.size, local_ranks, device)
        start_up.passed("data")
    with launch.collective_setup(mpi, timeout):  # only now, when all have looked at what is free
        model = build_model(config, dataset, device)
        early_marks = check_room(config, model)
        if mpi.rank == 0:
            models.check(out, model)
        start_up.passed("model")
    line.doing("preparing")
    start_up.passed("other ranks")
    with within(timeout, "asking all ranks how much room they have for snapshots"):
        early_marks = min(mpi.allgather(early_marks))
    with launch.collective_setup(mpi, timeout):
        transfer = select_transport(comms.backend, device, config.comm.transfer, model_bytes(model, config))
        comms.backend = transfer.backend
        trial = RankContext(comms.communicator(), comms.communicator(), driver)
        config, why = driver.run(choose_options(config, dataset, model, trial))
        context = RankContext(
            comms.communicator(),
            comms.communicator(),
            driver,
            stop_signal,
            config.seed,
            config.data.replication,
            comms.membership,
        )
        make = partial(Trainer, config, dataset, model, context, early_marks=early_marks, on_step=line.update)
        trainer = make() if mpi.rank < ranks else None
        start_up.passed("algorithm")
    if keeping.folder:
        meeting = Meeting(comms.communicator(), driver, config.traits.synchronous)
        trainer.checkpoints = Checkpoints(keeping.folder, keeping.every, meeting, trainer.config)
    if resumed:
        resumed.give_model(trainer.replica)
        trainer.on_started = partial(go_on, resumed, trainer)
    if trainer:
        driver.run(trainer.broadcast_initial_model())
    attributes = {"redundancy": why, "clock": "wall", "mpi": launch.library()} | (describe(trainer) if trainer else {})
    attributes |= {"transfer": transfer.name, "transfers": str(transfer)}
    attributes |= {"resumed": resumed.samples if resumed else None}
    with within(timeout, "telling all ranks where they are"):
        attributes |= {"hosts": launch.hosts(mpi)[:ranks], "gpus": mpi.allgather(gpu.name(device))[:ranks]}
        attributes["commit"], processes = mpi.bcast(attributes.get("commit")), launch.processes(mpi)
        handover = None
        if comms.membership is None:
            task = Task(out.absolute(), attributes, (models.final, models.best))
            handover = Handover(trainer.snapshots.share(), task)
            handover.exchange(mpi, processes)
    rescue = comms.copy().mpi
    evaluation, survival = None, None
    if comms.membership is None:
        evaluation = comms.communicator()
    else:
        allowed = driver.thread_allowed
        beside = MpiDriver(mpi.rank, math.inf, driver.progress_mode, prepare_thread=use_device, thread_allowed=allowed)
        seconds, silence = config.comm.silent_seconds, None
        if seconds is not None:
            silence = Silence(comms.of_processes(), comms.membership, processes, seconds)
        survival = Survival(comms.membership, beside, comms.of_processes(), comms.copy().mpi, make, silence, config)
    launch.barrier(mpi, timeout)
    start_up.passed("other ranks")
    line.clear()
    if resumed and mpi.rank == 0:
        others = f"; {mpi.size} ranks start from the average of the models of {resumed.ranks}"
        print(f"{resumed}: goes on from here{others * (resumed.ranks != mpi.size)}", file=sys.stderr, flush=True)
    start_up.tell(mpi, timeout)
    counters = interfaces.counters()
    rescue = Rescue(
        rescue,
        stop_signal,
        processes,
        out,
        trainer,
        lambda: interfaces.counters() - counters,
        attributes,
        handover,
        comms.membership,
    )
    rescue.began -= resumed.elapsed if resumed else 0.0
    return Prepared(mpi, driver, stop_signal, trainer, line, rescue, evaluation, survival)


def survives(config: Config, keeping: Keeping) -> bool:
    """Whether the run goes on without processes that die."""
    return fault_tolerant() and config.traits.survives_deaths and not (keeping.folder or keeping.resume)


def check_spares(config: Config, keeping: Keeping, spares: int, processes: int):
    """Raise ConfigError where spares could not take the place of a rank, or none could die as planned."""
    if config.faults.cut:
        raise ConfigError("faults.cut: in simulated time alone; by the clock links can be cut on the testbed's hosts")
    if config.faults.are_deadly and not survives(config, keeping):
        raise ConfigError(
            "faults: by the clock only under mpiexec --with-ft ulfm (Open MPI 5), with an algorithm that survives "
            "deaths, and without checkpoints"
        )
    if config.comm.silent_seconds is not None and not survives(config, keeping):
        raise ConfigError(
            f"comm.silent_seconds = {config.comm.silent_seconds:g}: only where the run goes on without a process: "
            "under mpiexec --with-ft ulfm (Open MPI 5), with an algorithm that survives deaths, and without checkpoints"
        )
    if not spares:
        return
    if not 0 < spares < processes:
        raise ConfigError(f"--spares {spares}: must be from 1 to {processes - 1}, for some of {processes} train")
    if not fault_tolerant():
        raise ConfigError(f"--spares {spares}: only where MPI survives deaths: Open MPI 5's mpiexec --with-ft ulfm")
    if not config.traits.survives_deaths:
        raise ConfigError(f"--spares {spares}: with {config.algorithm.name} the run ends when a rank dies")
    if keeping.folder or keeping.resume:
        raise ConfigError(f"--spares {spares}: not with --checkpoint or --resume")


def check_keeping(config: Config, keeping: Keeping):
    """Raise ConfigError where no checkpoints can be taken."""
    if keeping.folder and config.algorithm_class.remembers is None:
        raise ConfigError(f"--checkpoint: {config.algorithm.name} does not say what to keep (`remembers`)")
    if keeping.folder and config.traits.tolerates_lost_ranks:
        raise ConfigError("--checkpoint: not with algorithm.on_lost_worker = 'evict'")
    if keeping.folder and keeping.folder != keeping.resume and any(keeping.folder.glob("samples-*")):
        raise ConfigError(
            f"--checkpoint {keeping.folder}: there are checkpoints of another run: --resume {keeping.folder} goes on "
            "with it; or name another folder"
        )


def go_on(resumed: Resumed, trainer: Trainer):
    """Put a rank whose algorithm has started where it was."""
    resumed.restore(trainer)
    if trainer.checkpoints is not None:
        is_same = trainer.checkpoints.folder.resolve() == resumed.folder.resolve()
        kept = trainer.snapshots.count if is_same else 0
        trainer.checkpoints.start(resumed.samples, trainer.totals.steps, kept)


def train(job: Prepared) -> tuple[str, list[Record], object, Communicator]:
    """Train; does not return where a rank has failed.

    Returns why training ended, what all ranks have measured, and the ranks that remain, twice: an mpi4py communicator,
    and one to evaluate with.
    """
    mpi, driver, stop_signal, trainer, line, rescue, evaluation, _ = job
    line.training(trainer)
    rescue.begin()
    try:
        reason = driver.run(trainer.train())
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
    records = [Record.of_nothing(mpi.size) for _ in range(mpi.size)]
    with within(driver.timeout, "collecting what all ranks have measured"):
        reasons = []
        for rank, theirs, of_rank in remaining.allgather((mpi.rank, record, reason)):
            records[rank] = theirs
            reasons.append(of_rank)
    return joint_reason(reasons), records, remaining, evaluation


def evaluate(
    job: Prepared, records: list[Record], attributes: dict, remaining, evaluation: Communicator, models: ModelFiles
) -> str | None:
    """Write the run file on the lowest rank, without accuracies first: they may take long. It saves the models, too.
    Returns what could not be written where it should be."""
    out = job.rescue.out
    if remaining.rank == 0:
        try:
            save(out, assemble(records, attributes))
        except RunFileError as error:  # there is another attempt
            print(f"\ngrsgd: {error}", file=sys.stderr, flush=True)
    marks = marks_of(records, attributes["reason"])
    if attributes["reason"] == TERMINATED and "OMPI_COMM_WORLD_RANK" in os.environ:
        job.line.hide()  # Open MPI's launcher ends in a moment: a prompt will stand there
    job.line.doing(f"evaluating {len(marks)} snapshot{'s' * (len(marks) != 1)}")
    models = models if remaining.rank == 0 else ModelFiles()
    schedule = job.trainer.evaluate(evaluation, marks, job.line.counted, models.evaluated)
    qualities, final = job.driver.run(schedule)
    job.line.doing("saving")
    if remaining.rank == 0:
        try:
            save_with_models(out, assemble(records, attributes, qualities, final), models, job.trainer.replica.model)
        except RunFileError as error:  # the others need not know: all ranks have done what is to be done together
            return str(error)
    return None


def model_bytes(model: torch.nn.Module, config: Config) -> int:
    """Return M, the bytes of all parameters that will be trained."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad) * getattr(torch, config.dtype).itemsize


def before_training(mpi, reason: str):
    """End this process on a signal that came too early for a run file."""
    leave_early(mpi, f"{reason} before training began: there is no run file")


def while_training(job: Prepared, reason: str):
    """Save what there is, on a signal, and end; with checkpoints after another one, if the launcher leaves time."""
    if job.trainer.checkpoints is None:
        job.rescue.interrupted(reason)
        return
    job.trainer.checkpoints.meeting.ask(reason)
    if reason != ASKED_TO_END:
        job.rescue.interrupted(reason, stop=False)


def while_evaluating(job: Prepared, remaining, of_run: str, reason: str):
    """End this process on a signal that came when training was over, which ended for the reason ``of_run``."""
    follow = job.rescue.hand_over(of_run, remaining.rank == 0, job.trainer.lost)
    what = "they follow" if follow else "they are missing"
    leave_early(remaining, f"{job.rescue.out}: {reason} while accuracies were computed: {what}")


def leave_early(mpi, line: str):
    """End this process, in the thread that has learnt of a signal; rank 0 says so."""
    if mpi.rank == 0:
        say(line)
    time.sleep(PASSING_ON_SECONDS)
    os._exit(EXIT_CODE)


def check_room(config: Config, model: torch.nn.Module) -> int:
    """Return how many early marks there is room for in $TMPDIR; raise ConfigError if not even for the other snapshots.
    Other ranks and programs may need it too: what is full only later costs points of the curve."""
    tensors = [*model.parameters(), *(b for b in model.buffers() if b.is_floating_point())]
    each = getattr(torch, config.dtype).itemsize * sum(t.numel() for t in tensors)
    needed = config.train.snapshots * each
    folder = tempfile.gettempdir()
    free = shutil.disk_usage(folder).free
    if needed > MEMORY and needed > free:
        raise ConfigError(
            f"train.snapshots = {config.train.snapshots}: {needed / 2**30:,.2f} GiB a rank do not fit into {folder} "
            f"($TMPDIR, {free / 2**30:,.2f} GiB free): take fewer, or set TMPDIR"
        )
    return EARLY_MARKS if needed + EARLY_MARKS * each <= max(MEMORY, free / 2) else 0
