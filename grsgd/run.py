"""A run on real MPI, from the configuration to the run file."""

import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from tqdm import tqdm

from grsgd import __version__, gpu, interfaces, launch
from grsgd.comm.communicator import Communicator, subset
from grsgd.comm.control import Control, Stopped
from grsgd.comm.driver import Driver
from grsgd.config import ENDS, Config, ConfigError
from grsgd.data import DataError
from grsgd.interruption import EXIT_CODE, Interruption
from grsgd.record import Record, assemble
from grsgd.redundancy import settle
from grsgd.rescue import Rescue, save
from grsgd.results import RunFileError, check_writable
from grsgd.snapshots import MEMORY, common_marks
from grsgd.startup import StartUp
from grsgd.train import Trainer, build_model, load_data, use_threads
from grsgd.transfer import choose
from grsgd.watchdog import PASSING_ON_SECONDS, within


class Ending(NamedTuple):
    """Why a run ended, and the ranks that were there at its end, an mpi4py communicator; the lowest has saved it."""

    stopped: str
    living: object


def run(mpi, config: Config, out: Path, start_up: StartUp | None = None) -> Ending:
    """Train on all ranks of ``mpi`` and write the run file on rank 0, or on the lowest that is left.

    ``start_up``: of this process, up to here; told before training begins, if it is to be shown.

    A rank that the others have left behind does not return, nor does any where a rank has failed while training.

    Raises launch.UsageError, on all ranks, for what is wrong with configuration, data or output path; RunFileError on
    the rank that saves if the file could not be written in the end.
    """
    with Interruption(partial(before_training, mpi)) as interruption:
        made = Made(mpi, config.comm.timeout)
        job = prepare(mpi, config, out, made, start_up or StartUp())
        interruption.on_signal = job.rescue.interrupted
        stopped, records, living, evaluation = train(job)
        lost = sorted(job.trainer.algorithm.lost)
        attributes = job.rescue.attributes | {"stopped": stopped, "lost": lost or None}
        if stopped in ENDS:
            interruption.on_signal = partial(while_evaluating, living, out)
        evaluate(job, records, attributes, living, evaluation)
        job.driver.close()
        if stopped in ENDS and not lost:  # else messages may still be under way
            made.free()
    return Ending(stopped, living)


class Made:
    """The communicators of all ranks that a run has made. Each is made, and all are freed, by all ranks at once."""

    def __init__(self, mpi, timeout: float):
        self.mpi, self.timeout = mpi, timeout
        self.communicators = []

    def duplicate(self):
        """An mpi4py communicator."""
        with within(self.timeout, "making a communicator of all ranks"):
            self.communicators.append(self.mpi.Dup())
        return self.communicators[-1]

    def communicator(self, device_end=None) -> Communicator:
        comm = Communicator(self.duplicate(), device_end)
        comm.timeout = self.timeout
        return comm

    def free(self):
        """An MPI library has some thousands for all runs of a process."""
        with within(self.timeout, "freeing communicators"):
            for mpi in self.communicators:
                mpi.Free()


class Prepared(NamedTuple):
    """What a rank needs to train."""

    mpi: object
    driver: Driver
    control: Control
    trainer: Trainer
    rescue: Rescue
    evaluation: Communicator


def prepare(mpi, config: Config, out: Path, made: Made, start_up: StartUp) -> Prepared:
    """Everything before the first step; raises launch.UsageError. On return all ranks are there."""
    timeout = config.comm.timeout
    with within(timeout, "looking for ranks on the same host"):
        local_rank = launch.local_rank(mpi)
    with launch.together(mpi, (ConfigError, RunFileError), timeout):
        config.check_ranks(mpi.size)
        if mpi.rank == 0:
            check_writable(out, expected_bytes(config, mpi.size))
        device = gpu.pick_device(config.device, local_rank)
    use_threads()
    use_device = partial(gpu.use, device)
    use_device()
    with within(timeout, "looking for ranks on the same cores"):
        driver = launch.driver(mpi, timeout, config.comm.progress, prepare_thread=use_device)
    control = Control(made.communicator(), tolerant=evicts(config))
    start_up.passed("MPI")
    with launch.together(mpi, (ConfigError, DataError), timeout):
        dataset = load_data(config)
        start_up.passed("data")
        model = build_model(config, dataset, device)
        check_room(config, model)
        start_up.passed("model")
    start_up.passed("other ranks")
    with launch.together(mpi, (ConfigError,), timeout):
        transfer = choose(mpi, device, config.comm.transfer, model_bytes(model, config))
        communicator = partial(made.communicator, transfer.device_end)
        config, why = driver.run(settle(config, dataset, model, communicator(), driver))
        trainer = Trainer(config, dataset, model, communicator(), communicator(), control, driver)
        start_up.passed("algorithm")
    driver.run(trainer.same_start())
    attributes = describe(trainer) | {"redundancy": why, "clock": "wall", "mpi": launch.library()}
    attributes |= {"transfer": transfer.name, "transfers": str(transfer)}
    with within(timeout, "telling all ranks where they are"):
        attributes |= {"hosts": launch.hosts(mpi), "gpus": mpi.allgather(gpu.name(device))}
        attributes["commit"], processes = mpi.bcast(attributes["commit"]), launch.processes(mpi)
    rescue, evaluation = made.duplicate(), communicator()
    driver.watch = control.watch
    launch.meet(mpi, timeout)
    start_up.passed("other ranks")
    start_up.tell(mpi, timeout)
    counters = interfaces.counters()
    rescue = Rescue(rescue, control, processes, out, trainer, lambda: interfaces.counters() - counters, attributes)
    return Prepared(mpi, driver, control, trainer, rescue, evaluation)


def train(job: Prepared) -> tuple[str, list[Record], object, Communicator]:
    """Why training ended, what all ranks have measured, and the ranks that are left, twice: an mpi4py communicator and
    one to evaluate with. Does not return where a rank has failed."""
    mpi, driver, control, trainer, rescue, evaluation = job
    try:
        with ProgressLine(trainer) as line:
            trainer.on_step = line.update
            stopped = driver.run(trainer.train())
        driver.watch = None
        record = rescue.measured()
        rescue.attributes["wall_seconds"] = time.perf_counter() - rescue.began
        lost = trainer.algorithm.lost
        if mpi.rank in lost:
            launch.wait_for_the_end()
        left = [rank for rank in range(mpi.size) if rank not in lost]
        living = subset(mpi, left) if lost else mpi
        evaluation = evaluation.subset(left) if lost else evaluation
        launch.meet(living, driver.timeout, control.watch_failures)
    except Exception as error:
        rescue.failed(error)
    if control.failed:
        rescue.failed(Stopped(control.reason))
    records = [Record.of_nothing(mpi.size) for _ in range(mpi.size)]
    with within(driver.timeout, "collecting what all ranks have measured"):
        reasons = []
        for rank, theirs, reason in living.allgather((mpi.rank, record, stopped)):
            records[rank] = theirs
            reasons.append(reason)
    return ending(reasons), records, living, evaluation


def evaluate(job: Prepared, records: list[Record], attributes: dict, living, evaluation: Communicator):
    """Write the run file on the lowest rank, without accuracies first: they may take long."""
    out = job.rescue.out
    if living.rank == 0:
        try:
            save(out, assemble(records, attributes))
        except RunFileError as error:  # there is another attempt
            print(f"\ngrsgd: {error}", file=sys.stderr, flush=True)
    marks = common_marks([record.numbers for record in records if record.moments])
    qualities, final = job.driver.run(job.trainer.evaluate(evaluation, marks))
    if living.rank == 0:
        save(out, assemble(records, attributes, qualities, final))


def model_bytes(model: torch.nn.Module, config: Config) -> int:
    """M: of all parameters that will be trained."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad) * getattr(torch, config.dtype).itemsize


def describe(trainer: Trainer) -> dict:
    """The root attributes of the run file, but for where the run takes place and how it ends; `commit` on rank 0."""
    config = trainer.config
    return {
        "algorithm": config.algorithm.name,
        "ranks": trainer.comm.size,
        "seed": config.seed,
        "config": config.toml(),
        "version": __version__,
        "commit": commit() if trainer.comm.rank == 0 else None,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": trainer.replica.device.type,
        "progress": trainer.driver.progress,
        "dataset": config.data.name,
        "model": config.model.name,
        "batch_size": config.data.batch_size,
        "train_samples": len(trainer.data.train),
        "parameters": trainer.replica.params.array.size,
        "model_bytes": trainer.replica.nbytes,
        "target_accuracy": config.train.target_accuracy,
    }


def ending(reasons: list[str]) -> str:
    """Why a run ended, by what its ranks say: some may have ended regularly just before it was stopped."""
    return next((reason for reason in reasons if reason not in ENDS), reasons[0])


def before_training(mpi, reason: str):
    """A signal came too early for a run file."""
    leave_early(mpi, f"{reason} before training began: there is no run file")


def while_evaluating(mpi, out: Path, reason: str):
    """A signal came when training was over."""
    leave_early(mpi, f"{out}: {reason} while accuracies were computed: they are missing")


def leave_early(mpi, line: str):
    """End this process, in the thread that has learnt of a signal; rank 0 says so."""
    if mpi.rank == 0:
        launch.say(line)
    time.sleep(PASSING_ON_SECONDS)
    os._exit(EXIT_CODE)


def evicts(config: Config) -> bool:
    """Whether the run goes on without ranks that are lost."""
    return getattr(config.algorithm_options, "on_lost_worker", "stop") == "evict"


def expected_bytes(config: Config, ranks: int) -> int:
    """About the size of the run file: matrices of traffic, a curve, and the rest."""
    return 2**17 + 8 * (3 * ranks**2 + 32 * ranks + 8 * config.train.snapshots)


def check_room(config: Config, model: torch.nn.Module):
    """Raise ConfigError if the snapshots of a rank do not fit into $TMPDIR. Other ranks and programs may need it too:
    what is full only later costs points of the curve."""
    tensors = [*model.parameters(), *(b for b in model.buffers() if b.is_floating_point())]
    needed = config.train.snapshots * getattr(torch, config.dtype).itemsize * sum(t.numel() for t in tensors)
    folder = tempfile.gettempdir()
    free = shutil.disk_usage(folder).free
    if needed > MEMORY and needed > free:
        raise ConfigError(
            f"train.snapshots = {config.train.snapshots}: {needed / 2**30:,.2f} GiB a rank do not fit into {folder} "
            f"($TMPDIR, {free / 2**30:,.2f} GiB free): take fewer, or set TMPDIR"
        )


def commit() -> str | None:
    """The commit of the source code, if it lies in a git repository; marked if it was changed since."""
    git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        return subprocess.run(git, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


class ProgressLine:
    """One line on rank 0's terminal with samples, rate, loss and time left; nothing anywhere else."""

    def __init__(self, trainer: Trainer):
        self.progress = trainer.progress
        seconds = trainer.config.train.seconds
        self.bar = tqdm(
            desc=trainer.config.algorithm.name,
            total=trainer.end if trainer.end is not None else seconds,
            bar_format="{desc} {percentage:3.0f}% |{bar:24}| {elapsed}{postfix}, {remaining} left",
            disable=trainer.comm.rank != 0 or not launch.at_terminal(),
            ncols=79,
            mininterval=0.2,
            miniters=1,
        )
        self.in_samples = trainer.end is not None

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.bar.refresh()
        self.bar.close()

    def update(self, loss: float):
        if not self.bar.disable:
            now = self.progress.samples if self.in_samples else self.progress.elapsed()
            rate = self.progress.samples / max(self.progress.elapsed(), 1e-9)
            self.bar.postfix = f"{rate:,.0f} samples/s" + (f", loss {loss:.3f}" if loss is not None else "")
            self.bar.update(min(now, self.bar.total) - self.bar.n)
