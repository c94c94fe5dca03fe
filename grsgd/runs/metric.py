"""Metric of a model's quality on test data: its name, its unit, and whether higher or lower values are better."""

import math
import re
from typing import NamedTuple

import numpy as np

from grsgd.errors import ConfigError
from grsgd.runs.numbers import known_values, per_cent
from grsgd.runs.run_file import Run
from grsgd.text import printable


class Metric(NamedTuple):
    """Metric of models, such as accuracy. In run files and in Python its values are plain numbers."""

    name: str
    """Name in lower case, with ``_`` between words: the curve's column is ``test_NAME``."""
    unit: str = ""
    """Unit such as "m". The unit "%" means a fraction of 1 that is shown in per cent."""
    higher_is_better: bool = False

    @property
    def column(self) -> str:
        """Column of the curve for the averaged model; with ``_min`` and ``_max`` the columns for single replicas."""
        return f"test_{self.name}"

    @property
    def final(self) -> str:
        """Attribute of a run with the value of its final model."""
        return f"final_test_{self.name}"

    @property
    def best(self) -> str:
        """Attribute of a run with the value of the model that was saved as its best."""
        return f"best_test_{self.name}"

    @property
    def title(self) -> str:
        return f"test {self.words}"

    @property
    def words(self) -> str:
        return printable(self.name.replace("_", " "), 40)

    @property
    def factor(self) -> float:
        """Factor by which shown values are multiplied."""
        return 100.0 if self.unit == "%" else 1.0

    @property
    def in_unit(self) -> str:
        """Unit in brackets, for titles and axes; empty if there is none."""
        return f" [{printable(self.unit, 20)}]" if self.unit else ""

    def number(self, value: float) -> str:
        """Return a value as text, without the unit."""
        return per_cent(value) if self.unit == "%" else f"{value:.4g}"

    def text(self, value: float) -> str:
        """Return a value as text, with the unit."""
        return printable(f"{self.number(value)} {self.unit}".rstrip())

    def chosen(self, value: float) -> str:
        """Return a chosen value, such as a target, as text: a percentage, or the metric's name and the value."""
        name = "" if self.unit == "%" else f"{self.words} "
        return printable(f"{name}{self.factor * value:g} {self.unit}".rstrip())

    def sentence(self, value: float) -> str:
        """Return "93.12 % test accuracy", or "test perplexity 7.25"."""
        text = self.text(value)
        return f"{text} {self.title}" if self.unit == "%" else f"{self.title} {text}"

    def is_reached(self, values, target: float):
        """Return whether values are as good as the target, or better; False for values that are not known."""
        return values >= target if self.higher_is_better else values <= target

    def units(self) -> dict[str, tuple[str, str]]:
        """Return unit and description of the curve's columns, in the form of `Run.units`."""
        whose = {"": "of the averaged model", "_min": "the least of a single replica", "_max": "the greatest of one"}
        unit, kind = ("1", ", a fraction") if self.unit == "%" else (self.unit or "1", "")
        return {f"curve/{self.column}{end}": (unit, f"{self.title}, {of}{kind}") for end, of in whose.items()}

    def is_better(self, value: float, other: float) -> bool:
        return value > other if self.higher_is_better else value < other

    def best_of(self, values) -> float:
        """Return the best of the known values; NaN if none is known."""
        known = known_values(values)
        return (max if self.higher_is_better else min)(known, default=math.nan)


ACCURACY = Metric("accuracy", "%", higher_is_better=True)


def check_metric(metric):
    """Raise ConfigError for an object that is no `Metric`, or whose name could not be a column's name."""
    if not isinstance(metric, Metric):
        raise ConfigError(f"metric = {metric!r}: must be a grsgd.Metric")
    if not (isinstance(metric.name, str) and re.fullmatch(r"[a-z0-9_]+", metric.name)):
        raise ConfigError(f"Metric({metric.name!r}): a name may have only lower-case letters, digits and _")
    if not isinstance(metric.unit, str) or not isinstance(metric.higher_is_better, bool):
        raise ConfigError(f"{metric}: the unit must be a text, and higher_is_better true or false")


def attributes_of(metric: Metric, target: float | None) -> dict:
    """Return the attributes of a run file for its metric and the target; for accuracy only the target."""
    if metric == ACCURACY:
        return {"target_accuracy": target}
    return {
        "metric": metric.name,
        "metric_unit": metric.unit,
        "metric_higher_is_better": metric.higher_is_better,
        "target": target,
    }


def metric_in(attributes: dict) -> Metric:
    """Return the metric in the attributes of a run file; accuracy if they name none."""
    if attributes.get("metric") is None:
        return ACCURACY
    return Metric(
        attributes["metric"], attributes.get("metric_unit", ""), attributes.get("metric_higher_is_better", False)
    )


def metric_of(run: Run) -> Metric:
    """Return the metric of a run."""
    return metric_in(run.attributes)


def metrics_of(runs) -> list[Metric]:
    """Return the metrics of several runs, each once."""
    return list(dict.fromkeys(map(metric_of, runs)))


def values_of(run: Run, end: str = "") -> np.ndarray:
    """Return the metric at each snapshot, [s], NaN if it was not measured. ``end`` "_min" or "_max" selects single
    replicas."""
    values, time = run.curve.get(metric_of(run).column + end), run.curve["time"]
    is_curve = values is not None and values.shape == time.shape and values.dtype.kind in "biuf"
    return values.astype(float) if is_curve else np.full(len(time), math.nan)


def final_of(run: Run) -> float:
    """Return the metric of the final model; NaN if it was not measured."""
    return run.attributes.get(metric_of(run).final, math.nan)


def target_of(run: Run) -> float:
    """Return the value of the metric that is to be reached; NaN if there is none."""
    name = "target_accuracy" if metric_of(run) == ACCURACY else "target"
    target = run.attributes.get(name)
    return math.nan if target is None else target


def columns_of(run: Run) -> set[str]:
    """Return the columns of the curve that belong to the metric."""
    column = metric_of(run).column
    return {column, f"{column}_min", f"{column}_max"}
