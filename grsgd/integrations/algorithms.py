"""Checks of the algorithms that the loops of other libraries can run: each rank computes one gradient per step, on its
own data."""

from grsgd.algorithms.base import ALGORITHMS
from grsgd.errors import ConfigError
from grsgd.own_loop.distribute import OWN_OPTIONS, algorithm_of, options_of


def names() -> list[str]:
    """Return the names of the algorithms that the loops of other libraries can run."""
    found = {name: cls.traits for name, cls in ALGORITHMS.items()}
    return sorted(name for name, of in found.items() if of.supports_own_loop and not of.decides_who_computes)


def check(name: str):
    """Raise ConfigError if the loop of another library cannot run the algorithm called ``name``."""
    if algorithm_of(name).traits.decides_who_computes:
        raise ConfigError(
            f"algorithm {name!r} decides which rank computes which gradient, and the loop of another library cannot "
            f"follow this decision: write a loop of your own, or use one of {', '.join(names())}"
        )


def waits_in_steps(name: str, options: dict) -> bool:
    """Return whether the other ranks would wait for the model of a rank that skips a step.

    ``options`` are options of the algorithm called ``name`` and of `grsgd.distribute`. Raises ConfigError for options
    that the algorithm does not take.
    """
    cls = algorithm_of(name)
    traits = cls.traits_of(options_of(cls, {key: value for key, value in options.items() if key not in OWN_OPTIONS}))
    return traits.synchronous and not traits.sends_gradients
