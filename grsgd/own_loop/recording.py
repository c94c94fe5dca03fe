"""A loop that grsgd did not write, as a run: `recording` counts it, and writes the run file at its end."""

import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import tomli_w

from grsgd.comm import tags
from grsgd.comm.backend import MpiBackend
from grsgd.comm.communicator import Communicator
from grsgd.comm.stop_signal import Stopped, StopSignal
from grsgd.comm.watchdog import within
from grsgd.errors import ConfigError, RunFileError, SetupError
from grsgd.job import launch
from grsgd.job import network_counters as interfaces
from grsgd.job.rescue import FAILURE_SECONDS, SIGNAL_SECONDS, Rescue, save
from grsgd.job.signals import REASONS, Interruption, as_exceptions
from grsgd.own_loop.distributed import DistributedOptimizer
from grsgd.own_loop.loop_record import Counters, LoopRecord, Progress, Row, divergence, run_of, thinned
from grsgd.own_loop.ranks import check_shards, is_main
from grsgd.own_loop.roll_call import END_OF_RECORDING
from grsgd.runs.ending import END_OF_LOOP, INTERRUPTED, end_attributes
from grsgd.runs.loggers import Logger
from grsgd.runs.metric import ACCURACY, Metric, attributes_of, check_metric, metric_in
from grsgd.runs.run_file import Run, check_writable
from grsgd.training import device as gpu
from grsgd.training.description import describe_algorithm

OURS = ("time", "step", "samples")
"""Columns of the curve that are not logged but measured."""
ROWS_IN_A_HURRY = 1000
"""How many of the rows that were logged are saved after a signal, at about the most, before there is time for all."""


@contextmanager
def recording(
    path: str | os.PathLike,
    optimizer: DistributedOptimizer,
    /,  # names that the configuration may have, too
    *,
    batch_size: int | None = None,
    loggers: Sequence[Logger] = (),
    metric: Metric = ACCURACY,
    **config,
) -> Iterator["LoopRun"]:
    """Record the training in the block, on all ranks, as the run file ``path``, as `grsgd train` writes one.

    All ranks must enter and leave the block, which takes from the model's first step to its last, best with
    ``optimizer.finish()``. The file is written when they have left it, by rank 0; also after an exception, which then
    goes on, and after Ctrl-C and SIGTERM as far as the launcher leaves time.

    Parameters
    ----------
    optimizer
        From `distribute`.
    batch_size
        Samples of a rank in a step. Without it they are counted: the first dimension of the first tensor that the
        model is given, in every forward pass in training.
    loggers
        Objects with ``log(step, values)`` and ``close()``, such as `grsgd.CsvLogger`, that get what this rank logs.
    config
        What else is to be kept as the configuration of the run, such as ``lr=0.1``. Reports use ``seed``, ``dataset``,
        ``model``, ``train_samples``, ``target_accuracy`` and ``label``, a name for the run.
    metric
        What models are tested by, if not by accuracy; ``target`` is the value to reach. `LoopRun.log` then takes it by
        its name.

    Raises
    ------
    ConfigError, RunFileError
        On all ranks, before the block, for what cannot be recorded or written; RunFileError on rank 0, after it, if
        the file could not be written in the end.
    """
    if not isinstance(optimizer, DistributedOptimizer):
        launch.explain_setup_errors()  # without distribute() nothing has
        what = f"recording(): the optimizer is a {type(optimizer).__name__}: give what distribute() returns"
        raise SetupError(what, is_printed=is_main())
    mpi, timeout = optimizer.transport.backend.mpi, optimizer.driver.timeout
    optimizer.meet("in recording()")
    with launch.collective_setup(mpi, timeout):
        if optimizer.finished:
            raise ConfigError("recording() after finish(): record the loop, with finish() at the end of the block")
        if batch_size is not None and (not isinstance(batch_size, int) or batch_size < 1):
            raise ConfigError(f"batch_size = {batch_size!r}: must be a whole number above 0")
        attributes = describe(optimizer, batch_size, metric, config)
        if mpi.rank == 0:
            check_writable(path, 2**17)
    check_shards(mpi, timeout)
    run = LoopRun(Path(path), optimizer, batch_size, loggers, attributes)
    with ExitStack() as stack:
        for logger in loggers:
            stack.callback(logger.close)
        stack.callback(run.close)
        try:
            with run.catching_signals():
                yield run
            run.completed()
        except BaseException as error:
            run.broken_off(error)
            raise


class LoopRun:
    """The run that `recording` makes of one rank's loop."""

    def __init__(self, path: Path, optimizer, batch_size: int | None, loggers: Sequence[Logger], attributes: dict):
        """Collective."""
        self.optimizer, self._batch_size, self._loggers = optimizer, batch_size, loggers
        self._metric = metric_in(attributes)
        self._driver, mpi = optimizer.driver, optimizer.transport.backend.mpi
        with within(self._driver.timeout, "recording(), to which all ranks must come"):
            self._backends = [MpiBackend(mpi, self._driver.timeout).dup() for _ in range(2)]
            attributes |= {"hosts": launch.hosts(mpi), "gpus": mpi.allgather(gpu.name(optimizer.replica.device))}
            attributes["commit"], processes = mpi.bcast(attributes["commit"]), launch.processes(mpi)
        self._mpi = self._backends[0].mpi
        self._stop_signal = optimizer.stop_signal = StopSignal(Communicator(self._backends[1]))
        self._rescue = LoopRescue(self._mpi, self._stop_signal, processes, path, self.record, attributes)
        self._rows: dict[int, Row] = {}
        self._progress = Progress()
        self._step_hook = optimizer.register_step_post_hook(self._note_step)
        self._unseen, self._unknown = optimizer.times.unseen_steps, optimizer.times.unknown_samples
        self._interface = interfaces.counters()
        launch.barrier(self._mpi, self._driver.timeout, self._driver.poll)
        self._start, self._began = Counters.of(optimizer), self._driver.clock()

    # ---- for the script

    @property
    def step(self) -> int:
        """How many steps this rank has taken in the block."""
        return self.optimizer.steps - self._start.measured["steps"]

    def log(self, **values: float | None):
        """Keep numbers as they are after the present step of this rank.

        ``loss`` becomes the curve's train_loss and ``accuracy``, a fraction of 1, its test_accuracy, or so the metric
        of the recording; every other name becomes a column of its own. Values are numbers or tensors with one element;
        None is left out. It may be called on one rank, on some or on all, at any steps, as often as wanted: no rank
        waits for another. When the file is written, a step's value is the mean over the ranks that have logged it at
        that step.

        Raises ValueError or TypeError for what cannot be a value.
        """
        step = self.step
        metric = self._metric
        numbers = {name: number(name, value, metric) for name, value in values.items() if value is not None}
        columns = {"loss": "train_loss", metric.name: metric.column}
        values = {columns.get(name, name): value for name, value in numbers.items()}
        if step in self._rows:
            values = self._rows[step].values | values
        # A new row: another thread may be reading the old one.
        self._rows[step] = Row(max(self.optimizer.moment - self._began, 0.0), self._samples(), values)
        for logger in self._loggers:
            logger.log(step, numbers)

    # ---- for `recording`

    @contextmanager
    def catching_signals(self):
        """While entered, Ctrl-C and SIGTERM raise KeyboardInterrupt; in a job, what was measured is saved at once.

        Signals that the script handles itself are left to it.
        """
        defaults = (signal.SIG_DFL, signal.default_int_handler)
        before = {number: signal.getsignal(number) for number in REASONS}
        in_main_thread = threading.current_thread() is threading.main_thread()
        if not in_main_thread or any(handler not in defaults for handler in before.values()):
            yield
            return
        try:
            with ExitStack() as stack:
                if self._mpi.size > 1:
                    stack.enter_context(Interruption(self._rescue.interrupted))
                stack.enter_context(as_exceptions())
                yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def completed(self):
        """Write the file, on rank 0, when all ranks have left the block."""
        record = self.record()
        self.optimizer.meet(END_OF_RECORDING)
        launch.barrier(self._mpi, self._driver.timeout, self._while_waiting)
        with within(self._driver.timeout, "collecting what all ranks have measured"):
            records = self._mpi.gather(record)
        if records is not None:
            reason = divergence(records) or END_OF_LOOP
            save(self._rescue.out, run_of(records, self._rescue.attributes | end_attributes(reason)))
        with within(self._driver.timeout, "freeing communicators"):
            for backend in self._backends:
                backend.free()

    def broken_off(self, error: BaseException):
        """Save what was measured. Does not return on a rank that has learnt of another's error."""
        if isinstance(error, RunFileError):  # of the file itself
            return
        self.optimizer.end_is_told = True
        if isinstance(error, Stopped) and not self._stop_signal.failed:
            self._rescue.end(str(error))
            raise KeyboardInterrupt(str(error)) from None
        if isinstance(error, KeyboardInterrupt):
            self._rescue.end(str(error) or INTERRUPTED)
        else:
            self._rescue.failed(error)

    def close(self):
        """Leave the optimizer as it was."""
        self._step_hook.remove()
        self.optimizer.stop_signal = None

    def record(self, in_a_hurry: bool = False) -> LoopRecord:
        """Return what this rank has measured so far; called in another thread after a signal, ``in_a_hurry``."""
        counted = Counters.of(self.optimizer).since(self._start)
        elapsed = self._driver.clock() - self._began
        measured = counted.measured | {"samples": self._samples()}
        measured["other_seconds"] = elapsed - sum(measured[f"{x}_seconds"] for x in ("compute", "communicate", "wait"))
        last = max(self.optimizer.moment - self._began, 0.0), self.step, self._samples()
        return LoopRecord(
            thinned(dict(self._rows), ROWS_IN_A_HURRY if in_a_hurry else len(self._rows)),
            [*self._progress.points, last],
            elapsed,
            measured,
            counted.rows(),
            counted.sent_once,
            dict(counted.staleness),
            self._warnings(),
            interfaces.counters() - self._interface,
        )

    def _samples(self) -> int:
        if self._batch_size is not None:
            return self.step * self._batch_size
        return self.optimizer.times.totals.samples - self._start.measured["samples"]

    def _note_step(self, *_):
        self._progress.note(self.optimizer.moment - self._began, self.step, self._samples())

    def _while_waiting(self):
        self._driver.poll()
        self._stop_signal.watch()

    def _warnings(self) -> list[str]:
        warnings, times = self.optimizer.algorithm.warnings(), self.optimizer.times
        if unseen := times.unseen_steps - self._unseen:
            warnings.append(
                f"{unseen} of {self.step} steps had no forward pass of the model in training mode: computing their "
                "gradients is counted in other_seconds"
            )
        if self._batch_size is None and (times.unknown_samples > self._unknown or unseen):
            warnings.append("not all samples were counted: give recording() the batch_size")
        return warnings


class LoopRescue(Rescue):
    """Saves what the ranks have measured when a loop that grsgd did not write ends before its time."""

    def __init__(self, mpi, stop_signal: StopSignal, processes, out: Path, measured, attributes: dict):
        super().__init__(mpi, stop_signal, processes, out, None, None, attributes)
        self._record = measured
        self.nothing = LoopRecord.of_nothing
        self._is_told = False

    def measured(self) -> LoopRecord:
        return self._record(in_a_hurry=not self._failing)

    def assembled(self, records: list[LoopRecord], attributes: dict) -> Run:
        return run_of(records, attributes)

    def tell(self, line: str, tag: int):
        """Say it once: after a signal what all ranks have is saved again, if the launcher leaves time."""
        if not self._is_told:
            super().tell(line, tag)
        self._is_told = True

    def interrupted(self, reason: str):
        """The launcher may kill this job any moment: save at once."""
        if not self._failing:
            lost = launch.ended_ranks(self.processes, self.mpi.rank)
            self.stop_signal.request = reason
            self._save(reason, SIGNAL_SECONDS, tags.RESCUE_AFTER_SIGNAL, lost)

    def end(self, reason: str):
        """Save when all ranks have been interrupted, as far as they come within seconds."""
        self._failing = True
        self._save(reason, FAILURE_SECONDS, tags.RESCUE_AFTER_FAILURE, set(self.stop_signal.comm.lost))

    def failed(self, error: BaseException):
        """Save, when this rank or another one has failed. Does not return where it was another one.

        The error itself is printed by whoever catches it, at last by `launch.abort_on_error`.
        """
        told = isinstance(error, Stopped)
        if not told and not self._told(launch.stagger(self.mpi)):
            self.stop_signal.fail(self._reason(error))
        self.end(self.stop_signal.reason)
        if told:
            launch.end_after_failure(self.mpi, last=False)  # the rank that has failed ends the job before


def number(name: str, value, metric: Metric) -> float:
    """Return a value that is logged as a float; raises ValueError or TypeError."""
    if name in OURS or not name or "/" in name:
        raise ValueError(f"log(): {name!r} cannot be a column: {', '.join(OURS)} are measured, and '/' means a group")
    try:
        value = float(value.item() if hasattr(value, "item") else value)
    except (TypeError, ValueError, RuntimeError):  # the last: a tensor with several elements
        raise TypeError(f"log(): {name} must be one number, not {type(value).__name__}") from None
    ours = {metric.name, *(f"{metric.column}{end}" for end in ("", "_min", "_max"))}
    if metric.unit == "%" and name in ours and (value < 0 or value > 1):
        raise ValueError(f"log(): {name} = {value:g}: must be a fraction from 0 to 1")
    return value


def describe(optimizer: DistributedOptimizer, batch_size: int | None, metric: Metric, config: dict) -> dict:
    """Return the root attributes of the run file, but for where the run takes place and how it ends."""
    algorithm, transport = optimizer.algorithm, optimizer.transport
    check_metric(metric)
    if metric.name in ("loss", *OURS):
        raise ConfigError(f"recording(): a metric cannot be called {metric.name!r}, for log() has that name already")
    given = plain(config if batch_size is None else {**config, "batch_size": batch_size})
    options = {"name": algorithm.name} | algorithm.options.model_dump(exclude_none=True)
    attributes = describe_algorithm(algorithm) | {
        "replication": 1,
        "seed": optimizer.seed,
        "model": type(optimizer.replica.model).__name__,
        "batch_size": batch_size,
        "config": tomli_w.dumps({"algorithm": options, "config": given}),
        "script": sys.argv[0] or None,
        "arguments": sys.argv[1:] or None,
        "clock": "wall",
        "mpi": launch.library(),
        "transfer": transport.name,
        "transfers": str(transport),
        "allreduce": optimizer.why_allreduce,
    }
    target = "target_accuracy" if metric == ACCURACY else "target"
    kinds = {"seed": int, "dataset": str, "model": str, "label": str, "train_samples": int, target: float}
    for name, kind in kinds.items():
        value = given.get(name)
        if value is None:
            continue
        if not isinstance(value, (int, float) if kind is float else kind) or isinstance(value, bool):
            raise ConfigError(f"recording(): {name} = {config[name]!r}: must be {kind.__name__}")
        attributes[name] = value
    return attributes | attributes_of(metric, attributes.get(target))


def plain(value):
    """Return a value of the configuration as TOML can hold it: numbers, text, lists and tables; else its text."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items() if each is not None}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value if each is not None]
    return value if isinstance(value, bool | int | float | str) else str(value)
