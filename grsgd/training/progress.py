"""Progress of a run, in samples summed over all ranks, and its end.

Learning-rate schedules, snapshots and the end of a run depend on the number of samples of all ranks, so that an epoch
means the same for synchronous and asynchronous algorithms. Ranks in lockstep, which all take the same steps, compute
this number. Other ranks report their samples to rank 0, which adds them up; no rank waits for the sum.
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
    """One rank's view of the run's progress. The run ends at ``end`` samples, or ``seconds`` after its start.

    This class sends no messages. It is for algorithms that know the progress themselves, and call `note_steps`.
    """

    remembers: tuple[str, ...] = ("samples", "own")
    """Attributes that a checkpoint keeps."""

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
        """Number of samples in ``samples`` that other ranks are only expected to have processed by now."""
        self.own = 0
        self.began = 0.0
        self.elapsed_before = 0.0
        """Seconds that the run had taken before this process began or resumed it."""
        self.marks = Marks(end if end is not None else seconds, snapshots, early_marks, in_seconds=end is None)

    def start(self):
        """Begin to measure time."""
        self.began = self.driver.clock() - self.elapsed_before

    def begin(self):
        """Begin background activities; called before the first step, and again after each rest."""

    def state(self, members: Sequence[int]) -> dict[str, int]:
        """Return the state that `restore` needs, in addition to the marks and the time. ``members`` are the ranks that
        have a process."""
        return {name: getattr(self, name) for name in self.remembers}

    def skip(self, steps: int, batch: int, ranks: int):
        """Set the progress as after ``steps`` steps of each of ``ranks`` ranks, with batches of ``batch`` samples."""
        self.own = steps * batch
        self.samples = self.own * ranks

    def restore(self, state: dict[str, int]):
        """Set the state to the result of `state` in another process."""
        for name in self.remembers:
            setattr(self, name, state[name])

    steps = 0
    """Number of steps that each rank has taken, if all ranks take the same number; else 0."""

    @property
    def batches(self) -> int:
        """Number of batches that this rank has used, also by earlier processes that held the rank."""
        return self.own // self.samples_per_step

    counts = np.zeros(0, np.int64)
    """Number of samples of each rank, if ranks are counted separately."""

    def go_on(self, comm, furthest) -> int:
        """Go on with the ranks of ``comm`` from the progress ``furthest``, the largest of any rank
        (`grsgd.training.regroup.HowFar`). Return the number of batches that this rank has used, with which a new
        process of the rank goes on."""
        raise NotImplementedError

    def advance(self, samples: int):
        """Record that this rank has processed ``samples`` more samples."""
        self.own += samples

    @property
    def trained(self) -> int:
        """Number of samples that have certainly been processed. The run file has this number."""
        return self.samples - self.ahead

    def note_steps(self, steps: int, ahead: int = 0):
        """Record that all ranks together have taken ``steps`` steps. The last ``ahead`` of these steps are expected,
        and not reported yet."""
        self.samples, self.ahead = steps * self.samples_per_step, ahead * self.samples_per_step

    def elapsed(self) -> float:
        return self.driver.clock() - self.began

    def share(self) -> float:
        """Return the share of the run that is completed; 1 at the run's end."""
        return self.samples / self.end if self.end is not None else self.elapsed() / self.seconds

    def decide(self):
        """Return (whether the run has ended, the number of marks passed since the last call). This method is a schedule
        (a generator that yields the objects it waits for), run before each step."""
        if self.end is not None:
            return self.samples >= self.end, self.marks.due(self.samples)
        elapsed = self.elapsed()
        return elapsed >= self.seconds, self.marks.due(elapsed)
        # the next line is never reached; it makes this method a generator, as `decide` is in the subclasses
        yield

    def finish(self):
        """Make the number ``samples`` exact. This method is a schedule, run after the last step and before a rest."""
        yield from ()


class Lockstep(Progress):
    """Progress of ranks that have all taken the same number of steps at each call of `decide`."""

    remembers = ("samples", "own", "step", "meeting")

    def __init__(self, *args):
        super().__init__(*args)
        self.step = 0
        self.absent = 0
        """Number of ranks without a gradient in the present step, because their processes joined during the step."""
        self.meeting = 1  # step of rank 0's next decision on the end, with train.seconds

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
        # Clocks differ, so rank 0 decides for all ranks. It also chooses the step of the next decision, half-way to the
        # end or to the next mark. So decisions are rare at first, and the end comes at most two steps late.
        ended, due = yield from super().decide()
        left = min(self.seconds, self.marks.next) - self.elapsed()
        steps_left = left * self.step / max(self.elapsed(), 1e-9)
        message = np.array([ended, due, self.step + max(1, int(steps_left / 2))], np.int64)
        yield from broadcast(self.comm, message, tags.PROGRESS_TOTAL)
        self.meeting = int(message[2])
        return bool(message[0]), int(message[1])


class FreeRunning(Progress):
    """Progress of ranks that count their own samples and report the numbers to rank 0. Rank 0 answers with the sum."""

    remembers = ("samples", "own", "reported")

    def __init__(self, *args):
        super().__init__(*args)
        self.reported = 0
        self.step = max(1, self.end // (RESOLUTION * self.comm.size)) if self.end is not None else 1
        self.ended = Signal("the end of this rank's own training")
        self.news = Signal("samples to report")

    def restore(self, state):
        super().restore({"reported": state["own"]} | state)  # a run with spares (`Counted`) has no such number

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
        """Report this rank's samples to rank 0; a schedule, run in the background of every rank except rank 0."""
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
        """Add up the ranks' reports, and answer with the sum; a schedule, run in the background of rank 0. The last
        answer to each rank is sent after the last report of all ranks, so the last answer is exact."""
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
    """Progress of ranks that each keep the last known number of samples of every rank, and report these numbers to one
    rank after the other. So the samples of a rank still count if the rank dies. If another process takes the rank, only
    the samples since the rank's last report are missing.
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
        """Begin to receive reports, unless this rank receives them already."""
        if self.activity is None:
            self.activity = self.driver.start(self._learn())

    def go_on(self, comm, furthest):
        """Go on with the counts of samples of all earlier ranks, including ranks that are gone.

        The driver has abandoned its schedules, so call `begin` again.
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
        counts[0] += self.counts.sum() - counts.sum()  # samples of ranks that have no process any more
        return super().state(members) | {f"count_{rank}": int(count) for rank, count in enumerate(counts)}

    def restore(self, state):
        super().restore(state)
        # A run without spares (`FreeRunning`) has kept no counts: each rank reports its own count after its next step.
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
        if self.end is not None:  # other ranks may wait for these samples
            self._tell([rank for rank in range(self.comm.size) if rank != self.comm.rank])
        yield from ()

    def _tell(self, ranks: list[int]):
        self._sending = [sending for sending in self._sending if not sending.Test()]
        for rank in set(ranks) - set(self.comm.lost):
            report = self.counts.copy()
            self._sending.append(Tolerant(self.comm.Isend(report, rank, tags.PROGRESS_REPORT), report))

    def _learn(self):
        """Receive reports of progress without end; a schedule, run in the background. If this method is started again,
        it waits for the receive that is already posted."""
        others = np.arange(self.comm.size) != self.comm.rank  # only the trainer changes this rank's own count
        while True:
            self._receiving = self._receiving or self.comm.Irecv(self._report, ANY_RANK, tags.PROGRESS_REPORT)
            yield self._receiving
            self._receiving = None
            self.counts[others] = np.maximum(self.counts, self._report)[others]
            self.samples = int(self.counts.sum())


def make_progress(
    config: Config, samples: int, workers: int, context: RankContext, is_known: bool, early_marks: int = 0
) -> Progress:
    """Return a rank's progress.

    ``samples`` is the number of training samples, ``workers`` the number of ranks that train. ``is_known`` says whether
    the algorithm reports the progress. ``early_marks`` is ``early`` of `Marks`.
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
