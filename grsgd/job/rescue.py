"""Saving of a run that ends early. The run file of such a run has the measurements up to the early end, and the reason
of this end."""

import sys
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

import h5py

from grsgd.comm import tags, watchdog
from grsgd.comm.backend import has_died
from grsgd.comm.communicator import LostRank
from grsgd.comm.driver import WaitTimeout
from grsgd.comm.elastic.membership import Membership
from grsgd.comm.stop_signal import Stopped, StopSignal, died
from grsgd.errors import RunFileError
from grsgd.files import places_instead
from grsgd.job import launch, places
from grsgd.job.handover import Handover
from grsgd.job.timeline_file import TimelineFile
from grsgd.mpi_environment import speaker
from grsgd.runs.ending import ASKED_TO_END, INTERRUPTED, TERMINATED, Ended, end_attributes, how_ended
from grsgd.runs.run_file import Run, load_run, save_run, was_replaced
from grsgd.runs.targets import stamp
from grsgd.text import hosts_in_words
from grsgd.training.record import RankMeasurements, assemble
from grsgd.training.saving import ModelFiles
from grsgd.training.trainer import ignore

SIGNAL_SECONDS = 0.1
"""Seconds that ranks wait for each other's measurements after a signal, because the launcher may kill the job soon."""
STOP_SECONDS = 0.04
"""Seconds that a rank waits for its own last model snapshot after a signal, because the launcher may kill the job
soon."""
FAILURE_SECONDS = 5.0
"""Seconds that ranks wait for each other's measurements after a failure. Ranks notice the failure of another rank only
after their present step."""


_unfinished: list = []
"""MPI requests of messages that may be under way. The requests are kept because a message's buffer must exist until the
message has arrived."""


class Rescue:
    """Collector of all ranks' measurements, which saves the run file when a run ends early.

    ``mpi`` is a communicator that carries only messages of this class. ``processes`` is the result of
    `grsgd.job.places.processes`, the host and PID of each rank. ``interface()`` returns the bytes counted by the host's
    network interfaces. ``attributes`` are the attributes of the run file, except the attributes about the run's end.
    ``handover`` gives the measurements to another process, which saves them if the job is killed. ``membership``
    records which process holds each rank if the run survives the death of processes, else None. ``timeline`` writes the
    timeline of all ranks; None if the run has no timeline. The run's time begins with the call of `begin`.
    """

    def __init__(
        self,
        mpi,
        stop_signal: StopSignal,
        processes,
        out: Path,
        trainer,
        interface: Callable,
        attributes: dict,
        handover: Handover | None = None,
        membership: Membership | None = None,
        timeline: TimelineFile | None = None,
    ):
        self.membership, self.timeline = membership, timeline
        self.handover, self.early_out = handover, path_of(out, INTERRUPTED)
        self.mpi, self.stop_signal, self.processes, self.out = mpi, stop_signal, processes, out
        self.trainer, self.interface, self.attributes = trainer, interface, attributes
        self.began = self._made = time.perf_counter()
        self._failing = self._has_said = False
        self._speaker = speaker()
        self._saving, self._is_superseded = threading.Lock(), False
        self._stamp_before = stamp(out)

    def begin(self):
        """Set the beginning of the run's time to the present time; to be called when training begins."""
        self.began += time.perf_counter() - self._made

    def supersede(self):
        """Save no run file from now on, because the job itself writes the run file. A late signal must not
        overwrite the run file."""
        with self._saving:
            self._is_superseded = True

    def measured(self) -> RankMeasurements:
        """Return the measurements that this rank has made so far."""
        return RankMeasurements.of(self.trainer, self.interface())

    def nothing(self) -> RankMeasurements:
        """Return an empty record, for a rank that has sent no measurements."""
        return RankMeasurements.of_nothing()

    def assembled(self, records: list[RankMeasurements], attributes: dict) -> Run:
        """Return the run that consists of all ranks' ``records`` and ``attributes``. The returned run has no
        accuracies, because computing accuracies takes long."""
        return assemble(records, attributes)

    def interrupted(self, reason: str, stop: bool = True):
        """Save the measurements without accuracies after a signal, because the launcher may kill this job soon. Ask all
        ranks to stop.

        If ``stop`` is False, the ranks are not asked to stop, because they end by themselves after a checkpoint.

        Launchers also send SIGTERM after a rank has died. If the dead rank was on this host, the run file gives this
        death as the reason of the end. If the run was completed without this rank, no run file is saved.
        """
        if self._failing or self._has_completed():
            return
        lost = sorted(places.ended_ranks(self.processes, self.mpi.rank))
        reason = died(lost) if lost else reason
        if stop:
            self.stop_signal.request = reason  # make the trainer stop, so that this thread can use the trainer's core
        is_lowest = not set(range(self.mpi.rank)) - set(lost)
        if self.handover is not None:
            self.trainer.on_step = ignore  # from now on the trainer no longer updates the progress line
            if is_lowest and watchdog.rank() is not None and self.handover.is_possible(self.mpi.rank, lost):
                # `grsgd run` itself prints the reason if Ctrl-C or SIGUSR1 ended the run
                lives_on = reason in (INTERRUPTED, ASKED_TO_END)
                why = "" if lives_on else f"stopped early: {reason}; "
                # print this line before all other work, because time is short
                self._speaker(f"{self.early_out}: {why}accuracies follow")
                self._has_said = True
            self.hand_over(reason, self._has_said, lost)
            deadline = time.perf_counter() + STOP_SECONDS
            # until the deadline the trainer can take a last snapshot
            while not self.trainer.has_ended and time.perf_counter() < deadline:
                time.sleep(1e-3)
            self.hand_over(reason, False)
            if self.timeline is not None:  # the timeline takes longest, so it is handed over last
                self.hand_over(reason, False, with_timeline=True)
        self._save(reason, SIGNAL_SECONDS, tags.RESCUE_AFTER_SIGNAL, set(lost) | self._gone())

    def _has_completed(self) -> bool:
        """Return whether other ranks have already saved this run as a completed run."""
        if stamp(self.out) == self._stamp_before:
            return False
        with suppress(OSError, KeyError, RuntimeError), h5py.File(self.out, "r", locking=False) as file:
            found = {name: file.attrs[name] for name in (*OF_RUN, "ended")}
            return is_same(found, self.attributes) and found["ended"] == Ended.COMPLETED
        return False

    def hand_over(
        self, reason: str, starts: bool, lost: Collection[int] = (), with_timeline: bool = False
    ) -> bool:
        """Hand this rank's measurements over to the evaluating process, which writes the run file if the launcher kills
        the job. Some launchers kill a job 0.2 s after a signal. If ``starts`` is True, this rank also starts the
        evaluating process. Return whether the evaluating process was started."""
        seconds = self.attributes.get("wall_seconds", time.perf_counter() - self.began)
        self.handover.note(reason, seconds, self.measured(), self.timeline.timeline.kept() if with_timeline else None)
        return starts and self.handover.start(self.mpi.rank, lost)

    def failed(self, error: Exception):
        """Print ``error``, report it to the other ranks, save the measurements, and end the job. The function does not
        return.

        If ``error`` is of the class Stopped, another rank has failed, and this rank only sends its measurements.
        """
        self._failing = True
        if not isinstance(error, Stopped):
            if not self._told(launch.stagger(self.mpi)):
                launch.report(self.mpi, error)
                self.stop_signal.fail(self._reason(error))
        saved = self._save(self.stop_signal.reason, FAILURE_SECONDS, tags.RESCUE_AFTER_FAILURE, self._gone())
        launch.end_after_failure(self.mpi, last=saved)

    def _gone(self) -> set[int]:
        """Return the numbers of the processes without measurements: dead processes and spares."""
        if self.membership is None:
            return set(self.stop_signal.comm.lost)
        return self.membership.dead | self.membership.spares

    def _told(self, seconds: float) -> bool:
        """Return whether another rank reports a failure within ``seconds``. Each rank waits for ``seconds`` before it
        prints an error. So only one rank prints the error if all ranks fail with the same error."""
        deadline = time.perf_counter() + seconds
        while not self.stop_signal.failed and time.perf_counter() < deadline:
            with suppress(Stopped, RuntimeError):
                self.stop_signal.watch_failures()
            time.sleep(1e-3)
        return self.stop_signal.failed

    def _reason(self, error: Exception) -> str:
        """Return the reason why the run ends after ``error``, as one line for the run file."""
        lost = self.stop_signal.comm.lost
        if has_died(error) or (isinstance(error, LostRank) and lost):
            return died(lost) if lost else "a rank was lost: its process has died"
        text = " ".join(str(error).split())
        if isinstance(error, WaitTimeout):
            return text
        if launch.explained(error):
            return f"{text} (said by rank {self.mpi.rank})"
        return f"{type(error).__name__}{': ' if text else ''}{text} on rank {self.mpi.rank}"

    def _save(self, reason: str, seconds: float, tag: int, gone: set[int]) -> bool:
        """Collect all ranks' measurements and save the run file on one rank. Return whether this rank has saved the run
        file."""
        with self._saving:
            if self._is_superseded:
                return False
            answers = self._collect(seconds, tag, gone)
            silent = places.other_hosts(self.processes, self.mpi.rank, set(range(self.mpi.size)) - answers.keys())
            if not self._saves(answers, gone, silent, tag):
                self._save_timeline(seconds, gone)
                return False
            records = self._by_rank(answers)
            if silent and reason == TERMINATED:
                reason = f"{reason}: no answer from {hosts_in_words(list(silent))}"
            attributes = self.attributes | end_attributes(reason) | {"wall_seconds": time.perf_counter() - self.began}
            try:
                path = save(self.out, self.assembled(records, attributes))
                if not (self._has_said and tag == tags.RESCUE_AFTER_SIGNAL):
                    self.tell(f"{path}: stopped early: {reason}", tag)
            except RunFileError as error:
                self.tell(str(error), tag)
            self._save_timeline(seconds, gone)
            return True

    def _save_timeline(self, seconds: float, gone: set[int]):
        """Save the timeline, if the run has one, on the lowest remaining rank. The run file is saved before the
        timeline."""
        if self.timeline is not None:
            left = set(range(self.mpi.size)) - gone
            self.timeline.rescue(self.mpi, min(left), left, seconds)

    def tell(self, line: str, tag: int):
        """Print ``line``, a text about the run file, on stderr."""
        (self._speaker if tag == tags.RESCUE_AFTER_SIGNAL else print_error)(line)

    def _collect(self, seconds: float, tag: int, gone: set[int]) -> dict[int, RankMeasurements | None]:
        """Return a dictionary from rank to answer: this rank's own record, and the answers that arrive within
        ``seconds``. Ranks above this rank answer with their records (measurements), and ranks below this rank answer
        with None."""
        mpi, mine = self.mpi, self.measured()
        answers: dict[int, RankMeasurements | None] = {mpi.rank: mine}
        sending = {}
        for rank in set(range(mpi.size)) - {mpi.rank} - gone:
            try:
                sending[rank] = mpi.isend(mine if rank < mpi.rank else None, rank, tag)
            except RuntimeError:
                gone.add(rank)
        _unfinished.extend(sending.values())
        deadline = time.perf_counter() + seconds
        while time.perf_counter() < deadline:
            gone |= places.ended_ranks(self.processes, mpi.rank) - answers.keys()
            waiting = set(range(mpi.size)) - answers.keys() - gone
            for rank in waiting:
                try:
                    if mpi.iprobe(rank, tag):
                        answers[rank] = mpi.recv(source=rank, tag=tag)
                except RuntimeError:
                    gone.add(rank)
            if not waiting and all(sent_to(sending, rank) for rank in answers.keys() - gone):
                break
            time.sleep(1e-3)
        return answers

    def _saves(self, answers: dict, gone: set[int], silent: dict[str, list[int]], tag: int) -> bool:
        """Return whether this rank must save the measurements. ``answers`` is a dictionary from a rank to the
        rank's answer.

        After a signal there is no time to find out whether a rank below this rank is alive. A lower rank counts as
        alive if its death is not known and a rank of its host has answered. If the hosts of all lower ranks are in
        ``silent`` (hosts without answers), this rank saves unless another rank has already saved the run.
        """
        if min(answers) < self.mpi.rank:
            return False
        lower = set(range(self.mpi.rank)) - gone
        if tag != tags.RESCUE_AFTER_SIGNAL or not lower:
            return True
        return lower <= {rank for ranks in silent.values() for rank in ranks} and not is_of_run(
            path_of(self.out, TERMINATED), self.attributes
        )

    def _by_rank(self, answers: dict[int, RankMeasurements | None]) -> list[RankMeasurements]:
        """Return the measurements of all ranks, with empty records for ranks that have not answered."""
        holders = range(self.mpi.size) if self.membership is None else self.membership.holders
        return [answers.get(holder) or self.nothing() for holder in holders]


OF_RUN = ("started", "config", "ranks")
"""Names of the attributes of a run file by which two runs are distinguished."""


def is_same(found: dict, attributes: dict) -> bool:
    """Return whether ``found`` and ``attributes``, attributes of two run files, belong to one run."""
    return all(found.get(name) == attributes.get(name) for name in OF_RUN)


def is_of_run(path: Path, attributes: dict) -> bool:
    """Return whether the run file ``path`` belongs to the run with ``attributes``, so that another rank has written
    this file."""
    try:
        return is_same(load_run(path).attributes, attributes)
    except RunFileError:
        return False


def print_error(line: str):
    print(f"\ngrsgd: {line}", file=sys.stderr, flush=True)


def sent_to(sending: dict, rank: int) -> bool:
    try:
        return rank not in sending or sending[rank].Test()
    except RuntimeError:  # sending failed, because the rank has died
        return True


def path_of(out: Path, reason: str) -> Path:
    """Return the path to which a run that ended for ``reason`` is saved. The path is ``out``, or contains
    ".interrupted" if the run ended early and ``out`` already has a completed run."""
    if how_ended(reason) is Ended.COMPLETED or not Path(out).exists():
        return Path(out)
    try:
        whole = load_run(out).attributes["ended"] == Ended.COMPLETED
    except RunFileError:
        whole = False
    return Path(out).with_suffix(f".interrupted{Path(out).suffix}") if whole else Path(out)


class NotSavedThere(RunFileError):
    """Error of a run that could not be saved to the path that the user gave. The error's message names the path where
    the run was saved."""


def save(out: Path, run: Run) -> Path:
    """Write the run file of ``run``, which may have ended early, and return the path of the file.

    Raises NotSavedThere if the file cannot be written to ``out``. The error's message names the path where the run was
    saved in place of ``out``.
    """
    path = path_of(out, run.attributes["reason"])
    if was_replaced(path) and not is_of_run(path, run.attributes):
        raise NotSavedThere(f"{path}: another run has written it since this one began; {save_elsewhere(path, run)}")
    try:
        save_run(path, run)
    except RunFileError as error:
        raise NotSavedThere(f"{error}; {save_elsewhere(path, run)}") from None
    return path


def save_elsewhere(path: Path, run: Run) -> str:
    """Save in another folder a run that cannot be written to ``path``. Return a sentence that names the new path."""
    problems = []
    for place in places_instead(path):
        try:
            save_run(place, run)
            return f"the run was saved as {place} instead"
        except RunFileError as error:
            problems.append(str(error))
    return f"nor could the run be saved elsewhere: {'; '.join(problems)}"


def save_with_models(out: Path, run: Run, models: ModelFiles, final):
    """Write the models of a run, including the ``final`` model, and then the run file, which names the models' files.

    Raises NotSavedThere, after the attempt to write all files, if a file could not be written to the path that the user
    gave.
    """
    saved = models.save(final, run.attributes["reason"])
    run.attributes |= saved.attributes
    if saved.warnings:
        run.attributes["warnings"] = [*(run.attributes["warnings"] or []), *saved.warnings]
    problems = list(saved.problems)
    try:
        save(out, run)
    except RunFileError as error:
        problems.append(str(error))
    if problems:
        raise NotSavedThere("; ".join(problems))
