"""Progress of a run, measured in samples that all ranks together have processed, and the decision about the end of the
run.

Learning-rate schedules, snapshots and the end of a run depend on the number of samples of all ranks. So an epoch means
the same for synchronous and asynchronous algorithms. Ranks in lockstep, which all take the same steps, compute the
number of samples of all ranks without reports. Ranks that are not in lockstep report their numbers of samples to rank 0
or, in a run that survives deaths, to each other. No rank waits for the sum of the reports.
"""

import math
from collections.abc import Sequence

import numpy as np

from grsgd.algorithms.context import RankContext
from grsgd.comm import tags
from grsgd.comm.allreduce import broadcast
from grsgd.comm.communicator import ANY_RANK
from grsgd.comm.elastic.membership import Tolerant
from grsgd.comm.pollables import Signal
from grsgd.config import Config
from grsgd.training.marks import Marks

RESOLUTION = 1000
"""Approximate number of reports that a rank sends in a run whose length in samples is known."""


class Progress:
    """Progress of the run as one rank knows it. The run ends after ``end`` samples, or ``seconds`` seconds after its
    start.

    The base class `Progress` sends no messages. Algorithms with parameter servers, which know the progress themselves,
    use this base class, and call `note_steps`.
    """

    remembers: tuple[str, ...] = ("samples", "own")
    """Names of the attributes of this object that a checkpoint stores."""

    def __init__(
        self,
        comm,
        driver,
        end: int | None,
        seconds: float | None,
        snapshots: int,
        samples_per_step: int = 1,
        early_marks: int = 0,
    ):
        self.comm = comm
        self.driver = driver
        self.end = end
        self.seconds = seconds
        self.samples_per_step = samples_per_step
        self.samples = 0
        self.ahead = 0
        """Number of samples counted in ``samples`` that other ranks are expected to have processed, but have not
        reported."""
        self.own = 0
        self.began = 0.0
        self.elapsed_before = 0.0
        """Seconds for which the run had lasted before this process started or resumed it."""
        self.marks = Marks(end if end is not None else seconds, snapshots, early_marks, in_seconds=end is None)

    def start(self):
        """Start the measurement of the run's time."""
        self.began = self.driver.clock() - self.elapsed_before

    def begin(self):
        """Start the activities in the background by which ranks exchange their progress. The trainer calls this method
        before the first step, and after each rest (pause of all ranks for a checkpoint)."""

    def state(self, members: Sequence[int]) -> dict[str, int]:
        """Return a dict with the values of the progress that a checkpoint stores, for `restore`. ``members`` are the
        ranks that have a process."""
        return {name: getattr(self, name) for name in self.remembers}

    def skip(self, steps: int, batch: int, ranks: int):
        """Set the progress to the value after ``steps`` steps of each of ``ranks`` ranks, with batches of ``batch``
        samples."""
        self.own = steps * batch
        self.samples = self.own * ranks

    def restore(self, state: dict[str, int]):
        """Set the progress to ``state``, which `state` has returned in another process."""
        for name in self.remembers:
            setattr(self, name, state[name])

    steps = 0
    """Number of steps that each rank has taken if all ranks take the same number of steps, else 0."""

    @property
    def batches(self) -> int:
        """Number of batches that this rank has used, including batches of earlier processes of this rank."""
        return self.own // self.samples_per_step

    counts = np.zeros(0, np.int64)
    """Number of samples that each rank has processed, int64 [ranks]; empty if only the sum is known."""

    def go_on(self, comm, furthest) -> int:
        """Continue with the ranks of ``comm`` from ``furthest``, the largest progress of any rank
        (`grsgd.training.regroup.HowFar`). Return the number of batches that this rank has used so far. If a new process
        has taken the rank, the process continues with the batch after the last used batch."""
        raise NotImplementedError

    def advance(self, samples: int):
        """Record that this rank has processed ``samples`` more samples."""
        self.own += samples

    @property
    def trained(self) -> int:
        """Number of samples that all ranks together have certainly processed. The run file records the value of
        ``trained`` as the number of samples."""
        return self.samples - self.ahead

    def note_steps(self, steps: int, ahead: int = 0):
        """Record that all ranks together have taken ``steps`` steps. The last ``ahead`` of the ``steps`` steps are only
        expected, and no rank has reported them yet."""
        self.samples, self.ahead = steps * self.samples_per_step, ahead * self.samples_per_step

    def elapsed(self) -> float:
        return self.driver.clock() - self.began

    def share(self) -> float:
        """Return the completed fraction of the run, from 0 at the start to 1 at the end."""
        return self.samples / self.end if self.end is not None else self.elapsed() / self.seconds

    def decide(self):
        """Return (whether the run has ended, the number of marks passed since the last call). Marks are the points at
        which snapshots are taken. This method is a generator (schedule) that the rank's driver (event loop) runs before
        each step."""
        if self.end is not None:
            return self.samples >= self.end, self.marks.due(self.samples)
        elapsed = self.elapsed()
        return elapsed >= self.seconds, self.marks.due(elapsed)
        # The unreachable `yield` below makes this method a generator, like `decide` in the subclasses.
        yield

    def finish(self):
        """Make ``samples``, the number of samples of all ranks, exact. This method is a generator (schedule) that the
        rank's driver (event loop) runs after the last step, and before a rest (pause of all ranks)."""
        yield from ()


class Lockstep(Progress):
    """Progress of ranks that have all taken the same number of steps at each call of `decide`."""

    remembers = ("samples", "own", "step", "meeting")

    def __init__(self, *args):
        super().__init__(*args)
        self.step = 0
        self.absent = 0
        """Number of ranks that have no gradient in the present step, because their processes joined during this
        step."""
        self.meeting = 1  # step before which rank 0 next decides whether train.seconds are over

    def advance(self, samples):
        super().advance(samples)
        self.samples += samples * (self.comm.size - self.absent)
        self.step += 1
        self.absent = 0

    @property
    def steps(self) -> int:
        return self.step

    batches = steps

    def go_on(self, comm, furthest) -> int:
        self.comm, self.step, self.samples = comm, int(furthest.steps), int(furthest.samples)
        self.marks.passed = int(furthest.marks)
        self.meeting = self.step
        return self.step

    def skip(self, steps, batch, ranks):
        super().skip(steps, batch, ranks)
        self.step = steps

    def decide(self):
        if self.end is not None:
            return (yield from super().decide())
        if self.step < self.meeting:
            return False, 0
        # The ranks' clocks differ, so rank 0 decides for all ranks whether the run ends.
        # Rank 0 also chooses the step of its next decision, half-way to the end of the run or to the next mark.
        # So rank 0 decides rarely at first, and the run ends at most two steps late.
        ended, due = yield from super().decide()
        left = min(self.seconds, self.marks.next) - self.elapsed()
        steps_left = left * self.step / max(self.elapsed(), 1e-9)
        message = np.array([ended, due, self.step + max(1, int(steps_left / 2))], np.int64)
        yield from broadcast(self.comm, message, tags.PROGRESS_TOTAL)
        self.meeting = int(message[2])
        return bool(message[0]), int(message[1])


class FreeRunning(Progress):
    """Progress of ranks that report the numbers of their own samples to rank 0, which replies with the sum over all
    ranks."""

    remembers = ("samples", "own", "reported")

    def __init__(self, *args):
        super().__init__(*args)
        self.reported = 0
        self.step = max(1, self.end // (RESOLUTION * self.comm.size)) if self.end is not None else 1
        self.ended = Signal("the end of this rank's own training")
        self.news = Signal("samples to report")

    def restore(self, state):
        super().restore({"reported": state["own"]} | state)  # checkpoints of `Counted` lack "reported"

    def begin(self):
        self.ended.clear()
        self.news.clear()
        if self.comm.size > 1:
            self.activity = self.driver.start(self._add_up() if self.comm.rank == 0 else self._report())

    def advance(self, samples):
        super().advance(samples)
        if self.comm.rank == 0:
            self.samples += samples
        elif self.own - self.reported >= self.step:
            self.news.set()

    def skip(self, steps, batch, ranks):
        super().skip(steps, batch, ranks)
        self.reported = self.own

    def finish(self):
        if self.comm.size > 1:
            self.ended.set()
            self.news.set()
            yield self.activity

    def _report(self):
        """Report the number of this rank's samples to rank 0. Every rank except rank 0 runs this schedule (generator)
        in the background."""
        total = np.zeros(1, np.int64)
        while True:
            yield self.news
            self.news.clear()
            last, own = self.ended.Test(), self.own
            report = np.array([self.comm.rank, own - self.reported, last], np.int64)
            self.reported = own
            yield self.comm.Isend(report, 0, tags.PROGRESS_REPORT), self.comm.Irecv(total, 0, tags.PROGRESS_TOTAL)
            self.samples = int(total[0])
            if last:
                return

    def _add_up(self):
        """Add up the numbers of samples that ranks report, and reply to each report with the sum. Rank 0 runs this
        schedule (generator) in the background. Rank 0 sends its last reply to each rank after the last report of all
        ranks, so that the last sum is exact."""
        report = np.zeros(3, np.int64)
        training = self.comm.size - 1
        answers = []
        while training:
            yield self.comm.Irecv(report, ANY_RANK, tags.PROGRESS_REPORT)
            rank, samples, last = report.tolist()
            self.samples += samples
            training -= last
            if not last:
                answers = [answer for answer in answers if not answer.Test()]
                answers.append(self.comm.Isend(np.array([self.samples], np.int64), rank, tags.PROGRESS_TOTAL))
        yield self.ended
        total = np.array([self.samples], np.int64)
        yield answers + [self.comm.Isend(total, rank, tags.PROGRESS_TOTAL) for rank in range(1, self.comm.size)]


class Counted(Progress):
    """Progress of ranks that each store the last known number of samples of every rank. Each rank sends its stored
    numbers to the other ranks in turn. So the samples of a rank still count after its process has died. If another
    process takes the rank, only the samples since the rank's last report are missing.
    """

    def __init__(self, *args):
        super().__init__(*args)
        self.counts = np.zeros(self.comm.size, np.int64)
        self.reported = self.reports = 0
        self.step = max(1, self.end // (RESOLUTION * self.comm.size)) if self.end is not None else 1
        self._sending: list = []
        self._report = np.zeros(self.comm.size, np.int64)
        self._receiving = self.activity = None

    def begin(self):
        """Start to receive other ranks' reports of progress in the background, unless this rank already receives
        them."""
        if self.activity is None:
            self.activity = self.driver.start(self._learn())

    def go_on(self, comm, furthest):
        """Continue with the numbers of samples in ``furthest``, which include samples of ranks that have died.

        After this call, call `begin` again, because the driver has stopped all schedules in the background.
        """
        self.activity = None
        self.take(furthest.counts)
        self.marks.passed = max(self.marks.passed, int(furthest.marks))
        return self.batches

    def advance(self, samples):
        super().advance(samples)
        rank, size = self.comm.rank, self.comm.size
        self.counts[rank] += samples
        self.samples = int(self.counts.sum())
        if size > 1 and self.own - self.reported >= self.step:
            self.reported = self.own
            self._tell([(rank + 1 + self.reports % (size - 1)) % size])
            self.reports += 1

    @property
    def batches(self) -> int:
        return int(self.counts[self.comm.rank]) // self.samples_per_step

    def state(self, members):
        counts = self.counts[list(members)]
        counts[0] += self.counts.sum() - counts.sum()  # the first rank's count includes ranks without a process
        return super().state(members) | {f"count_{rank}": int(count) for rank, count in enumerate(counts)}

    def restore(self, state):
        super().restore(state)
        # Checkpoints of `FreeRunning` lack the numbers of samples of other ranks.
        # If the state lacks other ranks' numbers, each rank reports its own number of samples after its next step.
        own = {f"count_{self.comm.rank}": self.own}
        self.take([(own | state).get(f"count_{rank}", 0) for rank in range(self.comm.size)])

    def skip(self, steps, batch, ranks):
        super().skip(steps, batch, ranks)
        self.counts[:] = self.own

    def take(self, counts: np.ndarray):
        """Set the number of samples of each rank to ``counts``, the numbers that another rank knows."""
        self.counts[:] = counts
        self.samples = int(self.counts.sum())

    def finish(self):
        if self.end is not None:  # other ranks end the run only when they know this rank's last samples
            self._tell([rank for rank in range(self.comm.size) if rank != self.comm.rank])
        yield from ()

    def _tell(self, ranks: list[int]):
        self._sending = [sending for sending in self._sending if not sending.Test()]
        for rank in set(ranks) - set(self.comm.lost):
            report = self.counts.copy()
            self._sending.append(Tolerant(self.comm.Isend(report, rank, tags.PROGRESS_REPORT), report))

    def _learn(self):
        """Receive other ranks' reports of progress in an endless loop. This method is a generator (schedule) that the
        rank's driver (event loop) runs in the background. If this schedule is started again, it waits for the receive
        operation that was posted before the new start."""
        others = np.arange(self.comm.size) != self.comm.rank  # only the trainer counts this rank's samples
        while True:
            self._receiving = self._receiving or self.comm.Irecv(self._report, ANY_RANK, tags.PROGRESS_REPORT)
            yield self._receiving
            self._receiving = None
            self.counts[others] = np.maximum(self.counts, self._report)[others]
            self.samples = int(self.counts.sum())


def make_progress(
    config: Config, samples: int, workers: int, context: RankContext, is_known: bool, early_marks: int = 0
) -> Progress:
    """Return a new object of the subclass of `Progress` that fits the algorithm of ``config``.

    ``samples`` is the number of training samples. ``workers`` is the number of ranks that train. ``is_known`` says
    whether the algorithm reports the progress itself. ``early_marks`` is the argument ``early`` of `Marks`.
    """
    kind = Progress if is_known else Lockstep if config.traits.synchronous else FreeRunning
    if context.membership is not None and kind is FreeRunning:
        kind = Counted
    train, batch_size = config.train, config.data.batch_size
    end = train.samples
    if train.epochs is not None:
        end = math.ceil(train.epochs * samples)
    elif train.steps is not None:
        end = train.steps * workers * batch_size
    comm, driver = context.uncounted_comm, context.driver
    return kind(comm, driver, end, train.seconds, train.snapshots, batch_size, early_marks)
