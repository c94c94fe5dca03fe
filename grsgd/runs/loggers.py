"""Loggers, which receive the numbers of a run while it trains: `CsvLogger`, `TensorBoardLogger`, or any object with the
methods of `Logger`."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Callable
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from grsgd.errors import ConfigError
from grsgd.files import atomic_write, temporary_beside
from grsgd.runs.targets import check_links, naming, target_of

if TYPE_CHECKING:  # not imported at run time: commands that only show progress need no NumPy
    from grsgd.runs.run_file import Run


class Logger(Protocol):
    """Methods that a logger must have. A logger is used on only one rank of a job."""

    def log(self, step: int, values: dict[str, float]):
        """Receive numbers that were measured after ``step`` steps of training, as a dictionary ``values`` by name."""

    def close(self):
        """Write all numbers that were received but not yet written to the logger's file or service. `log` is not called
        after `close`."""


class CsvLogger:
    """CSV file with a column ``step``, a column per logged name, and a row per call of `log`. Each row is written to
    the file immediately.

    An existing file is replaced when the first row is written. If `go_on` was called before the first row, the existing
    rows up to the step given to `go_on` are kept. A name that is logged for the first time gets a new column at the
    right, and rows without this name get an empty field. To add a column, the whole table is written to a new file in
    the folder of the old file. The new CSV file replaces the old file in one step.

    The constructor and `log` raise RunFileError if the file cannot be written.
    """

    def __init__(self, path: str | os.PathLike):
        self.path = Path(path)
        self._columns = ["step"]
        self._file = None
        with naming(self.path):
            self._target = target_of(self.path)
            if self._target.exists():
                open(self._target, "r+b").close()
            # test whether a new file can be made in the folder of the CSV file
            with temporary_beside(self._target) as temporary:
                open(temporary, "x").close()

    def go_on(self, step: int):
        """Keep the rows of an existing file up to ``step``, from which a resumed run goes on."""
        with naming(self.path):
            rows = self._rows_kept(step)
            self._columns += [name for name in rows[0] if name != "step"] if rows else []
            self._write_anew(rows)

    def log(self, step: int, values: dict[str, float]):
        row = {"step": step} | {name: float(value) for name, value in values.items()}
        more = [name for name in row if name not in self._columns]
        with naming(self.path):
            if more or self._file is None:
                rows = self._rows_kept() if self._file is not None else []
                self._columns += more
                self._write_anew([*rows, row])
            else:
                self._writer().writerow(row)
                self._file.flush()

    def close(self):
        if self._file is not None:
            self._file.close()

    def _writer(self) -> csv.DictWriter:
        return csv.DictWriter(self._file, self._columns, restval="", lineterminator="\n")

    def _rows_kept(self, last: float = math.inf) -> list[dict]:
        """Return the rows of the existing CSV file up to the step ``last``. In the file of a finished run, rows of the
        accuracy curve follow the rows of training. Rows of the curve begin with a lower step than the last row of
        training, and are left out."""
        with open(self._target, newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        return rows if last == math.inf else list(takewhile(goes_up(last), rows))

    def _write_anew(self, rows: list[dict]):
        """Write the table anew with ``rows``, and keep the file open for further rows."""
        if self._file is not None:
            self._file.close()
        with (
            atomic_write(self._target) as temporary,
            open(temporary, "w", newline="", encoding="utf-8") as self._file,
        ):
            self._writer().writeheader()
            self._writer().writerows(rows)
        self._file = open(self._target, "a", newline="", encoding="utf-8")  # noqa: SIM115, close() closes it


def goes_up(last: float) -> Callable[[dict], bool]:
    """Return a function that must be called with each row of a CSV file, in order. The returned function tells whether
    the row's step is not below the previous row's step, and not above ``last``."""
    before = -math.inf

    def is_next(row: dict) -> bool:
        nonlocal before
        try:
            step, before = before, float(row["step"])
        except (KeyError, TypeError, ValueError):
            return False
        return step <= before <= last

    return is_next


def begin(logger: Logger):
    """Tell a logger that training begins, if the logger has a method ``begin()``."""
    getattr(logger, "begin", lambda: None)()


def go_on(logger: Logger, step: int):
    """Tell a logger that the run goes on after ``step``, if the logger has a method ``go_on(step)``."""
    getattr(logger, "go_on", lambda step: None)(step)


def conclude(logger: Logger, run: Run):
    """Give the finished run to a logger, if the logger has a method ``conclude(run)``."""
    getattr(logger, "conclude", lambda run: None)(run)


class TensorBoardLogger:
    """Logger that writes event files for ``tensorboard --logdir FOLDER``, with one scalar per name. The event files are
    written every 5 s.

    A value is left out if its step is below the last logged step of its name, because TensorBoard's line would go
    backwards.

    Raises ConfigError if the package ``tensorboard`` is not installed, RunFileError if the folder cannot be written.
    """

    def __init__(self, folder: str | os.PathLike):
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ConfigError(
                "writing for TensorBoard needs the package tensorboard: pip install tensorboard"
            ) from None
        self._steps: dict[str, int] = {}
        self._make_writer = partial(SummaryWriter, os.fspath(folder), flush_secs=5)
        with naming(folder):
            check_links(Path(os.path.abspath(folder)))
            self._writer = self._make_writer()

    def go_on(self, step: int):
        """Make TensorBoard ignore values that were logged after ``step``, from which a resumed run goes on."""
        self._writer.close()
        self._writer = self._make_writer(purge_step=step + 1)

    def log(self, step: int, values: dict[str, float]):
        for name, value in values.items():
            if step >= self._steps.get(name, step):
                self._steps[name] = step
                self._writer.add_scalar(name, float(value), step)

    def close(self):
        self._writer.close()


def log_curve(run: Run, logger):
    """Pass the known values at each snapshot of a finished run's curve to ``logger``."""
    curve, known = run.curve, run.attributes.get("train_samples")
    for at, step in enumerate(curve["step"]):
        values = {"seconds" if name == "time" else name: column[at] for name, column in curve.items() if name != "step"}
        if known:
            values["epoch"] = values["samples"] / known
        logger.log(int(step), {name: value for name, value in values.items() if not math.isnan(value)})
