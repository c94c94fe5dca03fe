"""Measurements of each rank in a user's own loop, and the run that is computed from the measurements of all ranks."""

import math
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import ClassVar, NamedTuple

import numpy as np

from grsgd.runs.ending import NON_FINITE_LOSS
from grsgd.runs.layout import LAYOUT
from grsgd.runs.metric import metric_in
from grsgd.runs.run_file import Run
from grsgd.training.record import NOT_COUNTED, assemble
from grsgd.training.times import RankTotals

MAX_POINTS = 4096
"""Largest number of points of a rank's progress that `LoopProgress` stores."""
OTHER_SECONDS = (
    "s",
    "time of the rank outside of its steps: loading data, evaluation, finish(), and anything else in the loop",
)
LOGGED = ("1", "logged by the script; mean over the ranks that logged a value at the step")


@dataclass
class Counters:
    """Counters of one rank's steps, samples, seconds and messages since the call of `distribute`."""

    measured: dict[str, float]
    traffic: np.ndarray
    """Bytes of payload, bytes of headers, and number of messages sent to each rank: int64 of shape [ranks, 3]."""
    sent_once: int
    staleness: Counter
    left_out: int

    @classmethod
    def of(cls, optimizer) -> "Counters":
        """Return the present counters of a distributed optimizer. The optimizer's ``finish()`` may have been called."""
        traffic = optimizer.algorithm.comm.traffic
        return cls(
            asdict(optimizer.times.totals),
            np.stack([traffic.sent, traffic.headers, traffic.messages], axis=1),
            traffic.sent_once,
            Counter(optimizer.algorithm.staleness),
            optimizer.loop.left_out,
        )

    @classmethod
    def of_record(cls, record: "LoopMeasurements", ranks: int) -> "Counters":
        """Return the counters from which ``record`` was made, in a job of ``ranks`` ranks."""
        traffic = np.zeros((ranks, 3), np.int64)
        traffic[record.traffic[:, 0]] = record.traffic[:, 1:]
        return cls(record.measured, traffic, record.sent_once, Counter(record.staleness), record.left_out)

    def since(self, start: "Counters") -> "Counters":
        """Return the differences between these counters and the counters ``start``. Differences are negative if a
        record was loaded after `distribute` and ``start`` includes the record's counts."""
        staleness = self.staleness.copy()
        staleness.subtract(start.staleness)
        return Counters(
            {key: value - start.measured[key] for key, value in self.measured.items()},
            self.traffic - start.traffic,
            self.sent_once - start.sent_once,
            Counter({age: count for age, count in staleness.items() if count}),
            self.left_out - start.left_out,
        )

    def rows(self) -> np.ndarray:
        """Return a table of the traffic to each rank to which anything was sent. The table is int64 of shape
        [receivers, 4]: the receiver's rank, then the row of `traffic`; `grsgd.comm.traffic.Traffic.rows` returns the
        same form."""
        (receivers,) = self.traffic.any(axis=1).nonzero()
        return np.column_stack([receivers, self.traffic[receivers]])


class LoggedValues(NamedTuple):
    """Values that a rank has logged at one step. ``time`` is the end of the step, in seconds since the recording
    began."""

    time: float
    samples: int
    values: dict[str, float]


def thinned(rows: dict[int, LoggedValues], most: int) -> dict[int, LoggedValues]:
    """Return about ``most`` rows or fewer: the rows of every 2nd, 4th, ... step, and the last row. The returned steps,
    except the last, are multiples of a power of two, so all ranks keep the same steps."""
    every = 1
    while len(rows) > most * every:
        every *= 2
    last = max(rows, default=0)
    return {step: row for step, row in rows.items() if step % every == 0 or step == last}


@dataclass
class LoopProgress:
    """Points (seconds, number of steps, number of samples) of a rank's progress, one after every ``every``-th step."""

    points: list[tuple[float, int, int]] = field(default_factory=lambda: [(0.0, 0, 0)])
    every: int = 1

    def note(self, time: float, steps: int, samples: int):
        if steps % self.every == 0:
            self.points.append((time, steps, samples))
        if len(self.points) > MAX_POINTS:
            self.points = self.points[::2]
            self.every *= 2


@dataclass
class LoopMeasurements:
    """Measurements of one rank, small enough to be sent to other ranks."""

    # `grsgd.training.record.assemble` reads these fields of snapshots, which a user's own loop does not take.
    moments: ClassVar[tuple] = ()
    numbers: ClassVar[tuple] = ()
    early: ClassVar[int] = 0
    # Algorithms that send datagrams do not run in users' own loops, so no datagram is repaired or lost.
    repaired: ClassVar[int] = 0
    lost: ClassVar[int] = 0

    rows: dict[int, LoggedValues]
    progress: list[tuple[float, int, int]]
    elapsed: float
    measured: dict[str, float]
    traffic: np.ndarray
    """Traffic to each rank, in the rows that `Counters.rows` returns."""
    sent_once: int
    staleness: dict[int, int]
    warnings: list[str]
    interface: np.ndarray
    left_out: int = 0
    """Number of steps that this rank knows not to have entered the model (`grsgd.training.participation`)."""
    extra: dict = field(default_factory=dict)
    """Arrays about deaths, as in `grsgd.training.record.RankMeasurements`."""

    @classmethod
    def of_beginning(cls) -> "LoopMeasurements":
        """Return the record of a rank at the beginning of its measurements, with all counts and times zero."""
        measured = asdict(RankTotals()) | {"other_seconds": 0.0}
        return cls({}, [(0.0, 0, 0)], 0.0, measured, np.zeros((0, 4), np.int64), 0, {}, [], np.zeros(2))

    @classmethod
    def of_nothing(cls) -> "LoopMeasurements":
        """Return the record for a rank that did not send its measurements: no traffic, no steps, and unknown times
        (NaN)."""
        measured = {key: 0 if key in ("steps", "samples") else math.nan for key in asdict(RankTotals())}
        measured["other_seconds"] = math.nan
        return cls({}, [(0.0, 0, 0)], 0.0, measured, np.zeros((0, 4), np.int64), 0, {}, [], NOT_COUNTED)


def run_of(records: list[LoopMeasurements], attributes: dict) -> Run:
    """Return the run that is computed from ``records``, the records of all ranks by ascending rank. The run's
    ``wall_seconds`` is the time of the slowest rank."""
    elapsed = max(record.elapsed for record in records)
    run = assemble(records, attributes | {"wall_seconds": elapsed})
    metric = metric_in(attributes)
    run.attributes[metric.final] = final_value(records, metric.column)
    run.curve = curve(records, bool(attributes["synchronous"]), metric.column)
    run.units["ranks/other_seconds"] = OTHER_SECONDS
    own = run.curve.keys() - LAYOUT["curve"].keys() - {metric.column}
    run.units |= {f"curve/{name}": LOGGED for name in own}
    return run


def curve(records: list[LoopMeasurements], synchronous: bool, tested: str) -> dict[str, np.ndarray]:
    """Return the curve of the run, as arrays by column. The curve has one row for each step at which any rank has
    logged values, and a row for the end. ``tested`` is the column of the metric."""
    steps = sorted(set().union(*(record.rows for record in records)))
    logged = [[record.rows[step] for record in records if step in record.rows] for step in steps]
    times = [max(row.time for row in rows) for rows in logged]
    samples = samples_at(records, steps, steps if synchronous else times, synchronous)
    trained = [record for record in records if record.measured["steps"]]
    last = round(np.mean([record.measured["steps"] for record in trained])) if trained else 0
    if not steps or steps[-1] < last:
        steps.append(last)
        logged.append([])
        times.append(max(record.progress[-1][0] for record in records))
        samples.append(sum(int(record.measured["samples"]) for record in records))
    names = sorted({name for rows in logged for row in rows for name in row.values} | {"train_loss", tested})
    return {
        "time": np.array(times, np.float64),
        "step": np.array(steps, np.int64),
        "samples": np.array(samples, np.int64),
    } | {
        name: np.array([mean(row.values[name] for row in rows if name in row.values) for rows in logged])
        for name in names
    }


def samples_at(records: list[LoopMeasurements], steps: list[int], places: list, by_steps: bool) -> list[int]:
    """Return the number of samples of all ranks together at each of ``places``. The places are numbers of steps if
    ``by_steps``, else times in seconds.

    If a rank has logged values at a step, the rank's number of samples at the step is known. If not, the number is
    interpolated between the points of the rank's ``progress``.
    """
    total = np.zeros(len(steps))
    for record in records:
        times, counts, samples = np.array(record.progress, float).T
        between = np.interp(places, counts if by_steps else times, samples) if places else []
        total += [
            record.rows[step].samples if step in record.rows else float(value)
            for step, value in zip(steps, between, strict=True)
        ]
    return [round(value) for value in total]


def mean(values) -> float:
    """Return the mean of ``values``; NaN if there are no values."""
    values = list(values)
    return sum(values) / len(values) if values else math.nan


def final_value(records: list[LoopMeasurements], column: str) -> float:
    """Return the mean over ranks of the value of ``column`` that each rank has logged after its last step. Return NaN
    if no rank has logged such a value."""
    last = [record.rows[step] for record in records if (step := record.measured["steps"]) in record.rows]
    return mean(row.values[column] for row in last if column in row.values)


def divergence(records: list[LoopMeasurements]) -> str | None:
    """Return a text that says why the run has diverged, if the last logged loss of any rank is not finite; else
    None."""
    for rank, record in enumerate(records):
        losses = [(step, row.values["train_loss"]) for step, row in record.rows.items() if "train_loss" in row.values]
        if losses and not math.isfinite(max(losses)[1]):
            return f"{NON_FINITE_LOSS} ({max(losses)[1]}) on rank {rank} at step {max(losses)[0]}"
    return None
