"""Everything before the first step of a run on real MPI: checks, data, model, communicators, trainer."""

import math
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from grsgd.algorithms.central import keeps_step
from grsgd.algorithms.context import RankContext
from grsgd.algorithms.equal_models import EqualModels
from grsgd.comm.backend import MpiBackend
from grsgd.comm.communicator import Communicator
from grsgd.comm.driver import MpiDriver
from grsgd.comm.elastic.meeting import Meeting
from grsgd.comm.elastic.membership import MembersBackend, Membership
from grsgd.comm.gpu.select import select_transport
from grsgd.comm.stop_signal import StopSignal
from grsgd.comm.watchdog import within
from grsgd.config import Config
from grsgd.data import Dataset
from grsgd.errors import ConfigError
from grsgd.job import alike, launch
from grsgd.job import network_counters as interfaces
from grsgd.job.handover import Handover, HandoverTask
from grsgd.job.keeping import Keeping, find_resumed, go_on, say_from_where
from grsgd.job.prepared import Prepared, Survival
from grsgd.job.progress_line import ProgressLine
from grsgd.job.rescue import Rescue
from grsgd.job.silence import Silence
from grsgd.job.startup import StartUp
from grsgd.job.timeline_file import TimelineFile
from grsgd.job.timeline_file import check as check_timeline
from grsgd.mpi_environment import fault_tolerant
from grsgd.runs.run_file import check_content, check_writable
from grsgd.training import device as gpu
from grsgd.training.automatic_options import choose_options
from grsgd.training.checkpoints import Checkpoints
from grsgd.training.description import describe, expected_bytes
from grsgd.training.inputs import build_model, load_data
from grsgd.training.memory import check_fits
from grsgd.training.progress import EARLY_MARKS
from grsgd.training.saving import ModelFiles
from grsgd.training.snapshots import MEMORY
from grsgd.training.trainer import Trainer, ignore
from grsgd.training.trial_batch import check_batch


class Communicators:
    """The communicators of all ranks that a run makes out of ``backend``.

    Each is made, and all are freed, by all ranks at once.
    """

    def __init__(self, backend: MpiBackend):
        self.backend = backend
        self.membership: Membership | None = None
        """Which process holds which rank, where the run goes on without those that die."""
        self.timeline: TimelineFile | None = None
        """Records the messages of the training, if it is asked for."""
        self.copies: list[MpiBackend] = []

    def copy(self) -> MpiBackend:
        """Return a backend with messages of its own."""
        self.copies.append(self.backend.dup())
        return self.copies[-1]

    def communicator(self) -> Communicator:
        """Return a communicator of all ranks with messages of its own."""
        backend = self.copy()
        return Communicator(MembersBackend(backend, self.membership) if self.membership else backend)

    def of_training(self) -> Communicator:
        """Return one for the messages of the algorithm."""
        comm = self.communicator()
        return Communicator(self.timeline.recorded(comm.backend)) if self.timeline else comm

    def of_processes(self) -> Communicator:
        """Return one of all processes, spares among them."""
        return Communicator(self.copy())

    def free(self):
        """Free all: an MPI library has some thousands for all runs of a process."""
        with within(self.backend.timeout, "freeing communicators"):
            for backend in self.copies:
                backend.free()


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
    timeline: Path | None = None,
) -> Prepared:
    """Do everything that comes before the first step; raises SetupError. On return all ranks are there."""
    timeout, ranks = config.comm.timeout, mpi.size - spares
    alike.check_configuration(mpi, config)
    place = find_place(mpi, config, out, keeping, spares, timeline)
    driver = place.driver
    if timeline:
        comms.timeline = TimelineFile(timeline, mpi)
    if survives(config, keeping):
        comms.membership = Membership(comms.of_processes(), ranks, driver.clock)
    resumed, config = find_resumed(mpi, config, keeping)
    tolerant = config.traits.tolerates_lost_ranks or comms.membership is not None
    stop_signal = StopSignal(comms.communicator(), tolerant)
    start_up.passed("MPI")
    inputs = load(mpi, config, out, place, start_up, line, models)
    with launch.collective_setup(mpi, timeout):
        transfer = select_transport(
            comms.backend, place.device, config.comm.transfer, model_bytes(inputs.model, config)
        )
        comms.backend = transfer.backend
        make, reasons = trainer_maker(config, inputs, comms, driver, stop_signal, line)
        trainer = make() if mpi.rank < ranks else None
        start_up.passed("algorithm")
    if keeping.folder:
        in_lockstep = keeps_step(config.algorithm_class, config.algorithm_options, ranks)
        meeting = Meeting(comms.communicator(), driver, in_lockstep)
        trainer.checkpoints = Checkpoints(keeping.folder, keeping.every, meeting, trainer.config)
        with launch.collective_setup(mpi, timeout):
            trainer.checkpoints.check(trainer)
    if resumed:
        with launch.collective_setup(mpi, timeout):
            resumed.give_model(trainer.replica)
        trainer.on_started = partial(go_on, resumed, trainer)
    if trainer:
        driver.run(trainer.broadcast_initial_model())
        if trainer.membership is None:
            trainer.equal_models = EqualModels(trainer.algorithm, say=ignore)  # the run file has it, and the end
    attributes = reasons | {"transfer": transfer.name, "transfers": str(transfer)}
    attributes |= {"resumed": resumed.samples if resumed else None}
    with within(timeout, "telling all ranks where they are"):
        attributes |= describe_job(mpi, trainer, place, ranks)
    with launch.collective_setup(mpi, timeout):
        check_content(out, attributes | models.places) if mpi.rank == 0 else None
    with within(timeout, "telling all ranks how their processes are found"):
        processes, handover = launch.processes(mpi), None
        if comms.membership is None:
            files = models.final, models.best
            task = HandoverTask(out.absolute(), attributes, files, timeline and timeline.absolute())
            handover = Handover(trainer.snapshots.share(), task)
            handover.exchange(mpi, processes)
    for_rescue = comms.copy().mpi
    evaluation, survival = None, None
    if comms.membership is None:
        evaluation = comms.communicator()
    else:
        survival = make_survival(config, comms, place, processes, make)
    launch.barrier(mpi, timeout)
    start_up.passed("other ranks")
    line.clear()
    if resumed and mpi.rank == 0:
        say_from_where(resumed, mpi.size)
        line.go_on(resumed.state["totals"]["steps"])
    start_up.tell(mpi, timeout)
    counters = interfaces.counters()
    rescue = Rescue(
        for_rescue,
        stop_signal,
        processes,
        out,
        trainer,
        lambda: interfaces.counters() - counters,
        attributes,
        handover,
        comms.membership,
        comms.timeline,
    )
    rescue.began -= resumed.elapsed if resumed else 0.0
    return Prepared(mpi, driver, stop_signal, trainer, line, rescue, evaluation, survival)


class ComputePlace(NamedTuple):
    """Where a process computes: its device, what makes that the device of a thread, how many ranks there are on its
    host, and what runs its schedules."""

    device: torch.device
    use_device: Callable[[], None]
    local_ranks: int
    driver: MpiDriver


def find_place(mpi, config: Config, out: Path, keeping: Keeping, spares: int, timeline: Path | None) -> ComputePlace:
    """Return where this process computes, once it is clear that the run can be made; raises SetupError."""
    timeout, ranks = config.comm.timeout, mpi.size - spares
    with within(timeout, "looking for ranks on the same host"):
        local_rank, local_ranks = launch.local_ranks(mpi)
    with launch.collective_setup(mpi, timeout):
        config.check_measured()
        check_spares(config, keeping, spares, mpi.size)
        config.check_ranks(ranks)
        if timeline and survives(config, keeping):
            raise ConfigError("--timeline: not where the run goes on without processes that die (--with-ft ulfm)")
        if mpi.rank == 0:
            check_writable(out, expected_bytes(config, ranks))
            check_timeline(timeline, out) if timeline else None
        device = gpu.pick_device(config.device, local_rank)
        launch.check_shares_memory(mpi, config.traits, local_ranks, device)
    gpu.use_threads()
    use_device = partial(gpu.use, device)
    use_device()
    with within(timeout, "looking for ranks on the same cores"):
        least = config.train.compute_seconds
        driver = launch.driver(
            mpi, timeout, config.comm.progress_mode, prepare_thread=use_device, compute_seconds=least
        )
    return ComputePlace(device, use_device, local_ranks, driver)


class Inputs(NamedTuple):
    """The data set and the model. early_marks: for how many early snapshots all ranks have room."""

    dataset: Dataset
    model: torch.nn.Module
    early_marks: int


def load(
    mpi, config: Config, out: Path, place: ComputePlace, start_up: StartUp, line: ProgressLine, models: ModelFiles
) -> Inputs:
    """Read the data and make the model; raises SetupError."""
    timeout = config.comm.timeout
    line.doing(f"reading {config.data.name}")
    with launch.collective_setup(mpi, timeout):
        dataset = load_data(config)
        check_fits(config, dataset, mpi.size, place.local_ranks, place.device)
        start_up.passed("data")
    alike.check_data(mpi, config, dataset)
    with launch.collective_setup(mpi, timeout):  # only now, when all have looked at what is free
        model = build_model(config, dataset, place.device)
        check_batch(config, dataset, model)
        early_marks = check_room(config, model)
        if mpi.rank == 0:
            models.check(out, model)
        start_up.passed("model")
    alike.check_model(mpi, config, model)
    line.doing("preparing")
    start_up.passed("other ranks")
    with within(timeout, "asking all ranks how much room they have for snapshots"):
        return Inputs(dataset, model, min(mpi.allgather(early_marks)))


def trainer_maker(
    config: Config,
    inputs: Inputs,
    comms: Communicators,
    driver: MpiDriver,
    stop_signal: StopSignal,
    line: ProgressLine,
) -> tuple[Callable[[], Trainer], dict]:
    """Return what makes the trainer of the rank that this process holds, and why automatic options are what they are,
    as attributes of the run file.

    Raises ConfigError and DataError.
    """
    dataset, model, early_marks = inputs
    trial = RankContext(comms.communicator(), comms.communicator(), driver)
    config, reasons = driver.run(choose_options(config, dataset, model, trial))
    context = RankContext(
        comms.of_training(),
        comms.communicator(),
        driver,
        stop_signal,
        config.seed,
        config.data.replication,
        comms.membership,
    )
    return partial(Trainer, config, dataset, model, context, early_marks=early_marks, on_step=line.update), reasons


def describe_job(mpi, trainer: Trainer | None, place: ComputePlace, ranks: int) -> dict:
    """Return attributes of the run file, on all processes at once: what trains, and where each rank does."""
    attributes = {"clock": "wall", "mpi": launch.library()} | (describe(trainer) if trainer else {})
    machines = {"hosts": launch.hosts(mpi), "processors": mpi.allgather(gpu.processor())}
    machines["gpus"] = mpi.allgather(gpu.name(place.device))
    attributes |= {name: each[:ranks] for name, each in machines.items()}
    of_run = ("commit", "started")  # alike on all ranks
    return attributes | dict(zip(of_run, mpi.bcast([attributes.get(name) for name in of_run]), strict=True))


def make_survival(
    config: Config,
    comms: Communicators,
    place: ComputePlace,
    processes: list[tuple[str, int]],
    make: Callable[[], Trainer],
) -> Survival:
    """Return what a process needs where others may die. processes: `launch.processes`."""
    driver = place.driver
    beside = MpiDriver(
        comms.membership.process,
        math.inf,
        driver.progress_mode,
        prepare_thread=place.use_device,
        thread_allowed=driver.thread_allowed,
    )
    seconds, silence = config.comm.silent_seconds, None
    if seconds is not None:
        silence = Silence(comms.of_processes(), comms.membership, processes, seconds)
    return Survival(comms.membership, beside, comms.of_processes(), comms.copy().mpi, make, silence, config)


WHERE_SURVIVED = (
    "under mpiexec --with-ft ulfm (Open MPI 5), with an algorithm that survives deaths, and without checkpoints"
)


def survives(config: Config, keeping: Keeping) -> bool:
    """Whether the run goes on without processes that die."""
    return fault_tolerant() and config.traits.survives_deaths and not (keeping.folder or keeping.resume)


def check_spares(config: Config, keeping: Keeping, spares: int, processes: int):
    """Raise ConfigError where spares could not take the place of a rank, or none could die as planned."""
    if config.faults.cut:
        raise ConfigError("faults.cut: in simulated time alone; by the clock links can be cut on the testbed's hosts")
    if config.faults.are_deadly and not survives(config, keeping):
        raise ConfigError(f"faults: by the clock only {WHERE_SURVIVED}")
    if config.comm.silent_seconds is not None and not survives(config, keeping):
        raise ConfigError(
            f"comm.silent_seconds = {config.comm.silent_seconds:g}: only where the run goes on without a process: "
            f"{WHERE_SURVIVED}"
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


def model_bytes(model: torch.nn.Module, config: Config) -> int:
    """Return M, the bytes of all parameters that will be trained."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad) * getattr(torch, config.dtype).itemsize


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
