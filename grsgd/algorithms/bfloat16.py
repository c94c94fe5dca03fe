"""Check of whether an algorithm can train models of bfloat16."""

from __future__ import annotations

from grsgd.algorithms.base import ALGORITHMS, Algorithm, Options
from grsgd.comm.allreduce.bfloat16 import VARIANTS
from grsgd.errors import ConfigError


def check_bfloat16(algorithm: type[Algorithm], options: Options):
    """Raise ConfigError if ``algorithm`` with these ``options`` cannot train models whose parameters are of
    bfloat16."""
    if not algorithm.traits.trains_bfloat16:
        allowed = ", ".join(sorted(name for name, cls in ALGORITHMS.items() if cls.traits.trains_bfloat16))
        raise ConfigError(
            f"dtype bfloat16 with {algorithm.name}: only {allowed} train models of 16 bits; allowed for "
            f"{algorithm.name}: float32, float64, and in `grsgd train` gradient.autocast = bfloat16 with float32"
        )
    for option, allowed in (("variant", VARIANTS), ("compression", (None,))):
        value = getattr(options, option, None)
        if value is not None and value not in allowed:
            names = ", ".join(name or "none" for name in allowed)
            raise ConfigError(f"dtype bfloat16 with the option {option} = {value!r}; allowed with bfloat16: {names}")
