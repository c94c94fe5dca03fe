"""The memory that simulated ranks take."""

from grsgd.errors import ConfigError
from grsgd.memory import available
from grsgd.runs.numbers import human_bytes

RANK_BYTES = 400_000
"""Memory of a rank beside its model: objects, and counters of traffic to every other one come on top."""


def check_memory(ranks: int, model_bytes: int, said: str = ""):
    """Raise ConfigError if so many ranks do not fit into this machine. ``said``: the words that ask for them."""
    needed = ranks * (model_bytes + RANK_BYTES) + 50 * ranks**2
    there = available()
    if needed > there:
        advice = "fewer ranks" if not model_bytes else "fewer ranks, a smaller model, or --timing-only"
        asked = said or f"--ranks {ranks}"
        raise ConfigError(
            f"{asked}: about {human_bytes(needed)} of memory are needed, and {human_bytes(there)} are free: {advice}"
        )
