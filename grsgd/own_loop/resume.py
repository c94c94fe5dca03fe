"""Saving, checking and loading of an algorithm's state in the ``state_dict()`` of its distributed optimizer."""

import warnings

import numpy as np
import torch

from grsgd.algorithms.base import Algorithm
from grsgd.algorithms.lifecycle import Lifecycle
from grsgd.errors import ConfigError
from grsgd.models.digests import digests
from grsgd.models.flat import host_array, host_tensor
from grsgd.models.replica import Replica
from grsgd.models.values import value_of

KEY = "grsgd"
"""Key of the algorithm's state in a ``state_dict()``, next to the keys of the wrapped optimizer."""


class SavedAlgorithm:
    """State of one rank's algorithm, as a part of the optimizer's ``state_dict()``."""

    def __init__(self, lifecycle: Lifecycle):
        self.lifecycle, self.algorithm = lifecycle, lifecycle.algorithm
        self._has_warned = False
        self._loaded: dict | None = None
        """The loaded state of the algorithm, if the model differs from the model at the time of saving; else None. The
        next step compares the models again, because the script may load the model after the state."""

    def state(self, is_at_rest: bool, has_finished: bool) -> dict:
        """Return the entries that the algorithm adds to a ``state_dict()``. Before the first step there are no entries.

        ``is_at_rest`` says whether no message of the algorithm is under way. If the state cannot be saved now, the
        first call warns and tells the user what to do.
        """
        reason = why_not(self.algorithm, is_at_rest)
        if not self.lifecycle.has_started or (reason is not None and has_finished):
            return {}
        if reason is None:
            return {KEY: state_of(self.algorithm)}
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(f"state_dict() without the algorithm's state: {reason}", RuntimeWarning, stacklevel=5)
        return {KEY: without(self.algorithm, reason)}

    def take(self, state_dict: dict, is_at_rest: bool) -> dict | None:
        """Remove the algorithm's state from ``state_dict``, which is about to be loaded, and return the state. Raises
        the errors of `check`, and RuntimeError if messages are under way."""
        kept = state_dict.pop(KEY, None)
        if kept is not None:
            check(kept, self.algorithm)
            if not is_at_rest:
                raise RuntimeError("load_state_dict() while messages are under way: call optimizer.rest() on all ranks")
        return kept

    def load(self, kept: dict | None, driver):
        """Continue from ``kept``, the state that `take` has returned. Do nothing if ``kept`` is None."""
        self._loaded = None
        if kept is None:
            return
        driver.run(self.lifecycle.start())
        restore(self.algorithm, kept)
        others = other_options(kept, self.algorithm)
        if others and self.algorithm.comm.rank == 0:  # one warning is enough, because all ranks have the same options
            was = ", ".join(others)
            warnings.warn(f"state_dict of {self.algorithm.name} with {was}", RuntimeWarning, stacklevel=5)
        self._loaded = kept if other_tensors(kept, self.algorithm.replica) else None

    def check_model(self):
        """Compare the model with the model at the time of saving, if a state was loaded. Raises ConfigError if the two
        models differ."""
        if self._loaded is not None:
            kept, self._loaded = self._loaded, None
            check_model(kept, self.algorithm.replica)


def state_of(algorithm: Algorithm) -> dict:
    """Return the state of an algorithm between two steps, while none of its messages is under way. The state consists
    of tensors and other values that ``torch.load(..., weights_only=True)`` reads."""
    comm, state = algorithm.comm, algorithm.state()
    if algorithm.replica.narrow:  # the array has more bits per value than the parameters
        state["x"] = algorithm.x
    return {
        "algorithm": algorithm.name,
        "rank": comm.rank,
        "ranks": comm.size,
        "options": algorithm.options.model_dump(mode="json"),
        "digests": torch.from_numpy(digests(algorithm.replica.tensors().values())),
        "state": {name: as_tensor(value_of(value)) for name, value in state.items()},
        "random": algorithm.rng.bit_generator.state,
    }


def without(algorithm: Algorithm, why: str) -> dict:
    """Return an entry that takes the place of the algorithm's state if the state cannot be saved. ``why`` tells the
    user what to do. `check` raises ConfigError for an entry from this function."""
    return {"algorithm": algorithm.name, "without": why}


def why_not(algorithm: Algorithm, is_at_rest: bool) -> str | None:
    """Return why the state of an algorithm cannot be saved now, and what to do. Return None if the state can be
    saved."""
    if algorithm.remembers is None:
        return (
            f"the class of {algorithm.name} does not say which attributes its next steps depend on: list their names "
            "in `remembers`, or () if there are none"
        )
    if not is_at_rest:
        return f"messages of {algorithm.name} are under way: call optimizer.rest() on all ranks before state_dict()"
    return None


def check(kept: dict, algorithm: Algorithm):
    """Raise ConfigError if ``kept`` is the state of another algorithm or of another rank, or an entry of `without`."""
    comm = algorithm.comm
    if kept["algorithm"] != algorithm.name:
        raise ConfigError(f"state_dict of {kept['algorithm']}, for {algorithm.name}: {ANEW}")
    if "without" in kept:
        raise ConfigError(f"state_dict without the algorithm's state ({kept['without']}): save it anew, or {ANEW}")
    if (kept["rank"], kept["ranks"]) != (comm.rank, comm.size):
        was = f"rank {kept['rank']} of a job with {kept['ranks']} ranks"
        here = f"loaded on rank {comm.rank} of a job with {comm.size} ranks"
        raise ConfigError(f"state_dict of {was}, {here}: load on each rank its own, or {ANEW}")


ANEW = f'remove its key "{KEY}" to begin the algorithm anew'


def restore(algorithm: Algorithm, kept: dict):
    """Set the state of an algorithm to the saved state ``kept``. The algorithm must have started, but must not have
    taken a step.

    Raises ConfigError if the saved state does not fit the algorithm's present options.
    """
    try:
        algorithm.restore({name: as_array(value) for name, value in kept["state"].items()})
    except (AttributeError, ValueError) as error:
        raise ConfigError(f"state_dict of {algorithm.name} with other options ({error}): {ANEW}") from None
    algorithm.rng.bit_generator.state = kept["random"]


def other_options(kept: dict, algorithm: Algorithm) -> list[str]:
    """Return a text for each option of the algorithm whose value differs from the value at the time of saving. The
    variant of the all-reduce is not compared."""
    was, now = kept.get("options", {}), algorithm.options.model_dump(mode="json")
    return [
        f"{name} = {was[name]!r}, here {now[name]!r}"
        for name in was.keys() & now.keys() - {"variant"}
        if was[name] != now[name]
    ]


def other_tensors(kept: dict, replica: Replica) -> list[str]:
    """Return the names of the model's tensors that differ from the tensors at the time of saving.

    Returns no names if ``kept`` has no digests of the model's tensors, because an old version of grsgd has saved the
    state.
    """
    tensors = replica.tensors()
    found, saved = digests(tensors.values()).tolist(), kept["digests"].tolist() if "digests" in kept else None
    if saved is None or found == saved:
        return []
    if len(found) != len(saved):
        return list(tensors)
    return [name for name, mine, other in zip(tensors, found, saved, strict=True) if mine != other]


def check_model(kept: dict, replica: Replica):
    """Raise ConfigError if the present model differs from the model at the time of saving the state ``kept``."""
    others = other_tensors(kept, replica)
    if others:
        raise ConfigError(
            f"{others[0]!r} has changed since the optimizer's state_dict was saved: distribute() gives all ranks "
            f"the model of rank 0, so after distribute() load each rank's own model, then the state_dict; or {ANEW}"
        )


def as_tensor(value):
    return host_tensor(value) if isinstance(value, np.ndarray) else value


def as_array(value):
    return host_array(value) if isinstance(value, torch.Tensor) else value
