"""Reading and writing of rates and times with units, such as ``25gbit`` and ``50us``, in the notation of Linux's ``tc``
and of network files."""

import math
import re

RATES = {"bit": 1, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9, "tbit": 1e12}
TIMES = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}


def quantity(text: str, units: dict[str, float], what: str) -> float:
    """Return the value of ``text``, a number with one of ``units``, in the base unit (bit/s or second). Raises
    ValueError for any other text; ``what`` names the quantity in the error's message."""
    match = re.fullmatch(r"\s*([-+]?[\d.]+(?:e[-+]?\d+)?|inf)\s*([a-z]*)\s*", str(text), re.IGNORECASE)
    allowed = ", ".join(units)
    if not match:
        raise ValueError(f"{what} {text!r}: not a number with a unit ({allowed})")
    number, unit = match.groups()
    if not unit:
        raise ValueError(f"{what} {text!r}: no unit; allowed: {allowed}")
    if unit.lower() not in units:
        raise ValueError(f"{what} {text!r}: unknown unit {unit!r}; allowed: {allowed}")
    try:
        return float(number) * units[unit.lower()]
    except ValueError:
        raise ValueError(f"{what} {text!r}: {number!r} is not a number") from None


def rate(text: str) -> float:
    """Return the rate in bytes per second of a text such as ``"25gbit"``, which is in bits per second. 1 kbit is 1000
    bit, as in Linux's ``tc``."""
    value = quantity(text, RATES, "rate") / 8
    if not value > 0:
        raise ValueError(f"rate {text!r}: must be positive")
    return value


def duration(text: str) -> float:
    """Return the number of seconds of a text such as ``"50us"``."""
    value = quantity(text, TIMES, "time")
    if not 0 <= value < math.inf:
        raise ValueError(f"time {text!r}: must be 0 or more, and finite")
    return value


def in_units(value: float, units: dict[str, float]) -> str:
    """Return ``value``, a number in the base unit (bit/s or second), as a text of up to four digits with a fitting
    unit, such as ``"3.21gbit"``."""
    unit = max((unit for unit in units if units[unit] <= value), key=units.get, default=min(units, key=units.get))
    number = value / units[unit]
    return (f"{number:.0f}" if number >= 1000 else f"{number:.4g}") + unit


def as_rate(bytes_per_second: float) -> str:
    """Return the rate ``bytes_per_second`` as a text that `rate` reads, such as ``"25gbit"``."""
    return in_units(bytes_per_second * 8, RATES)


def as_duration(seconds: float) -> str:
    """Return the time ``seconds`` as a text that `duration` reads, such as ``"50us"``."""
    return in_units(seconds, TIMES)
