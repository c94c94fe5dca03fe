"""Checks that decide whether an algorithm can train models whose parameters are of bfloat16, or of several dtypes."""

from __future__ import annotations

from grsgd.algorithms.base import ALGORITHMS, Algorithm, Options
from grsgd.comm.allreduce.bfloat16 import VARIANTS
from grsgd.errors import ConfigError
from grsgd.lazy import LazyModule

torch = LazyModule("torch")


def check_bfloat16(algorithm: type[Algorithm], options: Options):
    """Raise ConfigError if ``algorithm`` with ``options`` cannot exchange arrays of bfloat16."""
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


def exchanged_dtype(
    parameters: list[torch.nn.Parameter], algorithm: type[Algorithm], options: Options
) -> torch.dtype | None:
    """Return the dtype of the arrays that ``algorithm`` exchanges in a user's own training loop, or None for the widest
    dtype of the trained ``parameters``.

    The returned dtype is float32 if parameters are of bfloat16 and ``algorithm`` cannot exchange arrays of bfloat16.
    Raises ConfigError if the algorithm cannot train parameters whose dtype is narrower than the dtype of the exchanged
    arrays.
    """
    dtypes, on_gpu = {p.dtype for p in parameters}, any(p.is_cuda for p in parameters)
    traits = algorithm.traits_of(options)
    takes_narrow = not (traits.decides_who_computes or traits.sends_early)
    if dtypes == {torch.bfloat16}:
        try:
            check_bfloat16(algorithm, options)
        except ConfigError:
            if not takes_narrow:
                raise
            return torch.float32
        return torch.float32 if on_gpu and takes_narrow else None
    if len(dtypes) > 1 and not takes_narrow:
        found = ", ".join(sorted(str(dtype) for dtype in dtypes))
        named = "the option buckets" if traits.sends_early else algorithm.name
        raise ConfigError(f"trained parameters of several dtypes with {named}: allowed: one dtype; found {found}")
    return None
