"""Optimizer whose state, with the state of its algorithm, is saved and loaded."""

import numpy as np

from grsgd.comm.allreduce import halving_doubling_allreduce
from grsgd.own_loop.tracing import untraced
from grsgd.own_loop.wrapping import WrappingOptimizer

INSTEAD = (
    "save averaged_model() and state_dict(algorithm=False) on one rank: a later job begins from both, on any number of "
    "ranks; or give surviving() a folder for checkpoints"
)
"""Remedy in a loop over `surviving`, in which the script itself cannot keep the state of the algorithm."""


class SavingOptimizer(WrappingOptimizer):
    """Wrapping optimizer with the calls for saving and loading; `DistributedOptimizer` has the rest."""

    @untraced
    def rest(self):
        """Receive all messages under way, so that `state_dict` is complete; to be called between steps, on all ranks.

        Asynchronous algorithms, ``sgp`` with ``tau``, and ``diloco`` with ``delay`` need this call; with other
        algorithms it does nothing. Training goes on with the next step.
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

        With ``algorithm=False`` the key is missing: a new training with any number of ranks, or with another algorithm,
        can begin from the dictionary and from `averaged_model`.

        There is no such state while messages are under way, or if the class of the algorithm has no `remembers`. Then
        one warning names the remedy, and `load_state_dict` will refuse the dictionary. The key is missing before the
        first step, and after `finish` with algorithms that need `rest`. Raises RuntimeError in a loop over `surviving`,
        unless ``algorithm`` is False.
        """
        if algorithm and not self.finished:
            self.loop.refuse("state_dict() with the algorithm's state", INSTEAD)
        saved = self._saved.state(self._is_at_rest, self.finished) if algorithm else {}
        return self.optimizer.state_dict() | self.recorded.state() | saved

    @untraced
    def load_state_dict(self, state_dict):
        """Load a `state_dict` that this rank has saved; load the model separately, at any time after `distribute`.

        Raises ConfigError if ``state_dict`` is of another algorithm or rank, or lacks the algorithm's state. Raises
        RuntimeError if messages are under way here: call `rest` first. The next step raises ConfigError if the model
        differs from the model at the time of saving.
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
