"""A run on real MPI, from the configuration to the run file."""

import platform
import subprocess
import time
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from tqdm import tqdm

from grsgd import __version__, gpu, interfaces, launch
from grsgd.comm.communicator import Communicator, subset
from grsgd.comm.control import Control
from grsgd.config import ENDS, Config, ConfigError
from grsgd.data import DataError
from grsgd.interruption import Interruption
from grsgd.record import Record, assemble
from grsgd.redundancy import settle
from grsgd.results import RunFileError, check_writable, save_run
from grsgd.snapshots import common_marks
from grsgd.train import Trainer, build_model, load_data, use_threads
from grsgd.transfer import choose

INTERRUPTED = "interrupted"
RESCUE_SECONDS = 0.1
"""How long rank 0 collects the other ranks' measurements when the job is about to be killed."""


class Ending(NamedTuple):
    """Why a run ended, and the ranks that were there at its end, an mpi4py communicator; the lowest has saved it."""

    stopped: str
    living: object


def run(mpi, config: Config, out: Path) -> Ending:
    """Train on all ranks of ``mpi`` and write the run file on rank 0, or on the lowest that is left.

    A rank that the others have left behind does not return.

    Raises launch.UsageError, on all ranks, for what is wrong with configuration, data or output path.
    """
    local_rank = launch.local_rank(mpi)
    with launch.together(mpi, (ConfigError, RunFileError)):
        config.check_ranks(mpi.size)
        if mpi.rank == 0:
            check_writable(out)
        device = gpu.pick_device(config.device, local_rank)
    use_threads()
    use_device = partial(gpu.use, device)
    use_device()
    driver = launch.driver(mpi, config.comm.timeout, config.comm.progress, prepare_thread=use_device)
    control = Control(Communicator(mpi.Dup()))
    with launch.together(mpi, (ConfigError, DataError), config.comm.timeout):
        dataset = load_data(config)
        model = build_model(config, dataset, device)
    with launch.together(mpi, (ConfigError,), config.comm.timeout):
        transfer = choose(mpi, device, config.comm.transfer, model_bytes(model, config))

        def communicator():
            return Communicator(mpi.Dup(), transfer.device_end)

        config, why = driver.run(settle(config, dataset, model, communicator(), driver))
        trainer = Trainer(config, dataset, model, communicator(), communicator(), control, driver)
    driver.run(trainer.same_start())
    attributes = describe(trainer) | {"redundancy": why, "clock": "wall"}
    attributes |= {"hosts": launch.hosts(mpi), "mpi": launch.library(), "gpus": mpi.allgather(gpu.name(device))}
    attributes |= {"transfer": transfer.name, "transfers": str(transfer)}
    rescue, evaluation = mpi.Dup(), communicator()
    driver.watch = control.watch
    launch.meet(mpi, config.comm.timeout)
    began, counted = time.perf_counter(), interfaces.counters()

    def save_at_once():
        """The launcher may kill this job any moment: save what needs no computing."""
        control.request = INTERRUPTED  # the trainer stops and leaves the core to this thread
        records = collect(rescue, Record.of(trainer, interfaces.counters() - counted), RESCUE_SECONDS)
        if mpi.rank == 0:
            ending = {"stopped": INTERRUPTED, "wall_seconds": time.perf_counter() - began}
            save_run(out, assemble(records, attributes | ending))

    with Interruption(save_at_once), ProgressLine(trainer) as line:
        trainer.on_step = line.update
        stopped = driver.run(trainer.train())
    driver.watch = None
    wall_seconds, counted = time.perf_counter() - began, interfaces.counters() - counted
    lost = trainer.algorithm.lost
    if mpi.rank in lost:
        launch.wait_for_the_end()
    left = [rank for rank in range(mpi.size) if rank not in lost]
    living = subset(mpi, left) if lost else mpi
    evaluation = evaluation.subset(left) if lost else evaluation
    launch.meet(living, config.comm.timeout)
    records = [Record.of_nothing(mpi.size) for _ in range(mpi.size)]
    for rank, record in living.allgather((mpi.rank, Record.of(trainer, counted))):
        records[rank] = record
    stopped = ending(living.allgather(stopped))
    attributes |= {"stopped": stopped, "wall_seconds": wall_seconds, "lost": sorted(lost) or None}
    if living.rank == 0:  # evaluation may take long
        save_run(out, assemble(records, attributes))
    marks = common_marks([record.numbers for record in records if record.moments])
    qualities, final = driver.run(trainer.evaluate(evaluation, marks))
    if living.rank == 0:
        save_run(out, assemble(records, attributes, qualities, final))
    driver.close()
    return Ending(stopped, living)


def model_bytes(model: torch.nn.Module, config: Config) -> int:
    """M: of all parameters that will be trained."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad) * getattr(torch, config.dtype).itemsize


def describe(trainer: Trainer) -> dict:
    """The root attributes of the run file, but for where the run takes place and how it ends."""
    config = trainer.config
    return {
        "algorithm": config.algorithm.name,
        "ranks": trainer.comm.size,
        "seed": config.seed,
        "config": config.toml(),
        "version": __version__,
        "commit": commit(),
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


_unfinished: list = []


def commit() -> str | None:
    """The commit of the source code, if it lies in a git repository; marked if it was changed since."""
    git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        return subprocess.run(git, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def collect(mpi, record: Record, seconds: float) -> list[Record]:
    """On rank 0 the records of the ranks that answer within ``seconds``, by rank; elsewhere nothing."""
    deadline = time.perf_counter() + seconds
    if mpi.rank:
        sending = mpi.isend(record, 0)
        _unfinished.append(sending)  # its buffer must outlive this call
        while not sending.Test() and time.perf_counter() < deadline:
            time.sleep(1e-3)
        return []
    records = {0: record}
    while len(records) < mpi.size and time.perf_counter() < deadline:
        for rank in set(range(mpi.size)) - set(records):
            if mpi.iprobe(rank):
                records[rank] = mpi.recv(source=rank)
        time.sleep(1e-3)
    silent = Record.of_nothing(mpi.size)
    return [records.get(rank, silent) for rank in range(mpi.size)]


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
