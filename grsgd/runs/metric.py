"""Metrics by which models are tested, such as accuracy: name, unit, and whether higher or lower values are better."""

import math
import re
from typing import NamedTuple

import numpy as np

from grsgd.errors import ConfigError
from grsgd.runs.numbers import known_values, per_cent
from grsgd.runs.run_file import Run
from grsgd.text import printable


class Metric(NamedTuple):
    """Metric by which models are tested, such as accuracy. Values of a metric are plain numbers in run files and in
    Python."""

    name: str
    """Name of the metric in lower case, with ``_`` between words. The curve's column of the metric is called
    ``test_NAME``."""
    unit: str = ""
    """Unit of the metric, such as "m". The unit "%" means a fraction of 1 that is shown in per cent."""
    higher_is_better: bool = False

    @property
    def column(self) -> str:
        """Name of the curve's column with the metric's values of the averaged model. Columns with ``_min`` or ``_max``
        at the end of this name have the least or greatest value of a single rank's model."""
        return f"test_{self.name}"

    @property
    def final(self) -> str:
        """Name of the run file's attribute with the metric's value of the final model."""
        return f"final_test_{self.name}"

    @property
    def best(self) -> str:
        """Name of the run file's attribute with the metric's value of the model that was saved as the best."""
        return f"best_test_{self.name}"

    @property
    def title(self) -> str:
        return f"test {self.words}"

    @property
    def words(self) -> str:
        return printable(self.name.replace("_", " "), 40)

    @property
    def factor(self) -> float:
        """Factor by which the metric's values are multiplied when they are shown: 100 for per cent, else 1."""
        return 100.0 if self.unit == "%" else 1.0

    @property
    def in_unit(self) -> str:
        """Unit of the metric in brackets, for titles and axes; empty if the metric has no unit."""
        return f" [{printable(self.unit, 20)}]" if self.unit else ""

    def number(self, value: float) -> str:
        """Return a value of the metric as text, without the unit."""
        return per_cent(value) if self.unit == "%" else f"{value:.4g}"

    def text(self, value: float) -> str:
        """Return a value of the metric as text, with the unit."""
        return printable(f"{self.number(value)} {self.unit}".rstrip())

    def chosen(self, value: float) -> str:
        """Return as text a ``value`` that the user has chosen, such as a target: a percentage, or the metric's name and
        the value."""
        name = "" if self.unit == "%" else f"{self.words} "
        return printable(f"{name}{self.factor * value:g} {self.unit}".rstrip())

    def sentence(self, value: float) -> str:
        """Return ``value`` with the metric's title, such as "93.12 % test accuracy" or "test perplexity 7.25"."""
        text = self.text(value)
        return f"{text} {self.title}" if self.unit == "%" else f"{self.title} {text}"

    def is_reached(self, values, target: float):
        """Return, for each element of ``values``, whether the element is at least as good as the target; False for
        NaN."""
        return values >= target if self.higher_is_better else values <= target

    def units(self) -> dict[str, tuple[str, str]]:
        """Return the unit and description of the metric's columns in the curve, in the form of `Run.units`."""
        whose = {"": "of the averaged model", "_min": "the least of a single replica", "_max": "the greatest of one"}
        unit, kind = ("1", ", a fraction") if self.unit == "%" else (self.unit or "1", "")
        return {f"curve/{self.column}{end}": (unit, f"{self.title}, {of}{kind}") for end, of in whose.items()}

    def is_better(self, value: float, other: float) -> bool:
        return value > other if self.higher_is_better else value < other

    def best_of(self, values) -> float:
        """Return the best of the known ``values``; NaN if no value is known."""
        known = known_values(values)
        return (max if self.higher_is_better else min)(known, default=math.nan)


ACCURACY = Metric("accuracy", "%", higher_is_better=True)


def check_metric(metric):
    """Raise ConfigError if ``metric`` is no `Metric`, or if the metric's name cannot be the name of a column."""
    if not isinstance(metric, Metric):
        raise ConfigError(f"metric = {metric!r}: must be a grsgd.Metric")
    if not (isinstance(metric.name, str) and re.fullmatch(r"[a-z0-9_]+", metric.name)):
        raise ConfigError(f"Metric({metric.name!r}): a name may have only lower-case letters, digits and _")
    if not isinstance(metric.unit, str) or not isinstance(metric.higher_is_better, bool):
        raise ConfigError(f"{metric}: the unit must be a text, and higher_is_better true or false")


def attributes_of(metric: Metric, target: float | None) -> dict:
    """Return the attributes of a run file that record ``metric`` and ``target``. If the metric is accuracy, only the
    target is recorded."""
    if metric == ACCURACY:
        return {"target_accuracy": target}
    return {
        "metric": metric.name,
        "metric_unit": metric.unit,
        "metric_higher_is_better": metric.higher_is_better,
        "target": target,
    }


def metric_in(attributes: dict) -> Metric:
    """Return the metric that the attributes of a run file record; accuracy if the attributes have no metric."""
    if attributes.get("metric") is None:
        return ACCURACY
    return Metric(
        attributes["metric"], attributes.get("metric_unit", ""), attributes.get("metric_higher_is_better", False)
    )


def metric_of(run: Run) -> Metric:
    """Return the metric by which a run's models were tested."""
    return metric_in(run.attributes)


def metrics_of(runs) -> list[Metric]:
    """Return the list of the different metrics of several runs."""
    return list(dict.fromkeys(map(metric_of, runs)))


def values_of(run: Run, end: str = "") -> np.ndarray:
    """Return the metric's value at each snapshot of the averaged model, an array [snapshots]; NaN where the value was
    not measured. With ``end`` "_min" or "_max" return the least or greatest value of a single rank's model."""
    values, time = run.curve.get(metric_of(run).column + end), run.curve["time"]
    is_curve = values is not None and values.shape == time.shape and values.dtype.kind in "biuf"
    return values.astype(float) if is_curve else np.full(len(time), math.nan)


def final_of(run: Run) -> float:
    """Return the metric's value of a run's final model; NaN if the value was not measured."""
    return run.attributes.get(metric_of(run).final, math.nan)


def target_of(run: Run) -> float:
    """Return the target, the metric's value that the run should reach; NaN if the user has given no target."""
    name = "target_accuracy" if metric_of(run) == ACCURACY else "target"
    target = run.attributes.get(name)
    return math.nan if target is None else target


def columns_of(run: Run) -> set[str]:
    """Return the names of the curve's columns that belong to the run's metric."""
    column = metric_of(run).column
    return {column, f"{column}_min", f"{column}_max"}
