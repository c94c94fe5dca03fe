"""Where the time of a loop goes that grsgd did not write, as far as its optimizer can see."""

import torch

from grsgd.training.times import RankTotals, TimedOptimizer, timed


class LoopTimes:
    """The steps, samples and times of one rank, from the beginning on.

    The algorithm's hooks are timed as in `grsgd train`. Computing a gradient is what lies between the first forward
    pass of the model in training after a step, and the next step, without these hooks. What a loop does between a step
    and the next forward pass, such as to load data or to evaluate, is in none of the times.
    """

    def __init__(self, driver, optimizer: TimedOptimizer):
        self.driver, self.optimizer = driver, optimizer
        self.totals = RankTotals()
        self.unseen_steps = 0
        """Steps without a forward pass: the model was not called, or not in training."""
        self.unknown_samples = 0
        """Forward passes whose number of samples could not be told."""
        self.samples_of_step = 0
        self._computing_since: float | None = None
        self._is_first = False
        """Whether a forward pass of this step was seen outside of backward passes."""

    def run(self, hook):
        """Drive one of the algorithm's hooks to its end."""
        self._note_computing()
        try:
            self.driver.run(timed(hook, self.totals, self.driver, self.optimizer))
        finally:
            if self._computing_since is not None:
                self._computing_since = self.driver.clock()

    def run_update(self, hook):
        """Call a hook that updates the model and waits for nothing: its time is that of computing."""
        self._note_computing()
        begin = self.driver.clock()
        try:
            hook()
        finally:
            end = self.driver.clock()
            self.totals.compute_seconds += end - begin
            if self._computing_since is not None:
                self._computing_since = end

    def forward(self, samples: int | None):
        """A forward pass in training begins.

        One within a backward pass computes another again, as checkpoints do: it counts where the first was not seen.
        """
        if torch._C._current_graph_task_id() == -1:
            self._is_first = True
        elif self._is_first:
            return
        self.samples_of_step += samples or 0
        self.unknown_samples += samples is None
        if self._computing_since is None:
            self._computing_since = self.driver.clock()

    @property
    def has_forward(self) -> bool:
        """Return whether there was a forward pass in this step."""
        return self._computing_since is not None

    def step_ended(self):
        """The step is over, and so is all that was computed for it."""
        self.totals.steps += 1
        self.totals.samples += self.samples_of_step
        self.unseen_steps += self._computing_since is None
        self.samples_of_step, self._computing_since, self._is_first = 0, None, False

    def _note_computing(self):
        if self._computing_since is not None:
            self.totals.compute_seconds += self.driver.clock() - self._computing_since
