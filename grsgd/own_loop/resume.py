"""The state of its algorithm that a distributed optimizer keeps in its ``state_dict()``, and goes on from."""

import numpy as np
import torch

from grsgd.algorithms.base import Algorithm
from grsgd.errors import ConfigError
from grsgd.models.values import value_of

KEY = "grsgd"
"""Where it stands, beside the keys of the wrapped optimizer."""


def state_of(algorithm: Algorithm) -> dict:
    """Return the state of an algorithm between two steps, while no message of it is under way: tensors, and what
    ``torch.load(..., weights_only=True)`` reads."""
    comm = algorithm.comm
    return {
        "algorithm": algorithm.name,
        "rank": comm.rank,
        "ranks": comm.size,
        "state": {name: as_tensor(value_of(value)) for name, value in algorithm.state().items()},
        "random": algorithm.rng.bit_generator.state,
    }


def check(kept: dict, algorithm: Algorithm):
    """Raise ConfigError for the state of another algorithm, or of another rank."""
    comm = algorithm.comm
    if kept["algorithm"] != algorithm.name:
        raise ConfigError(f"state_dict of {kept['algorithm']}, for {algorithm.name}: {ANEW}")
    if (kept["rank"], kept["ranks"]) != (comm.rank, comm.size):
        was = f"rank {kept['rank']} of {kept['ranks']}"
        raise ConfigError(f"state_dict of {was}, on rank {comm.rank} of {comm.size}: give each rank its own, or {ANEW}")


ANEW = f'remove its key "{KEY}" to begin the algorithm anew'


def restore(algorithm: Algorithm, kept: dict):
    """Put an algorithm that has started, and taken no step, into a state.

    Raises ConfigError for a state that the algorithm does not have with its options.
    """
    try:
        algorithm.restore({name: as_array(value) for name, value in kept["state"].items()})
    except AttributeError as error:
        raise ConfigError(f"state_dict of {algorithm.name} with other options ({error}): {ANEW}") from None
    algorithm.rng.bit_generator.state = kept["random"]


def as_tensor(value):
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value


def as_array(value):
    return value.numpy() if isinstance(value, torch.Tensor) else value
