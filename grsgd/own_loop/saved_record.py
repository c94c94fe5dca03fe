"""Record of a loop in the optimizer's ``state_dict()``, with which the recording of a later training goes on."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from grsgd.errors import ConfigError
from grsgd.own_loop.loop_record import LoggedValues, LoopMeasurements

KEY = "grsgd_recording"
"""Key of the record in a ``state_dict()``, next to the keys of the wrapped optimizer."""


class SavedRecord:
    """One rank's measurements of a recorded loop, which the optimizer's ``state_dict()`` includes."""

    def __init__(self):
        self._loaded: dict | None = None
        self._state: Callable[[], dict] = dict

    def begin(self, name: str, rank: int, ranks: int, record: Callable[[], LoopMeasurements]):
        """Include the result of ``record()`` in each later result of `state`, as the record for the run file called
        ``name``."""
        self._state = lambda: {KEY: {"file": name, "rank": rank, "ranks": ranks} | state_of(record())}

    def end(self):
        """Note the end of a recording. Each later result of `state` includes the record at this time."""
        last = self._state()
        self._state = lambda: last

    def state(self) -> dict:
        """Return the entries that the record adds to a ``state_dict()``. Return no entries if nothing was recorded."""
        return self._state()

    def load(self, state_dict: dict):
        """Remove the record from ``state_dict``, which is about to be loaded, and keep the record for `before`."""
        self._loaded = state_dict.pop(KEY, None)

    def before(self, path: Path, rank: int, ranks: int) -> LoopMeasurements:
        """Return the record that a recording to ``path`` continues. Return an empty record if no record for a file of
        this name was loaded.

        Raises ConfigError if the loaded record is of another rank, or of a job with another number of ranks.
        """
        kept = self._loaded
        if kept is None or kept["file"] != path.name:
            return LoopMeasurements.of_beginning()
        if (kept["rank"], kept["ranks"]) != (rank, ranks):
            raise ConfigError(
                f"recording(): {path} is the file of the run that this run goes on from, of rank {kept['rank']} of "
                f"{kept['ranks']}, and this is rank {rank} of {ranks}: name another file"
            )
        return record_of(kept)


def state_of(record: LoopMeasurements) -> dict:
    """Return ``record`` as a dictionary of tensors and other values that ``torch.load(..., weights_only=True)``
    reads."""
    steps = sorted(record.rows)
    names = sorted({name for row in record.rows.values() for name in row.values})
    logged = {name: [step for step in steps if name in record.rows[step].values] for name in names}
    measured = record.measured.items()
    return {
        "steps": torch.tensor(steps, dtype=torch.int64),
        "times": torch.tensor([record.rows[step].time for step in steps], dtype=torch.float64),
        "samples": torch.tensor([record.rows[step].samples for step in steps], dtype=torch.int64),
        "values": {
            name: (
                torch.tensor(places, dtype=torch.int64),
                torch.tensor([record.rows[step].values[name] for step in places], dtype=torch.float64),
            )
            for name, places in logged.items()
        },
        "progress": torch.tensor(record.progress, dtype=torch.float64),
        "elapsed": float(record.elapsed),
        "measured": {name: value if isinstance(value, int) else float(value) for name, value in measured},
        "traffic": torch.from_numpy(record.traffic),
        "sent_once": int(record.sent_once),
        "staleness": {int(age): int(count) for age, count in record.staleness.items()},
        "left_out": int(record.left_out),
        "warnings": list(record.warnings),
        "interface": torch.from_numpy(np.asarray(record.interface, float)),
    }


def record_of(kept: dict) -> LoopMeasurements:
    """Return the record from which `state_of` has made ``kept``."""
    rows = {
        step: LoggedValues(time, samples, {})
        for step, time, samples in zip(*(kept[name].tolist() for name in ("steps", "times", "samples")), strict=True)
    }
    for name, (steps, values) in kept["values"].items():
        for step, value in zip(steps.tolist(), values.tolist(), strict=True):
            rows[step].values[name] = value
    return LoopMeasurements(
        rows,
        [(time, int(steps), int(samples)) for time, steps, samples in kept["progress"].tolist()],
        kept["elapsed"],
        kept["measured"],
        kept["traffic"].numpy(),
        kept["sent_once"],
        kept["staleness"],
        kept["warnings"],
        kept["interface"].numpy(),
        kept.get("left_out", 0),
    )
