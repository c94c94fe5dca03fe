"""Measurement of the steps, samples and times of one rank in a user's own loop."""

import torch

from grsgd.training.times import RankTotals, TimedOptimizer, timed


class LoopTimes:
    """Numbers of steps and samples, and times in seconds, of one rank since the call of `distribute`.

    The algorithm's hooks are timed as in `grsgd train`. The time of computing a gradient begins at the first forward
    pass in training after a step, and ends at the next step. The times of hooks in between are subtracted. Work between
    a step and the next forward pass, such as loading data or evaluation, is not measured.
    """

    def __init__(self, driver, optimizer: TimedOptimizer):
        self.driver, self.optimizer = driver, optimizer
        self.totals = RankTotals()
        self.unseen_steps = 0
        """Number of steps without a forward pass in training mode. In such a step the model was not called, or was in
        evaluation mode."""
        self.steps_without_batch = 0
        """Number of steps within ``join()`` in which this rank had no batch."""
        self.unknown_samples = 0
        """Number of forward passes whose number of samples is unknown."""
        self.samples_of_step = 0
        self._computing_since: float | None = None
        self._is_first = False
        """Whether the present step had a forward pass outside of backward passes."""

    def run(self, hook):
        """Run one hook of the algorithm to the hook's end, and add the hook's times to `totals`."""
        self._note_computing()
        try:
            self.driver.run(timed(hook, self.totals, self.driver, self.optimizer))
        finally:
            if self._computing_since is not None:
                self._computing_since = self.driver.clock()

    def run_update(self, hook):
        """Call a hook of the algorithm that updates the model. The hook's time counts as computing time, because the
        hook waits for no message."""
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
        """Record that a forward pass in training begins. ``samples`` is the number of samples, or None if unknown.

        A forward pass within a backward pass repeats an earlier forward pass, as with activation checkpointing. The
        repetition is counted only if no hook has seen the earlier forward pass.
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
        """Whether the present step has had a forward pass in training."""
        return self._computing_since is not None

    def step_ended(self):
        """Count the step that ends now, and the samples of the step's forward passes."""
        self.totals.steps += 1
        self.totals.samples += self.samples_of_step
        self.unseen_steps += self._computing_since is None
        self.samples_of_step, self._computing_since, self._is_first = 0, None, False

    def add_without_batch(self, steps: int):
        """Count ``steps`` further steps, in which this rank had no batch and computed nothing."""
        self.totals.steps += steps
        self.steps_without_batch += steps

    def _note_computing(self):
        if self._computing_since is not None:
            self.totals.compute_seconds += self.driver.clock() - self._computing_since
