"""Check of whether simulated ranks fit into memory."""

from grsgd.errors import ConfigError
from grsgd.memory import available
from grsgd.runs.numbers import human_bytes

RANK_BYTES = 400_000
"""Number of bytes of the Python objects of a simulated rank. The rank's model, and its counters of traffic to each
other rank, are not included."""


def check_memory(ranks: int, model_bytes: int, said: str = ""):
    """Raise ConfigError if ``ranks`` ranks do not fit into this machine's memory. ``said``: the option that asks for
    this number of ranks."""
    needed = ranks * (model_bytes + RANK_BYTES) + 50 * ranks**2
    there = available()
    if needed > there:
        advice = "fewer ranks" if not model_bytes else "fewer ranks, a smaller model, or --timing-only"
        asked = said or f"--ranks {ranks}"
        raise ConfigError(
            f"{asked}: about {human_bytes(needed)} of memory are needed, and {human_bytes(there)} are free: {advice}"
        )
