"""Strategies of a parameter server that drop the gradients of workers that are too slow. With m_sync, rennala or
ringmaster the training time is near the least possible time.

Sources: m_sync: Begunov, Tyurin 2026; rennala: Tyurin, Richtárik 2023; ringmaster: Maranjyan, Tyurin, Richtárik 2025.
"""

from pydantic import Field

from grsgd.algorithms.parameter_server.strategy import Strategy, StrategyOptions


class MSyncOptions(StrategyOptions):
    fastest: int | None = Field(
        None, ge=1, description="m_sync: number of gradients per update (m); by default the number of workers minus 1"
    )


class RennalaOptions(StrategyOptions):
    gradients_per_update: int | None = Field(
        None,
        ge=1,
        description="rennala: number of gradients of the same model per update (B); by default the number of workers",
    )


class RingmasterOptions(StrategyOptions):
    staleness_limit: int | None = Field(
        None,
        ge=1,
        description="ringmaster: staleness in updates from which gradients are dropped (R); by default twice the "
        "number of workers",
    )


class MSync(Strategy):
    """m-synchronous (Begunov, Tyurin 2026): one update with the gradients of the first ``m`` workers to push::

        on push(i):   v_i < V: drop the gradient; answer
                      else: put it into the buffer; at m of them w -= eta/n sum(buffer);  V += 1;  answer its workers

    With m_sync the staleness tau of an applied gradient is 0. The server does not interrupt the computation of a late
    worker. After its computation, a late worker takes part in the round that is under way. If m equals the number n of
    workers, `MSync` is the strategy `Bsp`. If workers pause for a checkpoint and fewer than m workers remain, the
    gradients of the unfinished round are dropped. The unfinished round is repeated after the checkpoint, so a
    checkpoint causes no update with fewer than m gradients.
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

    A fast worker computes several of the B gradients of an update, and no worker waits. With rennala the staleness tau
    of an applied gradient is 0. The learning rate in the Rennala paper multiplies the mean of B gradients, and equals
    eta B/n in the notation of `Rennala`. If the sum has fewer than B gradients when a checkpoint is made, the
    checkpoint stores the sum. If the sum of gradients has fewer than B terms at the end of training, the server applies
    the sum.
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
    """Ringmaster ASGD (Maranjyan, Tyurin, Richtárik 2025): like `Asp`, but gradients with a staleness tau >= ``R`` are
    dropped::

        on push(i):   V - v_i < R: w -= eta/n g;  V += 1
                      answer

    `Ringmaster` is the variant of the Ringmaster paper in which the workers' computations are not interrupted. With R =
    inf, `Ringmaster` would be the strategy `Asp`, which drops no gradient. With R = 1, `Ringmaster` is the strategy
    `Rennala` with B = 1.
    """

    Options = RingmasterOptions

    def __init__(self, workers: int, **options):
        super().__init__(workers, **options)
        self.limit = self.options.staleness_limit or 2 * workers

    @property
    def bound_gradients(self):
        """Staleness R, in updates, at or above which gradients are dropped. According to the Ringmaster paper, R
        updates take at most twice as long as R gradients of the same model."""
        return self.limit
