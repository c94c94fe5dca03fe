"""Functions that assemble a job's run file from the measurements of all ranks."""

import math
from dataclasses import asdict, dataclass

import numpy as np

from grsgd.runs.ending import STOP_CRITERIA
from grsgd.runs.metric import ACCURACY, metric_in
from grsgd.runs.run_file import Run, why_unfit
from grsgd.text import printable
from grsgd.training.evaluation import Quality
from grsgd.training.participation import left_out, participation
from grsgd.training.snapshots import NOT_THERE, Moment, common_marks, train_loss
from grsgd.training.times import RankTotals
from grsgd.training.trainer import Trainer

NOT_COUNTED = np.full(2, np.nan)


@dataclass
class RankMeasurements:
    """Measurements of one rank, which are sent to other ranks at the end of the run."""

    moments: list[Moment]
    numbers: list[int]
    weights: list[float]
    early: int
    measured: dict[str, float]
    traffic: np.ndarray
    """Messages sent to each rank: rows (receiver, bytes of payload, bytes of headers, number of messages), as
    `Traffic.rows` returns."""
    sent_once: int
    repaired: int
    lost: int
    staleness: dict[int, int]
    left_out: int
    """Number of steps that did not contribute to the model, as far as this rank knows: see
    `grsgd.training.participation`."""
    warnings: list[str]
    interface: np.ndarray
    extra: dict[str, tuple[np.ndarray, tuple[str, str]]]

    @classmethod
    def of(cls, trainer: Trainer, interface: np.ndarray = NOT_COUNTED) -> "RankMeasurements":
        """Return the measurements of the rank of ``trainer``. ``interface`` has the numbers of bytes that the network
        interfaces of this rank's host have sent and received."""
        traffic = trainer.comm.traffic
        # Snapshot numbers are copied before moments, because a new snapshot adds its moment before its number.
        numbers = list(trainer.snapshots.numbers)
        return cls(
            list(trainer.snapshots.moments),
            numbers,
            list(trainer.snapshots.weights),
            trainer.snapshots.early,
            asdict(trainer.totals),
            traffic.rows(),
            traffic.sent_once,
            traffic.repaired,
            traffic.lost,
            dict(trainer.algorithm.staleness),
            left_out(trainer),
            [
                *trainer.algorithm.warnings(),
                *trainer.equal_models.warnings,
                *trainer.snapshots.warnings(),
                *trainer.recovery.warnings(),
            ],
            interface,
            trainer.algorithm.extra(),
        )

    @classmethod
    def of_nothing(cls) -> "RankMeasurements":
        """Return the measurements that the run file has for a rank that has sent no measurements: no messages, no
        steps, and NaN for all times."""
        nothing = {key: 0 if key in ("steps", "samples") else math.nan for key in asdict(RankTotals())}
        return cls([], [], [], 0, nothing, np.zeros((0, 4), np.int64), 0, 0, 0, {}, 0, [], NOT_COUNTED, {})


def marks_of(records: list[RankMeasurements], reason: str) -> list[int]:
    """Return the marks (points at which snapshots are taken) that the curve of a run shows. At each returned mark,
    every rank that has taken snapshots has a snapshot (`common_marks`). ``reason`` is the reason why the run ended."""
    answered = [record for record in records if record.moments]
    early = max((record.early for record in answered), default=0)
    return common_marks([record.numbers for record in answered], early if reason in STOP_CRITERIA else 0)


def assemble(
    records: list[RankMeasurements], attributes: dict, qualities: list[Quality] = (), final: Quality | None = None
) -> Run:
    """Return the content of a job's run file. ``records`` has the measurements of all ranks by ascending rank.

    The run's curve has a row for each mark (point at which snapshots are taken) that `marks_of` returns. ``qualities``
    has the test result for each row of the curve, or only for the first rows if testing was stopped early. ``final`` is
    the test result of the final model. If several ranks have an extra array of the same name (`Algorithm.extra`), the
    array of the lowest rank is taken.
    """
    answered = [record for record in records if record.moments]
    marks = marks_of(records, attributes["reason"])
    rows = [[record.moments[mark] for record in answered if record.numbers[mark] != NOT_THERE] for mark in marks]
    unknown = Quality(math.nan, math.nan, math.nan, math.nan)
    qualities = [*qualities, *[unknown] * (len(rows) - len(qualities))]
    ages = sorted(set().union(*(record.staleness for record in records)))
    warnings = [f"rank {rank}: {warning}" for rank, record in enumerate(records) for warning in record.warnings]
    extra, unfit = fitting({name: kept for record in reversed(records) for name, kept in record.extra.items()})
    warnings = [printable(warning) for warning in [*warnings, *unfit]]
    interface = np.array([record.interface for record in records])
    repairs = {name: np.array([getattr(record, name) for record in records], float) for name in ("repaired", "lost")}
    metric = metric_in(attributes)
    known = {
        metric.final: final.mean if final else math.nan,
        "participation": participation(records, attributes.get("lost") or ()),
        "warnings": warnings or None,
    }
    return Run(
        attributes=attributes | known,
        curve={
            "time": np.array([max(moment.time for moment in row) for row in rows]),
            "step": np.array([round(np.mean([moment.step for moment in row])) for row in rows], np.int64),
            "samples": np.array([max(moment.samples for moment in row) for row in rows], np.int64),
            "train_loss": np.array([train_loss(row) for row in rows]),
            metric.column: np.array([quality.mean for quality in qualities]),
            f"{metric.column}_min": np.array([quality.lowest for quality in qualities]),
            f"{metric.column}_max": np.array([quality.highest for quality in qualities]),
            "consensus_distance": np.array([quality.consensus_distance for quality in qualities]),
        },
        ranks={key: np.array([record.measured[key] for record in records]) for key in records[0].measured},
        traffic=traffic_of(records)
        | (repairs if repairs["lost"].any() else {})
        | ({} if np.isnan(interface).all() else {"interface": interface}),
        staleness={
            "value": np.array(ages, np.int64),
            "count": np.array([[record.staleness.get(age, 0) for age in ages] for record in records], np.int64),
        },
        extra={name: array for name, (array, _) in extra.items()},
        units={name: unit for name, (_, unit) in extra.items()} | ({} if metric == ACCURACY else metric.units()),
    )


def fitting(extra: dict) -> tuple[dict, list[str]]:
    """Return the algorithm's extra arrays that a run file can store, and a warning for each array that it cannot
    store."""
    fits, left_out = {}, []
    for name, kept in extra.items():
        try:
            array, unit = kept
            problem = why_unfit(name, array, unit)
        except (TypeError, ValueError):
            problem = f"{type(kept).__name__}, expected an array and (unit, description)"
        if problem:
            left_out.append(f"extra() of the algorithm: {name!r} is left out: {problem}")
        else:
            fits[name] = kept
    return fits, left_out


def traffic_of(records: list[RankMeasurements]) -> dict[str, np.ndarray]:
    """Return three matrices [sender, receiver]: the bytes of payload, the bytes of headers, and the numbers of messages
    that ranks have sent. Return also the number of bytes that each rank has sent. In the number of bytes that a rank
    has sent, the bytes of a multicast message count only once."""
    n = len(records)
    found = {name: np.zeros((n, n), np.int64) for name in ("sent", "headers", "messages")}
    for rank, record in enumerate(records):
        receivers, *columns = record.traffic.T
        for matrix, column in zip(found.values(), columns, strict=True):
            matrix[rank, receivers] = column
    return found | {"sent_once": np.array([record.sent_once for record in records], np.int64)}
