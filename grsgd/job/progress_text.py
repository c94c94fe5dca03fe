"""Text of the progress line, shortened to the width of the terminal."""

import math
from typing import NamedTuple


class LinePart(NamedTuple):
    """Text that is one part of the progress line. If the terminal is too narrow, the parts with the greatest ``rank``
    (order of omission) are left out first."""

    text: str
    rank: int


class Status(NamedTuple):
    """State of a run, for the progress line and for loggers. Unknown values of the state are None."""

    share: float | None
    """Completed share of the run, from 0 to 1."""
    step: int
    """Number of steps that this rank has completed."""
    samples: int
    """Number of samples that all ranks together have processed."""
    epoch: float
    loss: float | None
    samples_per_second: float
    """Number of samples of all ranks per second since training began, or per simulated second if time is simulated."""
    waiting: float
    """Share of this rank's time in which it has waited."""
    left: float | None
    """Estimated seconds of real time until the end of the run."""
    seconds: float
    """Seconds since training began, or simulated seconds if time is simulated."""
    is_simulated: bool = False

    def numbers(self) -> dict[str, float]:
        """Return the numbers of this state that go into a log file, as a dictionary by name. Unknown numbers of the
        state are left out."""
        names = ("seconds", "samples", "epoch", "loss", "samples_per_second", "waiting")
        return {name: float(getattr(self, name)) for name in names if getattr(self, name) is not None}


def parts(status: Status) -> list[LinePart]:
    """Return the parts of the progress line, in their order on the line."""
    simulated = status.is_simulated
    rate = f"{status.samples_per_second:,.0f} samples" + (" per simulated s" if simulated else "/s")
    return [
        *([LinePart(f"{math.floor(100 * status.share)} %", 0)] if status.share is not None else []),
        LinePart(f"epoch {status.epoch:.1f}", 3),
        *([LinePart(f"loss {loss_text(status.loss)}", 2)] if status.loss is not None else []),
        *([LinePart(f"{status.seconds:.3g} simulated s", 4)] if simulated else []),
        LinePart(rate, 5),
        LinePart(f"waiting {100 * status.waiting:.0f} %", 6),
        *([LinePart(f"{duration(status.left)} left", 1)] if status.left is not None else []),
    ]


def loss_text(loss: float) -> str:
    """Return ``loss`` as text with two decimals, or with two significant digits if the loss is small or huge."""
    return f"{loss:.2f}" if 0.095 <= loss < 1e4 else f"{loss:.2g}"


def duration(seconds: float) -> str:
    """Return a duration as text in a suitable unit, from "s" to "days"."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    if seconds < 99.5 * 60:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.1f} days"


def line(parts: list[LinePart], name: str = "", width: float = math.inf) -> str:
    """Return ``name`` and ``parts`` as a line of at most ``width`` characters. Parts of the line that do not fit into
    ``width`` characters are left out."""
    beginning = f"{name}: " if name else ""
    left = list(parts)
    while left:
        text = ", ".join(part.text for part in left)
        if len(beginning + text) <= width:
            return beginning + text
        if len(left) == 1 and len(text) <= width:
            return text
        left.remove(max(left, key=lambda part: part.rank))
    return ""
