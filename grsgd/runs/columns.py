"""Columns of reports: values, titles and meanings of columns, and the order in which columns are left out of a table
that is too wide."""

import math
from collections import Counter
from collections.abc import Callable, Container, Sequence
from typing import NamedTuple

from grsgd.errors import UsageError
from grsgd.runs import measures
from grsgd.runs.bound import time_over_optimum
from grsgd.runs.ending import Ended
from grsgd.runs.layout import LAYOUT
from grsgd.runs.measures import is_virtual, last_value, time_split
from grsgd.runs.metric import ACCURACY, Metric, columns_of, final_of, metric_of, metrics_of, target_of
from grsgd.runs.numbers import (
    UNKNOWN,
    human_bytes,
    known_values,
    number,
    share,
    significant,
    whole,
)
from grsgd.runs.run_file import Run
from grsgd.runs.settings import settings, text
from grsgd.runs.spread import Spread
from grsgd.text import printable


class Column(NamedTuple):
    """Column of a report with one number per run, which ``of(run)`` returns; NaN if the number is not known."""

    name: str
    """Name of the column in the option ``--columns`` of ``grsgd report``."""
    data_name: str
    """Name of the column, with its unit, in CSV and JSON. Accuracies and shares are fractions from 0 to 1 in CSV and
    JSON."""
    title: str
    of: Callable[[Run], float]
    text: Callable[[float], str]
    meaning: str

    def cell(self, runs: Sequence[Run], spread: Spread) -> str:
        """Return the cell's text: the number of one run, or a summary of the numbers of several runs."""
        return spread.text(self.values(runs), self.text)

    def data(self, runs: Sequence[Run], spread: Spread) -> dict[str, float | int | None]:
        """Return numbers for CSV and JSON that summarise this column for ``runs``, as a dictionary. Each key of the
        returned dictionary is a suffix that is added to the column's name."""
        plain = _count if self.text in (whole, human_bytes) else or_none
        return {end: plain(value) for end, value in spread.numbers(self.values(runs)).items()}

    def values(self, runs: Sequence[Run]) -> list[tuple[object, float]]:
        """Return a list of pairs (seed, number of this column), one per run."""
        return [(run.attributes["seed"], self.of(run)) for run in runs]

    def is_known(self, runs: Sequence[Run]) -> bool:
        """Return whether this column's number is known for any of ``runs``."""
        return bool(known_values([self.of(run) for run in runs]))


class WordsColumn(NamedTuple):
    """Column of a report with a text about one run, or about several runs that differ only in the seed."""

    name: str
    title: str
    of: Callable[[Sequence[Run]], str]
    meaning: str = ""

    @property
    def data_name(self) -> str:
        return self.name

    def cell(self, runs: Sequence[Run], spread: Spread) -> str:
        return self.of(runs)

    def data(self, runs: Sequence[Run], spread: Spread) -> dict[str, str]:
        return {"": self.of(runs)}

    def is_known(self, runs: Sequence[Run]) -> bool:
        return any(self.of([run]) for run in runs)


class Key(NamedTuple):
    """Column of a report with the value of a configuration key such as ``optimizer.lr``. All runs that share a row of
    the table have the same value of this key."""

    name: str
    meaning = ""

    @property
    def data_name(self) -> str:
        return self.name

    title = data_name

    def cell(self, runs: Sequence[Run], spread: Spread) -> str:
        value = settings(runs[0]).get(self.name)
        return UNKNOWN if value is None else text(value)

    def data(self, runs: Sequence[Run], spread: Spread) -> dict[str, object]:
        return {"": or_none(settings(runs[0]).get(self.name))}

    def is_known(self, runs: Sequence[Run]) -> bool:
        return any(self.name in settings(run) for run in runs)


AnyColumn = Column | WordsColumn | Key


def or_none(value):
    """Return ``value``, or None for a number that JSON cannot express (NaN or infinity)."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _count(value: float | None) -> int | float | None:
    return int(value) if value is not None and value.is_integer() else or_none(value)


BY_IMPORTANCE = """ended data time final to_target loss sent wait_share step epochs samples best rate simulating wait
    participation over_optimum consensus sent_once communicate compute other steps reason""".split()
"""Names of the columns of reports, the most important first. If a table is too wide, the last columns in this list are
left out first."""
MAX_OWN = 8
"""Largest number of report columns with values that users' scripts have logged."""
BY_DEFAULT = """data epochs samples final best loss to_target time simulating step rate sent sent_once wait wait_share
    participation over_optimum consensus reason""".split()
"""Names of the columns that a report shows, in this order, if the user names no columns."""


def _part(name: str) -> Column:
    return Column(
        name,
        f"{name}_seconds",
        f"{name} [s]",
        lambda run: time_split(run)[name],
        number,
        "mean over the ranks that train",
    )


OF_WORK = (
    WordsColumn("data", "data/model", lambda runs: data_and_model(runs[0])),
    Column("epochs", "epochs", "epochs", measures.epochs, number, "passes over the data, all ranks together"),
    Column("samples", "samples", "samples", measures.samples, whole, "of all ranks"),
    Column("steps", "steps", "steps", measures.steps, whole, "of the rank with the most"),
    Column(
        "participation",
        "participation",
        "taking part [%]",
        measures.participation,
        share,
        "share of the steps of living ranks that entered the model",
    ),
)
LOSS = Column(
    "loss", "train_loss", "loss", lambda run: last_value(run, "train_loss"), significant, "training loss at the end"
)
OF_TIME = (
    Column("time", "time_seconds", "time [s]", measures.seconds, number, "from the start of training to its end"),
    Column(
        "simulating",
        "simulating_seconds",
        "simulating [s]",
        measures.simulating_seconds,
        number,
        "real time that the simulation took",
    ),
    Column(
        "step",
        "step_seconds",
        "step [ms]",
        measures.seconds_per_step,
        lambda value: number(1000 * value),
        "time of a step, mean over the ranks",
    ),
    Column("rate", "samples_per_second", "samples/s", measures.samples_per_second, number, "up to the last snapshot"),
)
OF_TRAFFIC = (
    Column("sent", "sent_bytes", "sent", measures.bytes_sent, human_bytes, "payload of all ranks"),
    Column(
        "sent_once",
        "sent_once_bytes",
        "sent once",
        measures.bytes_sent_once,
        human_bytes,
        "payload, a multicast counted once",
    ),
)
OF_PARTS = (
    *map(_part, measures.PARTS),
    Column(
        "wait_share",
        "wait_share",
        "wait [%]",
        measures.waiting_share,
        share,
        "share of compute + communicate + wait",
    ),
    Column(
        "other",
        "other_seconds",
        "other [s]",
        measures.other_seconds,
        number,
        "time before, between and after the steps",
    ),
)
"""Columns of the parts of the ranks' time: compute, communicate, wait, share of waiting, and other."""
OF_MODELS = (
    Column(
        "over_optimum",
        "time_over_optimum",
        "x optimum",
        time_over_optimum,
        significant,
        "time of a server's update over the least possible at the workers' speeds",
    ),
    Column(
        "consensus",
        "consensus_distance",
        "consensus",
        measures.final_consensus,
        significant,
        "distance of the replicas from their average at the end",
    ),
)
OF_END = (
    WordsColumn("ended", "ended", lambda runs: _counted(runs, "ended")),
    WordsColumn("reason", "stopped early", lambda runs: early_ends(runs)),
)


def all_columns(runs: Sequence[Run]) -> dict[str, AnyColumn]:
    """Return all columns of a table of ``runs``, by name."""
    of_metrics = (column for metric in metrics_of(runs) for column in _of_metric(metric, runs))
    columns = [*OF_WORK, *of_metrics, LOSS, _to_target(runs), *OF_TIME, *OF_TRAFFIC, *OF_PARTS, *OF_MODELS, *OF_END]
    found = {column.name: column for column in columns}
    return found | {column.name: column for column in _own(runs, found)}


def _to_target(runs: Sequence[Run]) -> Column:
    """Return the column of the time to the target. The column's title names the target's value if all runs have an
    equal target."""
    targets = {(metric_of(run), target_of(run)) for run in runs}
    title = "to target [s]"
    if len(targets) == 1 and known_values([target for _, target in targets]):
        title = next(f"to {metric.chosen(target)} [s]" for metric, target in targets)
    meaning = "to its first snapshot that reaches the target"
    return Column("to_target", "to_target_seconds", title, measures.time_to_target, number, meaning)


def _own(runs: Sequence[Run], taken: Container[str]) -> list[Column]:
    """Return a column for each name under which users' own loops have logged values. A column of logged values has the
    value that a loop has logged last."""
    logged = [name for run in runs for name in run.curve if name not in LAYOUT["curve"].keys() | columns_of(run)]
    names = {name: f"{name}_logged" if name in taken else name for name in [*dict.fromkeys(logged)][:MAX_OWN]}
    return [
        Column(own, own, printable(own, 40), lambda run, name=name: last_value(run, name), significant, "at the end")
        for name, own in names.items()
    ]


def _of_metric(metric: Metric, runs: Sequence[Run]) -> list[Column]:
    """Return the columns with the final and the best value of ``metric``. Runs with another metric than ``metric`` have
    no value in the returned columns. The columns' names contain the metric's name unless ``metric`` is the metric of
    the first run."""
    every = metrics_of(runs)
    first, alone = metric == metric_of(runs[0]), every == [ACCURACY]
    alike = [other for other in every if other.name == metric.name]
    own = metric.name if alike[0] == metric else f"{metric.name}_{alike.index(metric) + 1}"

    def column(name: str, of: Callable[[Run], float], meaning: str) -> Column:
        return Column(
            name if first else f"{name}_{own}",
            f"{name}_{own}",
            f"{name}{'' if alone else f' {metric.words}'}{metric.in_unit}",
            lambda run: of(run) if metric_of(run) == metric else math.nan,
            metric.number,
            meaning,
        )

    which = "highest" if metric.higher_is_better else "lowest"
    return [
        column("final", final_of, f"{metric.title} of the final model"),
        column("best", measures.best, f"{which} {metric.title} of the averaged model"),
    ]


def shown_by_default(runs: Sequence[Run]) -> list[AnyColumn]:
    """Return the columns that a report of ``runs`` shows if the user names no columns. Columns without known or useful
    values are left out."""
    columns = all_columns(runs)
    in_samples = any(math.isnan(measures.epochs(run)) for run in runs)
    is_tested = any(known_values([measures.best(run)]) for run in runs)
    left_out = {
        "epochs": in_samples,
        "samples": not in_samples,
        "to_target": not known_values([target_of(run) for run in runs]),
        "loss": is_tested or not columns["loss"].is_known(runs),
        "simulating": not any(map(is_virtual, runs)),
        "sent_once": all(measures.bytes_sent(run) == measures.bytes_sent_once(run) for run in runs),
        "participation": not any(measures.participation(run) < 1 for run in runs),
        "over_optimum": not columns["over_optimum"].is_known(runs),
        "reason": not columns["reason"].is_known(runs),
    }
    names = [*BY_DEFAULT, *(name for name in columns if name not in BY_IMPORTANCE)]
    return [columns[name] for name in names if not left_out.get(name)]


def by_importance(columns: Sequence[AnyColumn]) -> list[str]:
    """Return the names of the columns, the most important first. Columns of values that scripts have logged come before
    the column of bytes sent."""
    own = [column.name for column in columns if column.name not in BY_IMPORTANCE]
    at = BY_IMPORTANCE.index("sent")
    return [*BY_IMPORTANCE[:at], *own, *BY_IMPORTANCE[at:]]


def chosen(runs: Sequence[Run], wanted: Sequence[str]) -> list[AnyColumn]:
    """Return the columns that ``wanted`` names, in the order of ``wanted``. ``wanted`` may have names of columns, and
    configuration keys such as ``optimizer.lr``. Raises UsageError for an unknown name."""
    columns = all_columns(runs)
    by_name = {column.data_name: column for column in columns.values()} | columns
    keys = {key: Key(key) for run in runs for key in settings(run)}
    by_name = keys | by_name
    for name in wanted:
        if name not in by_name:
            raise UsageError(f"--columns: unknown column {name!r}; allowed: {', '.join(columns)}")
    return [by_name[name] for name in dict.fromkeys(wanted)]


def data_and_model(run: Run) -> str:
    """Return the names of a run's data set and model as "data/model". If the name of the data set or of the model is
    not known, this name is left out."""
    known = [run.attributes[name] for name in ("dataset", "model") if run.attributes.get(name)]
    return "/".join(known) or UNKNOWN


def early_ends(runs: Sequence[Run]) -> str:
    """Return a text with the reasons for which runs ended early, and the number of runs for each reason; empty if no
    run ended early."""
    return _counted([run for run in runs if run.attributes["ended"] != Ended.COMPLETED], "reason", len(runs))


def _counted(runs: Sequence[Run], attribute: str, of: int | None = None) -> str:
    ends, of = Counter(run.attributes[attribute] for run in runs), of or len(runs)
    return "; ".join(end if count == of else f"{end} ({count} of {of})" for end, count in ends.items())
