"""Saving of the run file when a user's own loop is recorded and ends early."""

import pickle
import threading
import time
from contextlib import suppress
from pathlib import Path

from grsgd.comm import tags
from grsgd.comm.stop_signal import Stopped, StopSignal, died
from grsgd.job import launch, places
from grsgd.job.rescue import FAILURE_SECONDS, SIGNAL_SECONDS, Rescue
from grsgd.own_loop.loop_record import LoopMeasurements, run_of
from grsgd.runs.run_file import Run


class LoopRescue(Rescue):
    """Saving of the ranks' measurements when a user's own loop ends early."""

    def __init__(self, mpi, stop_signal: StopSignal, processes, out: Path, measured, attributes: dict):
        super().__init__(mpi, stop_signal, processes, out, None, None, attributes)
        self._record = measured
        self.nothing = LoopMeasurements.of_nothing
        self._is_told = False
        self._knowing = threading.Lock()
        self._known: str | None = None

    def measured(self) -> LoopMeasurements:
        return self._record(in_a_hurry=not self._failing)

    def assembled(self, records: list[LoopMeasurements], attributes: dict) -> Run:
        return run_of(records, attributes)

    def tell(self, line: str, tag: int):
        """Print ``line``, but only at the first call. If the launcher leaves time after a signal, the ranks'
        measurements are saved a second time, without a second line."""
        if not self._is_told:
            super().tell(line, tag)
        self._is_told = True

    def interrupted(self, reason: str):
        """Save the measurements at once after a signal, because the launcher may kill this job at any moment."""
        if not self._failing:
            self.stop_signal.request = reason = self.cause(reason)
            lost = places.ended_ranks(self.processes, self.mpi.rank)
            self._save(reason, SIGNAL_SECONDS, tags.RESCUE_AFTER_SIGNAL, lost)

    def cause(self, reason: str) -> str:
        """Return why the loop ends after a signal: ``reason``, or the death of a rank. After a death, launchers send
        SIGTERM to the other ranks.

        Only deaths of ranks on this host are noticed, and only at the first call. At later calls, other ranks may have
        ended because of the signal.
        """
        with self._knowing:
            if self._known is None:
                lost = sorted(places.ended_ranks(self.processes, self.mpi.rank))
                self._known = died(lost) if lost else reason
            return self._known

    def end(self, reason: str):
        """Save the measurements of the ranks that answer within `FAILURE_SECONDS`, after all ranks have been
        interrupted."""
        self._failing = True
        self._save(reason, FAILURE_SECONDS, tags.RESCUE_AFTER_FAILURE, set(self.stop_signal.comm.lost))

    def failed(self, error: BaseException):
        """Save the measurements after this rank or another rank has failed. If the error came from another rank, raise
        that rank's error.

        So all ranks leave the recording's ``with`` block with the same error. Scripts can catch the error, for example
        in searches that prune trials (trainings with one set of hyperparameters). If the script does not catch the
        error, `launch.abort_on_error` prints the error on the rank of its origin.
        """
        told = isinstance(error, Stopped)
        if not told and not self._told(launch.stagger(self.mpi)):
            self.stop_signal.fail(self._reason(error))
            self._pass_on(error)
        self.end(self.stop_signal.reason)
        if told:
            raise self._error_of_another() from None

    def _pass_on(self, error: BaseException):
        """Send ``error`` to all other ranks, which may still be in a step when the error arrives."""
        try:
            content = pickle.dumps(error)
        except Exception:  # some classes of errors cannot be pickled
            content = b""
        for rank in set(range(self.mpi.size)) - {self.mpi.rank, *self.stop_signal.comm.lost}:
            with suppress(RuntimeError):  # the receiving rank has died
                _under_way.append(self.mpi.isend(content, rank, tags.ERROR_OF_ANOTHER))

    def _error_of_another(self) -> BaseException:
        """Return the error of the rank that has failed. If the error does not arrive, return a RuntimeError with the
        same text."""
        deadline = time.perf_counter() + FAILURE_SECONDS
        error = RuntimeError(self.stop_signal.reason)
        while time.perf_counter() < deadline:
            with suppress(Exception):  # the error cannot be unpickled, or the sending rank has died
                if self.mpi.iprobe(tag=tags.ERROR_OF_ANOTHER):
                    content = self.mpi.recv(tag=tags.ERROR_OF_ANOTHER)
                    error = pickle.loads(content) if content else error
                    break
            time.sleep(1e-3)
        launch.note_as_told(error)
        return error


_under_way: list = []
"""Requests of messages with errors. The requests are kept here because the messages' buffers must outlive the call that
sends the messages."""
