"""Check whether the simulated ranks of a run fit into this machine's memory."""

from grsgd.errors import ConfigError
from grsgd.memory import available
from grsgd.runs.numbers import human_bytes

RANK_BYTES = 400_000
"""Bytes of memory that the Python objects of a simulated rank take. `RANK_BYTES` includes neither the rank's model nor
its counters of the traffic to each other rank."""


def check_memory(ranks: int, model_bytes: int, said: str = ""):
    """Raise ConfigError if ``ranks`` ranks do not fit into this machine's memory. ``said`` is the user's
    option that sets ``ranks``, for the error's message."""
    needed = ranks * (model_bytes + RANK_BYTES) + 50 * ranks**2
    there = available()
    if needed > there:
        advice = "fewer ranks" if not model_bytes else "fewer ranks, a smaller model, or --timing-only"
        asked = said or f"--ranks {ranks}"
        raise ConfigError(
            f"{asked}: about {human_bytes(needed)} of memory are needed, and {human_bytes(there)} are free: {advice}"
        )
