"""Preparation of a run on real MPI, before its first step: checks, data, model, communicators, trainer."""

import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch

from grsgd.algorithms.context import RankContext
from grsgd.comm.communicator import Communicator
from grsgd.comm.driver import MpiDriver
from grsgd.comm.elastic.membership import Membership
from grsgd.comm.gpu.select import Choice, select_transport
from grsgd.comm.stop_signal import StopSignal
from grsgd.comm.watchdog import within
from grsgd.config import Config
from grsgd.data import Dataset
from grsgd.errors import ConfigError
from grsgd.job import alike, launch, places
from grsgd.job import network_counters as interfaces
from grsgd.job.binding import bind_ranks
from grsgd.job.binding import tell as tell_bindings
from grsgd.job.communicators import Communicators
from grsgd.job.handover import Handover, HandoverTask
from grsgd.job.keeping import about, find_resumed, go_on_from, say_from_where
from grsgd.job.prepared import Prepared, RunRequest, Survival
from grsgd.job.rescue import Rescue
from grsgd.job.resume import Resumed
from grsgd.job.silence import Silence
from grsgd.job.survival import check_spares, survives
from grsgd.job.timeline_file import TimelineFile
from grsgd.job.timeline_file import check as check_timeline
from grsgd.job.told_deaths import ToldDeaths
from grsgd.machine import binding
from grsgd.runs.run_file import check_content, check_writable
from grsgd.training import device as gpu
from grsgd.training.automatic_options import choose_options
from grsgd.training.batch_gradient import check_compiler
from grsgd.training.checkpoint_writer import CheckpointWriter
from grsgd.training.description import describe, expected_bytes
from grsgd.training.inputs import build_model, load_data
from grsgd.training.marks import EARLY_MARKS
from grsgd.training.memory import check_fits
from grsgd.training.memory_checkpoints import MemoryCheckpoints
from grsgd.training.recovery import Recovery, do_nothing
from grsgd.training.run_content import RunContent
from grsgd.training.snapshots import MEMORY
from grsgd.training.survival import recovery_by_checkpoints, recovery_from_deaths
from grsgd.training.trainer import Trainer
from grsgd.training.trial_batch import check_batch


def prepare(mpi, request: RunRequest, comms: Communicators) -> Prepared:
    """Prepare the run up to its first step, on all ranks together. Raises SetupError if the run is impossible."""
    config, timeout, ranks = request.config, request.config.comm.timeout, mpi.size - request.spares
    start_up, line = request.start_up, request.line
    alike.check_configuration(mpi, config)
    place = find_place(mpi, request)
    if request.timeline:
        comms.timeline = TimelineFile(request.timeline, mpi)
    if survives(config):
        comms.membership = Membership(comms.of_processes(), ranks, place.driver.clock)
        ToldDeaths(comms.membership)
    resumed, config = find_resumed(mpi, config, request.keeping, ranks)
    request = request._replace(config=config)
    tolerant = config.traits.tolerates_lost_ranks or comms.membership is not None
    stop_signal = StopSignal(comms.communicator(), tolerant)
    start_up.passed("MPI")
    inputs = load(mpi, request, place)
    with launch.collective_setup(mpi, timeout):
        transfer = select_transport(
            comms.backend, place.device, config.comm.transfer, model_bytes(inputs.model, config)
        )
        comms.backend = transfer.backend
        survival = make_survival(config, comms, place) if comms.membership else None
        make, reasons = trainer_maker(request, inputs, comms, place.driver, stop_signal, resumed, survival)
        trainer = make() if mpi.rank < ranks else None
        start_up.passed("algorithm")
    give_first_model(mpi, trainer, resumed, place.driver, timeout)
    attributes = reasons | describe_job(mpi, request, trainer, place, transfer) | about(resumed, config, ranks)
    with launch.collective_setup(mpi, timeout):
        check_content(request.out, attributes | request.models.places) if mpi.rank == 0 else None
    with within(timeout, "telling all ranks the other processes"):
        processes = places.processes(mpi)
        handover = None if survival else hand_over(mpi, request, trainer, attributes, processes)
    for_rescue = comms.copy().mpi
    evaluation = None if survival else comms.communicator()
    if survival and config.comm.silent_seconds is not None:
        silence = Silence(comms.of_processes(), survival.membership, processes, config.comm.silent_seconds)
        survival = survival._replace(silence=silence)
    launch.barrier(mpi, timeout)
    start_up.passed("other ranks")
    line.clear()
    if resumed and mpi.rank == 0:
        say_from_where(resumed, ranks)
        line.go_on(resumed.state["totals"]["steps"])
    start_up.tell(mpi, timeout)
    counters = interfaces.counters()
    rescue = Rescue(
        for_rescue,
        stop_signal,
        processes,
        request.out,
        trainer,
        lambda: interfaces.counters() - counters,
        attributes,
        handover,
        comms.membership,
        comms.timeline,
    )
    rescue.began -= resumed.elapsed if resumed else 0.0
    return Prepared(mpi, place.driver, stop_signal, trainer, make, line, rescue, evaluation, survival)


class ComputePlace(NamedTuple):
    """Device and cores on which a process computes.

    ``use_device()`` selects the device in the calling thread. ``local_ranks`` is the number of ranks on this host.
    ``driver`` runs this rank's schedules (generators of computation and communication). ``bindings`` has a text with
    the cores of each rank.
    """

    device: torch.device
    use_device: Callable[[], None]
    local_ranks: int
    driver: MpiDriver
    bindings: list[str]


def find_place(mpi, request: RunRequest) -> ComputePlace:
    """Return the device and cores on which this process computes, after checks that the run is possible. Raises
    SetupError if the run is impossible."""
    config, out, spares, timeline = request.config, request.out, request.spares, request.timeline
    timeout, ranks = config.comm.timeout, mpi.size - spares
    with within(timeout, "looking for ranks on the same host"):
        local_rank, local_ranks = launch.local_ranks(mpi)
    with launch.collective_setup(mpi, timeout):
        config.check_measured()
        binding.way()
        check_spares(config, spares, mpi.size)
        config.check_ranks(ranks)
        if timeline and survives(config):
            raise ConfigError("--timeline: not in a run that survives the death of processes (--with-ft ulfm)")
        if mpi.rank == 0:
            check_writable(out, expected_bytes(config, ranks))
            check_timeline(timeline, out) if timeline else None
        device = gpu.pick_device(config.device, local_rank)
        launch.check_place(mpi, config.algorithm_class, config.algorithm_options, local_ranks, device)
    with within(timeout, "binding ranks to cores"):
        bindings = bind_ranks(mpi, ranks, device)
    gpu.use_threads()
    if mpi.rank == 0:
        request.line.clear()
        tell_bindings(bindings[:ranks], torch.get_num_threads())
    use_device = partial(gpu.use, device)
    use_device()
    gpu.allow_tf32(device, config.gradient.tf32)
    with within(timeout, "looking for ranks on the same cores"):
        least = config.train.compute_seconds
        driver = launch.driver(
            mpi, timeout, config.comm.progress_mode, prepare_thread=use_device, compute_seconds=least
        )
    return ComputePlace(device, use_device, local_ranks, driver, bindings)


class Inputs(NamedTuple):
    """Data set, model, and the number of additional early model snapshots for which every rank has enough memory or
    disk space."""

    dataset: Dataset
    model: torch.nn.Module
    early_marks: int


def load(mpi, request: RunRequest, place: ComputePlace) -> Inputs:
    """Read the data and build the model. Raises SetupError on all ranks if reading or building fails on any rank."""
    config, start_up, line = request.config, request.start_up, request.line
    timeout = config.comm.timeout
    line.doing(f"reading {config.data.name}")
    with launch.collective_setup(mpi, timeout):
        dataset = load_data(config)
        check_fits(config, dataset, mpi.size, place.local_ranks, place.device)
        start_up.passed("data")
    alike.check_data(mpi, config, dataset)
    # `check_fits` above has measured the free memory on all ranks before any rank builds its model below
    with launch.collective_setup(mpi, timeout):
        model = build_model(config, dataset, place.device)
        check_batch(config, dataset, model)
        check_compiler(config.gradient, place.device)
        early_marks = check_room(config, model)
        if mpi.rank == 0:
            request.models.check(request.out, model)
        start_up.passed("model")
    alike.check_model(mpi, config, model)
    line.doing("preparing")
    start_up.passed("other ranks")
    with within(timeout, "asking all ranks how much room they have for snapshots"):
        return Inputs(dataset, model, min(mpi.allgather(early_marks)))


def trainer_maker(
    request: RunRequest,
    inputs: Inputs,
    comms: Communicators,
    driver: MpiDriver,
    stop_signal: StopSignal,
    resumed: Resumed | None,
    survival: Survival | None,
) -> tuple[Callable[[], Trainer], dict]:
    """Return a function that makes the trainer of this process's rank. Also return a dictionary of attributes of the
    run file, with the reasons for the values of options that were "auto".

    Raises ConfigError or DataError if the values of options that are "auto" cannot be chosen.
    """
    dataset, model, early_marks = inputs
    trial = RankContext(comms.communicator(), comms.communicator(), driver)
    config, reasons = driver.run(choose_options(request.config, dataset, model, trial))
    context = RankContext(
        comms.of_training(),
        comms.communicator(),
        driver,
        stop_signal,
        config.seed,
        config.data.replication,
        comms.membership,
    )
    meeting_comm = comms.communicator() if request.keeping.folder else None

    def recovery() -> Recovery:
        of_job = recovery_of_job(request._replace(config=config), meeting_comm, driver, resumed, comms.membership)
        if survival is None:
            return of_job
        return recovery_from_deaths(config.traits, context, survival.states, survival.driver, of_job)

    def make() -> Trainer:
        return Trainer(
            config,
            dataset,
            model,
            context,
            recovery=recovery(),
            early_marks=early_marks,
            compares_models=not survival,
            on_step=request.line.update,
        )

    return make, reasons


def recovery_of_job(
    request: RunRequest,
    comm: Communicator | None,
    driver: MpiDriver,
    resumed: Resumed | None,
    membership: Membership | None,
) -> Recovery:
    """Return the object that takes checkpoints, from which a later job can continue this run. ``comm`` is a
    communicator that only checkpoints use. ``membership`` records which process holds each rank if the run survives the
    death of processes, else None."""
    config, keeping, go_on = request.config, request.keeping, partial(go_on_from, resumed) if resumed else do_nothing
    if not keeping.folder:
        return Recovery(go_on)
    writer, memory = CheckpointWriter(keeping.folder, RunContent(config)), None
    if keeping.host is not None:
        neighbours = keeping.host.neighbours(comm.rank)
        memory = MemoryCheckpoints(writer, keeping.host.folder, keeping.memory, comm, driver, neighbours)
    algorithm, options = config.algorithm_class, config.algorithm_options
    return recovery_by_checkpoints(algorithm, options, writer, keeping.every, comm, driver, membership, go_on, memory)


def give_first_model(mpi, trainer: Trainer | None, resumed: Resumed | None, driver: MpiDriver, timeout: float):
    """Copy the model of rank 0, or the model in the checkpoint from which the run goes on, to all ranks that train.
    Raises SetupError if the checkpoint's model does not fit the run's model."""
    if resumed:
        with launch.collective_setup(mpi, timeout):
            resumed.give_model(trainer.replica) if trainer else None
    if trainer:
        driver.run(trainer.broadcast_initial_model())


def describe_job(
    mpi, request: RunRequest, trainer: Trainer | None, place: ComputePlace, transfer: Choice
) -> dict:
    """Return attributes of the run file: facts about the trainer, and the host, processor, GPU and cores of each rank.
    All processes must call this function."""
    ranks = mpi.size - request.spares
    attributes = {"clock": "wall", "mpi": launch.library()} | (describe(trainer) if trainer else {})
    attributes |= {"transfer": transfer.name, "transfers": str(transfer)}
    with within(request.config.comm.timeout, "telling all ranks where they are"):
        machines = {"hosts": places.hosts(mpi), "processors": mpi.allgather(gpu.processor())}
        machines["gpus"] = mpi.allgather(gpu.name(place.device))
        machines["bindings"] = place.bindings
        attributes |= {name: each[:ranks] for name, each in machines.items()}
        of_run = ("commit", "started")  # rank 0 sends its values of "commit" and "started" to all ranks
        return attributes | dict(zip(of_run, mpi.bcast([attributes.get(name) for name in of_run]), strict=True))


def hand_over(mpi, request: RunRequest, trainer: Trainer, attributes: dict, processes) -> Handover:
    """Return this rank's `Handover` to the process that evaluates the run if the job is killed; to be called on all
    ranks.

    ``processes`` is the result of `grsgd.job.places.processes`, the host and PID of each rank.
    """
    models, timeline = request.models, request.timeline
    task = HandoverTask(
        request.out.absolute(), attributes, (models.final, models.best), timeline and timeline.absolute()
    )
    handover = Handover(trainer.snapshots.share(), task)
    handover.exchange(mpi, processes)
    return handover


def make_survival(config: Config, comms: Communicators, place: ComputePlace) -> Survival:
    """Return the objects with which a process survives the death of other processes, without the object that kills
    silent processes."""
    beside = place.driver.beside(comms.membership.process)
    return Survival(config, comms.membership, beside, comms.of_processes(), comms.copy().mpi)


def model_bytes(model: torch.nn.Module, config: Config) -> int:
    """Return the number of bytes of all parameters that will be trained."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad) * getattr(torch, config.dtype).itemsize


def check_room(config: Config, model: torch.nn.Module) -> int:
    """Return the number of early model snapshots for which $TMPDIR has space. Raise ConfigError if $TMPDIR lacks the
    space even for the ``train.snapshots`` evenly spread snapshots. If the disk becomes full later, the accuracy curve
    has fewer points."""
    tensors = [*model.parameters(), *(b for b in model.buffers() if b.is_floating_point())]
    each = getattr(torch, config.dtype).itemsize * sum(t.numel() for t in tensors)
    needed = config.train.snapshots * each
    folder = tempfile.gettempdir()
    free = shutil.disk_usage(folder).free
    if needed > MEMORY and needed > free:
        raise ConfigError(
            f"train.snapshots = {config.train.snapshots}: {needed / 2**30:,.2f} GiB per rank do not fit into {folder} "
            f"($TMPDIR, {free / 2**30:,.2f} GiB free): take fewer, or set TMPDIR"
        )
    return EARLY_MARKS if needed + EARLY_MARKS * each <= max(MEMORY, free / 2) else 0
