"""Strategies that drop gradients of workers that are too slow. Their training time comes near the least possible time.

Sources: m_sync: Begunov, Tyurin 2026; rennala: Tyurin, Richtárik 2023; ringmaster: Maranjyan, Tyurin, Richtárik 2025.
"""

from pydantic import Field

from grsgd.algorithms.parameter_server.strategy import Strategy, StrategyOptions


class MSyncOptions(StrategyOptions):
    fastest: int | None = Field(
        None, ge=1, description="m_sync: number of gradients per update (m); by default one less than workers"
    )


class RennalaOptions(StrategyOptions):
    gradients_per_update: int | None = Field(
        None, ge=1, description="rennala: number of gradients of one model per update (B); by default one per worker"
    )


class RingmasterOptions(StrategyOptions):
    staleness_limit: int | None = Field(
        None,
        ge=1,
        description="ringmaster: age in updates from which gradients are dropped (R); by default twice the number of "
        "workers",
    )


class MSync(Strategy):
    """m-synchronous (Begunov, Tyurin 2026): one update with the gradients of the first ``m`` workers to push::

        on push(i):   v_i < V: drop the gradient; answer
                      else: put it into the buffer; at m of them w -= eta/n sum(buffer);  V += 1;  answer its workers

    The staleness tau of an applied gradient is 0. A late worker's computation cannot be interrupted. After this
    computation the worker takes part in the round that is then under way. m = n is `Bsp`. If workers rest for a
    checkpoint and fewer than m workers remain, the gradients of the unfinished round are dropped. The round begins
    again after the checkpoint, so a checkpoint causes no update with fewer than m gradients.
    """

    Options = MSyncOptions
    limit = 1

    def __init__(self, workers: int, **options):
        super().__init__(workers, **options)
        m = self.options.fastest
        if m is not None and m > workers:
            raise ValueError(f"fastest = {m}: must be at most the number of workers, {workers}")
        self.m = max(workers - 1, 1) if m is None else m

    @property
    def keeps_step(self):
        return self.m == len(self.clocks)

    def too_old(self):
        return set(self.buffer) if self.resting and len(self.active) < self.m else super().too_old()

    def due(self):
        all_are_there = self.active <= self.buffer.keys() and not self.resting
        return set(self.buffer) if len(self.buffer) >= self.m or all_are_there else set()

    @property
    def bound_gradients(self):
        return self.m


class Rennala(Strategy):
    """Rennala SGD (Tyurin, Richtárik 2023): one update with ``B`` gradients of the same model, from any workers::

        on push(i):   v_i < V: drop the gradient
                      else: sum += g;  if it is the B-th: w -= eta/n sum;  V += 1;  sum = 0
                      answer

    So a fast worker computes several of the B gradients, and no worker waits. The staleness tau of an applied gradient
    is 0. The paper's learning rate is for the mean of the gradients, so it is eta B/n here. A checkpoint keeps an
    unfinished sum. If a sum is unfinished at the end of training, it is applied.
    """

    Options = RennalaOptions
    limit = 1

    def completes_update(self):
        has_ended = not self.active and len(self.resting) < len(self.clocks)
        return self.gathered >= self.bound_gradients or has_ended

    @property
    def bound_gradients(self):
        return self.options.gradients_per_update or len(self.clocks)


class Ringmaster(Strategy):
    """Ringmaster ASGD (Maranjyan, Tyurin, Richtárik 2025): as `Asp`, but gradients with a staleness tau >= ``R`` are
    dropped::

        on push(i):   V - v_i < R: w -= eta/n g;  V += 1
                      answer

    This is the paper's variant that does not interrupt computations. R = inf would be the strategy `Asp`. R = 1 is the
    strategy `Rennala` with B = 1.
    """

    Options = RingmasterOptions

    def __init__(self, workers: int, **options):
        super().__init__(workers, **options)
        self.limit = self.options.staleness_limit or 2 * workers

    @property
    def bound_gradients(self):
        """Largest staleness R. According to the paper, R updates take at most twice as long as R gradients of one
        model."""
        return self.limit
