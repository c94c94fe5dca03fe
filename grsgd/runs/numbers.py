"""Functions that format numbers as text, for tables and other output."""

import math
from collections.abc import Callable, Sequence

import numpy as np

UNKNOWN = "—"


def number(value: float) -> str:
    """Return a number as text with two decimals below 10, one decimal below 1000, and no decimals above: 0.12, 12.3,
    1234."""
    return f"{value:.{0 if value >= 1000 else 1 if value >= 10 else 2}f}"


def whole(value: float) -> str:
    return f"{value:.0f}"


def per_cent(value: float) -> str:
    """Return a fraction in per cent as text with two decimals: 0.9312 -> "93.12"."""
    return f"{100 * value:.2f}"


def share(value: float) -> str:
    """Return a fraction in per cent as text with one decimal: 0.931 -> "93.1"."""
    return f"{100 * value:.1f}"


def significant(value: float) -> str:
    return f"{value:.3g}"


def human_bytes(value: float) -> str:
    """Return a number of bytes as text in a suitable binary unit: 1536 -> "1.50 KiB"."""
    unit, size = byte_unit(value)
    return f"{value / size:.{2 if size > 1 else 0}f} {unit}"


def byte_unit(value: float) -> tuple[str, int]:
    """Return the binary unit that suits a number of bytes, and its size in bytes: 1536 -> ("KiB", 1024)."""
    units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]
    power = min(int(math.log2(value) // 10), len(units) - 1) if value >= 1 else 0
    return units[power], 1024**power


def known_values(values: Sequence[float]) -> list[float]:
    """Return a list of the ``values`` that are not NaN."""
    return [float(value) for value in values if not math.isnan(value)]


def median_and_range(values: Sequence[float], text: Callable[[float], str]) -> str:
    """Return one value as text, or the median and range of several values. ``text`` is the function that formats a
    number. If some values are unknown, the result says how many values are known."""
    known = known_values(values)
    if not known:
        return UNKNOWN
    shown = [text(value) for value in (float(np.median(known)), min(known), max(known))]
    result = shown[0] if len(set(shown)) == 1 else f"{shown[0]} ({shown[1]}–{shown[2]})"
    return result if len(known) == len(values) else f"{result}, {len(known)} of {len(values)}"
