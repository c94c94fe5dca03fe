"""Base class of optimizers whose state is saved and loaded together with the state of the algorithm."""

import numpy as np

from grsgd.comm.allreduce import halving_doubling_allreduce
from grsgd.own_loop.tracing import untraced
from grsgd.own_loop.wrapping import WrappingOptimizer

INSTEAD = (
    "save averaged_model() and state_dict(algorithm=False) on one rank: a later job begins from the two, on any number "
    "of "
    "ranks; or give surviving() a folder for checkpoints"
)
"""Advice to the user in a loop over `surviving`, where a script cannot save the state of the algorithm itself."""


class SavingOptimizer(WrappingOptimizer):
    """Wrapping optimizer with the calls for saving and loading. `DistributedOptimizer` is derived from this class."""

    @untraced
    def rest(self):
        """Receive all messages under way, so that `state_dict` is complete. All ranks must call this method between two
        steps.

        Asynchronous algorithms, ``sgp`` with ``tau``, and ``diloco`` with ``delay`` need this call before `state_dict`.
        With algorithms other than these, `rest` does nothing. Training goes on with the next step.
        """
        self._check()
        self.loop.refuse("rest()", INSTEAD)
        if not self._is_at_rest:
            self.meet("in rest()")
            self.driver.run(self.loop.lifecycle.rest())
            self.replica.settle()
            self.driver.run(halving_doubling_allreduce(self._uncounted_comm, np.zeros(1)))

    @untraced
    def state_dict(self, *, algorithm: bool = True):
        """Return the wrapped optimizer's state_dict, with this rank's state of the algorithm under the key "grsgd".

        With ``algorithm=False``, the dictionary has no key "grsgd". From a dictionary without this key and from
        `averaged_model`, a new training can begin with any number of ranks, or with another algorithm.

        The algorithm has no complete state while messages are under way, or if the algorithm's class has no
        `remembers`. If the state is not complete, one warning says what to do, and `load_state_dict` will refuse the
        dictionary. The key "grsgd" is missing before the first step. With algorithms that need `rest`, the key is
        missing after `finish`, too. Raises RuntimeError in a loop over `surviving`, unless ``algorithm`` is False.
        """
        if algorithm and not self.finished:
            self.loop.refuse("state_dict() with the algorithm's state", INSTEAD)
        saved = self._saved.state(self._is_at_rest, self.finished) if algorithm else {}
        return self.optimizer.state_dict() | self.recorded.state() | saved

    @untraced
    def load_state_dict(self, state_dict):
        """Load a `state_dict` that this rank has saved. Load the model separately, at any time after `distribute`.

        Raises ConfigError if ``state_dict`` is of another algorithm or rank, or lacks the algorithm's state. Raises
        RuntimeError if messages are under way on this rank; a call of `rest` receives these messages. The next step
        raises ConfigError if the model differs from the model at the time of saving.
        """
        self.loop.refuse("load_state_dict()", "let it precede surviving(), with a state_dict(algorithm=False)")
        state_dict = dict(state_dict)
        self.recorded.load(state_dict)
        kept = self._saved.take(state_dict, self._is_at_rest)
        self.optimizer.load_state_dict(state_dict)
        self._saved.load(kept, self.driver)

    @property
    def _is_at_rest(self) -> bool:
        """Return whether no message of the algorithm is under way between two steps."""
        return self.algorithm.traits.rests_between_steps or not self.loop.lifecycle.has_begun
