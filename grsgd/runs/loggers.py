"""Where the numbers of a run go while it goes on: a CSV file, TensorBoard, or any object with the same two methods."""

from __future__ import annotations

import csv
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from grsgd.errors import ConfigError, RunFileError
from grsgd.files import atomic_write

if TYPE_CHECKING:  # a command that only shows progress needs no NumPy
    from grsgd.runs.run_file import Run


class Logger(Protocol):
    """A logger, which takes numbers while a run goes on, on one rank."""

    def log(self, step: int, values: dict[str, float]):
        """Take numbers by name, as they are after ``step`` steps."""

    def close(self):
        """Write what is not written yet; nothing may be logged after this."""


class CsvLogger:
    """A CSV file with a column ``step``, one more for each name, and a row a call, which is in the file at once.

    A file that is there is replaced. A name that was not there before gets a column at the right; rows that lack a
    name have an empty field. Then the file is written anew, beside its place and moved there in one step.

    Raises RunFileError, here and in `log`, if the file cannot be written.
    """

    def __init__(self, path: str | os.PathLike):
        self.path = Path(path)
        self._columns = ["step"]
        self._file = None
        self._write_anew([])

    def log(self, step: int, values: dict[str, float]):
        row = {"step": step} | {name: float(value) for name, value in values.items()}
        if more := [name for name in row if name not in self._columns]:
            with open(self.path, newline="", encoding="utf-8") as file:
                rows = list(csv.DictReader(file))
            self._columns += more
            self._write_anew([*rows, row])
            return
        try:
            self._rows().writerow(row)
            self._file.flush()
        except OSError as error:
            raise self._error(error) from None

    def close(self):
        if self._file is not None:
            self._file.close()
            self._file = None

    def _rows(self) -> csv.DictWriter:
        return csv.DictWriter(self._file, self._columns, restval="", lineterminator="\n")

    def _write_anew(self, rows: list[dict]):
        """Write all rows under the columns that there are now, and keep the file open for more."""
        self.close()
        target = Path(os.path.realpath(self.path))
        try:
            with atomic_write(target) as temporary, open(temporary, "w", newline="", encoding="utf-8") as self._file:
                self._rows().writeheader()
                self._rows().writerows(rows)
            self._file = open(target, "a", newline="", encoding="utf-8")  # noqa: SIM115, close() closes it
        except OSError as error:
            raise self._error(error) from None

    def _error(self, error: OSError) -> RunFileError:
        return RunFileError(f"{self.path}: {error.strerror or error}")


class TensorBoardLogger:
    """Event files for ``tensorboard --logdir FOLDER``, a scalar for each name; written every few seconds.

    The steps of a name only go up: what is logged for an earlier one than before is left out, as a line drawn through
    it would go back and forth.

    Raises ConfigError if the package ``tensorboard`` is not installed, RunFileError if the folder cannot be written.
    """

    def __init__(self, folder: str | os.PathLike):
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ConfigError(
                "writing for TensorBoard needs the package tensorboard: pip install tensorboard"
            ) from None
        try:
            self._steps: dict[str, int] = {}
            self._writer = SummaryWriter(os.fspath(folder), flush_secs=5)
        except OSError as error:
            raise RunFileError(f"{os.fspath(folder)}: {error.strerror or error}") from None

    def log(self, step: int, values: dict[str, float]):
        for name, value in values.items():
            if step >= self._steps.get(name, step):
                self._steps[name] = step
                self._writer.add_scalar(name, float(value), step)

    def close(self):
        self._writer.close()


def log_curve(run: Run, logger):
    """Log the snapshots of a run, as they were evaluated after training: what is known of each."""
    curve, known = run.curve, run.attributes.get("train_samples")
    for at, step in enumerate(curve["step"]):
        values = {"seconds" if name == "time" else name: column[at] for name, column in curve.items() if name != "step"}
        if known:
            values["epoch"] = values["samples"] / known
        logger.log(int(step), {name: value for name, value in values.items() if not math.isnan(value)})
