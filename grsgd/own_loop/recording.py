"""The context manager `recording`, which measures a user's own training loop as a run and writes the run file."""

import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

from grsgd.comm.backend import MpiBackend
from grsgd.comm.communicator import Communicator
from grsgd.comm.stop_signal import Stopped, StopSignal
from grsgd.comm.watchdog import within
from grsgd.errors import ConfigError, RunFileError, SetupError
from grsgd.job import launch, places, restarts
from grsgd.job import network_counters as interfaces
from grsgd.job.rescue import save
from grsgd.job.signals import REASONS, Interruption, as_exceptions
from grsgd.own_loop import given, spares
from grsgd.own_loop.asked_checkpoints import EndedBySignal
from grsgd.own_loop.distributed_optimizer import DistributedOptimizer
from grsgd.own_loop.entrances import Entrances
from grsgd.own_loop.loop_record import (
    Counters,
    LoggedValues,
    LoopMeasurements,
    LoopProgress,
    divergence,
    run_of,
    thinned,
)
from grsgd.own_loop.loop_rescue import LoopRescue
from grsgd.own_loop.ranks import check_shards, is_main
from grsgd.own_loop.roll_call import END_OF_RECORDING
from grsgd.own_loop.saved_record import record_of
from grsgd.own_loop.survived_record import save_on_the_living
from grsgd.runs.ending import ASKED_TO_END, END_OF_LOOP, INTERRUPTED, end_attributes
from grsgd.runs.loggers import Logger, conclude, go_on
from grsgd.runs.metric import ACCURACY, Metric, metric_in
from grsgd.runs.run_file import Run, check_content, check_writable, load_run
from grsgd.training import device as gpu

ROWS_IN_A_HURRY = 1000
"""Approximate largest number of logged rows that are saved right after a signal, when the time may be too short to save
all rows."""


@contextmanager
def recording(
    path: str | os.PathLike,
    optimizer: DistributedOptimizer,
    /,  # ``config`` may also have entries called path or optimizer
    *,
    batch_size: int | None = None,
    loggers: Sequence[Logger] = (),
    metric: Metric = ACCURACY,
    **config,
) -> Iterator["LoopRun"]:
    """Record the training in the ``with`` block, on all ranks, in the run file ``path``.

    All ranks must enter and leave the block. The block should contain all steps of the training, and best also
    ``optimizer.finish()``. Rank 0 writes the file after all ranks have left the block. After Ctrl-C or SIGTERM, rank 0
    writes the file if the launcher leaves time. After an exception, rank 0 writes the file, and the exception is raised
    again.

    A training can go on from a ``state_dict()`` that was saved during an earlier recording. If the run files of the two
    recordings have the same name, the new file includes the earlier curve, counts and times.

    Parameters
    ----------
    optimizer
        The optimizer that `distribute` has returned.
    batch_size
        Number of samples per rank and step. If None, samples are counted in every forward pass in training, as the
        length of the first dimension of the model's first tensor.
    loggers
        Objects with ``log(step, values)`` and ``close()``, such as `grsgd.CsvLogger`, that get this rank's values.
    config
        Further values that the run file stores as the configuration of the run, such as ``lr=0.1``. Reports use
        ``seed``, ``dataset``, ``model``, ``train_samples``, ``target_accuracy`` and ``label`` (a name for the run).
    metric
        Metric by which models are tested; accuracy by default. `LoopRun.log` takes values of the metric by the metric's
        name. The entry ``target`` of ``config`` is the value to reach.

    Raises
    ------
    ConfigError, RunFileError
        Before the block, on all ranks: after `surviving`, for a value or file that cannot be written, or for a record
        of another rank or number of ranks. After the block, on rank 0: RunFileError if the file was not written.
    """
    if not isinstance(optimizer, DistributedOptimizer):
        launch.explain_setup_errors()  # distribute(), which was not called, would have made this call
        what = f"recording(): the optimizer is a {type(optimizer).__name__}: give what distribute() returns"
        raise SetupError(what, is_printed=is_main())
    run = begun(path, optimizer, batch_size, loggers, metric, config)
    with ExitStack() as stack:
        stack.callback(run.close_loggers)
        stack.callback(run.close)
        try:
            with run.catching_signals():
                yield run
            records = run.collected() if not optimizer.loop.survives else run.saved_on_the_living()
        except BaseException as error:
            run.broken_off(error)
            raise
        if records is not None:
            run.save(records)


def begun(path, optimizer, batch_size, loggers, metric: Metric, config: dict) -> "LoopRun":
    """Return the run of a new recording. All ranks must call this function at once. Raises the errors of
    `recording`."""
    mpi, timeout = optimizer.transport.backend.mpi, optimizer.driver.timeout
    optimizer.meet("in recording()")
    with launch.collective_setup(mpi, timeout):
        if optimizer.finished:
            raise ConfigError("recording() after finish(): record the loop, with finish() at the end of the block")
        if optimizer.loop.survives:
            raise ConfigError("recording() after surviving(): begin it first, around surviving() and finish()")
        path, loggers = given.path_of(path), given.list_of_loggers(loggers)
        batch_size = given.size_of_batch(batch_size)
        attributes = given.describe(optimizer, batch_size, metric, config)
        before = optimizer.recorded.before(path, mpi.rank, mpi.size)
        check_content(path, attributes)
        if mpi.rank == 0:
            check_writable(path, 2**17)
    check_shards(mpi, timeout)
    return LoopRun(path, optimizer, batch_size, loggers, attributes, before)


def about(before: LoopMeasurements, mpi) -> dict:
    """Return the attributes of a run file about ``before``, the earlier recording to be continued. All ranks must call
    this function."""
    samples = sum(mpi.allgather(int(before.measured["samples"])))
    return {"resumed": samples or None} | restarts.attributes(int(before.measured["steps"]), mpi.size)


class LoopRun:
    """One rank's part of a recording; the value of ``with recording(...) as run``."""

    def __init__(
        self,
        path: Path,
        optimizer,
        batch_size: int | None,
        loggers: Sequence[Logger],
        attributes: dict,
        before: LoopMeasurements,
    ):
        """Begin a run, on all ranks at once. ``before`` has this rank's measurements of the earlier recording that this
        run continues. For a new run, these measurements are all zero."""
        self.result: Run | None = None
        self.optimizer, self._batch_size, self.loggers = optimizer, batch_size, list(loggers)
        self._metric = metric_in(attributes)
        self._logged = given.Logged(self._metric)
        self._driver, mpi = optimizer.driver, optimizer.transport.backend.mpi
        with within(self._driver.timeout, "recording(), to which all ranks must come"):
            self._backends = [MpiBackend(mpi, self._driver.timeout).dup() for _ in range(2)]
            attributes |= {"hosts": places.hosts(mpi), "gpus": mpi.allgather(gpu.name(optimizer.replica.device))}
            attributes["processors"] = mpi.allgather(gpu.processor())
            attributes |= about(before, mpi)
            attributes |= mpi.bcast({name: attributes[name] for name in ("commit", "started")})
            processes = places.processes(mpi)
        self._mpi = self._backends[0].mpi
        job = spares.of_script()
        self._stop_signal = job.lives.signal if job else StopSignal(Communicator(self._backends[1]))
        optimizer.stops.signal, optimizer.recording = self._stop_signal, self
        self._rescue = LoopRescue(self._mpi, self._stop_signal, processes, path, self.record, attributes)
        if job and job.is_late:  # this process was a spare, and the other ranks save the measurements
            self._rescue.supersede()
        self._entrances = Entrances(optimizer.replica.model, optimizer.times, self._warn)
        self._step_hook = optimizer.register_step_post_hook(self._note_step)
        self._unseen, self._unknown = optimizer.times.unseen_steps, optimizer.times.unknown_samples
        self._without_batch = optimizer.times.steps_without_batch
        self._interface = interfaces.counters()
        launch.barrier(self._mpi, self._driver.timeout, self._driver.poll)
        self._go_on(before)
        optimizer.recorded.begin(path.name, self._mpi.rank, self._mpi.size, self.record)

    # ---- for the script

    @property
    def step(self) -> int:
        """Number of steps of this rank in the block, plus the steps of the earlier recording that this recording
        continues."""
        return self.optimizer.steps - self._start.measured["steps"]

    def log(self, **values: float | None):
        """Log numbers for the present step of this rank. The run file's curve has a column for each name.

        ``loss`` is the column train_loss, ``accuracy`` (a fraction from 0 to 1) is test_accuracy, and the recording's
        metric has its own column. Values are numbers or tensors with one element; a value None is left out. Any rank
        may call this method, at any step, any number of times, because no rank waits for another. In the file, the
        value of a step is the mean over the ranks that logged a value.

        Raises ValueError for a name that no run file can hold, and TypeError for a value that is not one number.
        """
        step, numbers = self.step, self._logged.numbers(values)
        columns = {"loss": "train_loss", self._metric.name: self._metric.column}
        values = {columns.get(name, name): value for name, value in numbers.items()}
        if step in self._rows:
            values = self._rows[step].values | values
        # The row is replaced, not changed, because a thread that saves may be reading the old row.
        self._rows[step] = LoggedValues(max(self.optimizer.moment - self._began, 0.0), self._samples(), values)
        self._each_logger(lambda logger: logger.log(step, numbers))

    def close_loggers(self):
        """Close all loggers, except loggers that have raised an error."""
        self._each_logger(lambda logger: logger.close())

    def _each_logger(self, call: Callable[[Logger], None]):
        for logger in list(self.loggers):
            try:
                call(logger)
            except RunFileError as error:  # the error of a logger must not end the run
                self.loggers.remove(logger)
                print(f"warning: {error}: nothing more is written there", file=sys.stderr, flush=True)

    # ---- for `recording`

    @contextmanager
    def catching_signals(self):
        """Raise KeyboardInterrupt in the block after Ctrl-C or SIGTERM. With several ranks, first save the
        measurements.

        If the script has set its own handler for Ctrl-C or SIGTERM, no handler is replaced.
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
                    stack.enter_context(Interruption(self._interrupted))
                stack.enter_context(as_exceptions())
                yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _interrupted(self, reason: str):
        """Save the measurements at once after a signal, unless the signal asks for a checkpoint with which the loop
        ends."""
        loop = self.optimizer.loop
        if not (reason == ASKED_TO_END and loop.survives and loop.signals.is_on):
            self._rescue.interrupted(reason)

    def collected(self) -> list[LoopMeasurements] | None:
        """Return, on rank 0, the records of all ranks, after all ranks have left the recording's ``with`` block. Return
        None on the other ranks."""
        record = self.record()
        self.optimizer.meet(END_OF_RECORDING)
        launch.barrier(self._mpi, self._driver.timeout, self._while_waiting)
        with within(self._driver.timeout, "collecting the measurements of all ranks"):
            records = self._mpi.gather(record)
        with within(self._driver.timeout, "freeing communicators"):
            for backend in self._backends:
                backend.free()
        return records

    def shared(self) -> dict:
        """Return the data of this recording that a process needs when it takes over a rank."""
        return {"attributes": self._rescue.attributes, "elapsed": self._driver.clock() - self._began}

    def take(self, attributes: dict, elapsed: float):
        """Continue the recording on a process that has taken a rank. The arguments are the result of another rank's
        `shared`."""
        self._rescue.attributes = attributes
        self._began = self._driver.clock() - elapsed

    def go_on_from(self, kept: dict | None):
        """Continue ``kept``, this rank's recording from a checkpoint, on all ranks at once. Begin with empty counts if
        ``kept`` is None, or is of another file or another number of ranks."""
        here, ranks = (self._rescue.out.name, self._mpi.rank), self._mpi.size
        is_same = kept is not None and (kept["file"], kept["rank"], kept["ranks"]) == (*here, ranks)
        before = record_of(kept) if is_same else LoopMeasurements.of_beginning()
        with within(self._driver.timeout, "telling all ranks how much was recorded"):
            self._rescue.attributes |= about(before, self._mpi)
        self._go_on(before)

    def _go_on(self, before: LoopMeasurements):
        """Continue from ``before``, the measurements of an earlier recording. For a new recording, ``before`` has only
        zeros."""
        self._before, self._rows = before, dict(before.rows)
        self._progress = LoopProgress(list(before.progress))
        for logger in self.loggers if before.rows else ():
            go_on(logger, before.measured["steps"])
        self._start = Counters.of(self.optimizer).since(Counters.of_record(before, self._mpi.size))
        self._began = self._driver.clock() - before.elapsed

    def saved_on_the_living(self):
        """Save the run file on the lowest living rank, and return None. Raises RuntimeError if `finish` was not
        called."""
        if not self.optimizer.finished:
            raise RuntimeError("recording() ended before finish(): with surviving(), call finish() in the block")
        save_on_the_living(self.optimizer.loop, self.record(), self.save)

    def save(self, records: list[LoopMeasurements], lost: list[int] | None = None, reason: str = END_OF_LOOP):
        """Write the run file; called on one rank. Raises RunFileError if the file could not be written to ``path``.

        ``lost`` are the ranks whose processes have died. ``reason`` is the reason of the loop's end.
        """
        out, diverged = self._rescue.out, divergence(records)
        reason = diverged or reason
        path = save(out, run_of(records, self._rescue.attributes | end_attributes(reason) | {"lost": lost}))
        if reason != END_OF_LOOP:
            what = "diverged" if diverged else "stopped early"
            earlier = f"; {out} is still the file of an earlier run" if path != out else ""
            print(f"grsgd: {path}: {what}: {reason}{earlier}", file=sys.stderr, flush=True)
        self.result = load_run(path)
        self._each_logger(lambda logger: conclude(logger, self.result))

    def broken_off(self, error: BaseException):
        """Save the measurements after ``error`` has ended the block. If the error came from another rank, raise that
        rank's error."""
        self.optimizer.broken_off()
        if isinstance(error, Stopped):  # another recording, around this one or within it, may have raised ``error``
            with suppress(Stopped):
                self._stop_signal.watch()
        if isinstance(error, Stopped) and not self._stop_signal.failed:
            self._rescue.end(str(error))
            raise KeyboardInterrupt(str(error)) from None
        if isinstance(error, EndedBySignal):
            save_on_the_living(self.optimizer.loop, self.record(), partial(self.save, reason=error.reason))
        elif isinstance(error, KeyboardInterrupt):
            self._rescue.end(self._rescue.cause(str(error) or INTERRUPTED))
        else:
            self._rescue.failed(error)

    def close(self):
        """Remove the hooks and the stop signal that this recording has given to the optimizer."""
        self.optimizer.recorded.end()
        self._step_hook.remove()
        self._entrances.close()
        self.optimizer.stops.signal = self.optimizer.recording = None

    def record(self, in_a_hurry: bool = False) -> LoopMeasurements:
        """Return this rank's measurements up to now. If ``in_a_hurry``, limit the number of logged rows. After a
        signal, another thread makes this call."""
        counted = Counters.of(self.optimizer).since(self._start)
        elapsed = self._driver.clock() - self._began
        measured = counted.measured | {"samples": self._samples()}
        measured["other_seconds"] = elapsed - sum(measured[f"{x}_seconds"] for x in ("compute", "communicate", "wait"))
        last = max(self.optimizer.moment - self._began, 0.0), self.step, self._samples()
        return LoopMeasurements(
            thinned(dict(self._rows), ROWS_IN_A_HURRY if in_a_hurry else len(self._rows)),
            [*self._progress.points, last],
            elapsed,
            measured,
            counted.rows(),
            counted.sent_once,
            dict(counted.staleness),
            self._warnings(),
            interfaces.counters() - self._interface + self._before.interface,
            counted.left_out,
        )

    def _samples(self) -> int:
        if self._batch_size is not None:
            return (self.step - self.optimizer.times.steps_without_batch + self._without_batch) * self._batch_size
        return self.optimizer.times.totals.samples - self._start.measured["samples"]

    def _note_step(self, *_):
        self._entrances.step_ended()
        self._progress.note(self.optimizer.moment - self._began, self.step, self._samples())

    def _while_waiting(self):
        self._driver.poll()
        self._stop_signal.watch()

    def _warn(self, what: str):
        """Warn the user while the script runs. Only rank 0 prints the warning, because all ranks find the same
        faults."""
        if self._batch_size is None and self._mpi.rank == 0:
            warnings.warn(f"recording(): {what}", RuntimeWarning, stacklevel=2)

    def _warnings(self) -> list[str]:
        optimizer, times = self.optimizer, self.optimizer.times
        found = [*self._before.warnings, *optimizer.algorithm.warnings(), *optimizer.equal_models.warnings]
        found += optimizer.loop.warnings()
        if unseen := times.unseen_steps - self._unseen:
            found.append(
                f"{unseen} of {self.step} steps had no forward pass of the model in training mode: computing their "
                "gradients is counted in other_seconds"
            )
        if self._batch_size is None:
            found += self._entrances.warnings()
            if times.unknown_samples > self._unknown or self._entrances.uncounted:
                found.append("not all samples were counted: give recording() the batch_size")
        return list(dict.fromkeys(found))
