"""NoLoCo: local steps, then an outer step with momentum that mixes the models of pairs of ranks.

A schedule is a generator that yields each object it waits for.
"""

from pydantic import Field, model_validator

from grsgd.algorithms.base import Algorithm, Options, Traits
from grsgd.algorithms.outer_state import OUTER_STATE_MEANING, OuterState, outer_memory
from grsgd.seeding import Purpose, generator


class NoLoCoOptions(Options):
    H: int = Field(8, ge=1, description="number of local steps between two exchanges; 50 and more in the NoLoCo paper")
    outer_lr: float = Field(0.7, gt=0, description="learning rate of the outer step (beta)")
    outer_momentum: float = Field(0.5, ge=0, lt=1, description="momentum of the outer step (alpha)")
    pull: float = Field(1.0, gt=0, description="strength by which the two models of a pair attract each other (gamma)")
    outer_state: OuterState | None = Field(None, description=OUTER_STATE_MEANING)

    @model_validator(mode="after")
    def converges(self):
        if not self.outer_momentum < self.pull < 2 + self.outer_momentum:
            raise ValueError(
                f"pull = {self.pull:g}: must be between outer_momentum = {self.outer_momentum:g} and "
                "outer_momentum + 2, or the ranks' models do not converge"
            )
        return self


class NoLoCo(Algorithm, name="noloco"):
    """Each rank takes H local steps, with an optimizer such as AdamW. After every H local steps, an outer step follows
    the mean change of the two models of a random pair of ranks, and draws the two models together::

        x = inner optimizer's step;  k = k + 1
        if k % H == 0:
            j = partner in this round
            d = ((x - x_prev) + (x_j - x_prev_j)) / 2
            u = outer_momentum u + outer_lr d - pull (x_prev - (x_prev + x_prev_j) / 2)
            x_prev = x_prev + u
            x = x_prev

    All ranks draw the same pairs of ranks for a round, from the run's seed and the number of the round. If the number
    of ranks is odd, one rank has no partner and uses only its own d and x_prev in the outer step.

    Each rank sends its partner only one array, a combination of x and x_prev: M/H bytes per step on average (M: bytes
    of the model). The mean of all ranks' x_prev changes as if the models of all ranks were averaged. The inner
    optimizer's state and the model's buffers are not exchanged. Every H steps a rank waits for its partner, but for no
    other rank.
    """

    paper = (
        "Kolehmainen, Blagoev, Donaghy, Ersoy, Nies 2025, NoLoCo: No-all-reduce low communication training method for "
        "large models"
    )
    traits = Traits(synchronous=True, family="local", rests_between_steps=True, survives_deaths="together")
    Options = NoLoCoOptions
    remembers = ("k", "u", "x_prev")

    def __init__(self, options, replica, optimizer, context):
        super().__init__(options, replica, optimizer, context)
        self.seed = context.seed
        self.memory = outer_memory(self.x, options.outer_state)
        self.u, self.x_prev = (self.memory.like(self.x).tensor for _ in range(2))
        self.mine, self.theirs = (self.memory.like(self.x) for _ in range(2))

    @classmethod
    def arrays_held(cls, options, ranks):
        return 4

    def start(self):
        self.x_prev.copy_(self.x.tensor)

    def step(self):
        self.update()
        self.k += 1
        if self.k % self.options.H == 0:
            yield from self.outer_step(self.partner(self.k // self.options.H))

    def partner(self, number: int) -> int:
        """Return the rank with which this rank exchanges models in round ``number``. If this rank has no partner in the
        round, return this rank's own number."""
        order = generator(Purpose.PAIRS, self.seed, number).permutation(self.comm.size).tolist()
        other = order.index(self.comm.rank) ^ 1
        return order[other] if other < len(order) else self.comm.rank

    def outer_step(self, j: int):
        """Generator that takes the outer step together with rank ``j``, or alone if ``j`` is this rank."""
        options, x_prev, mean = self.options, self.x_prev, self.mine.tensor
        # ``mean`` becomes a sum whose mean over the pair of ranks is outer_lr d + pull (mean of x_prev):
        yield from self.memory.copy(self.x, self.mine)
        mean.mul_(options.outer_lr).add_(x_prev, alpha=options.pull - options.outer_lr)
        if j != self.comm.rank:
            yield [self.comm.Irecv(self.theirs.array, j), self.comm.Isend(self.mine.array, j)]
            # Each model is halved before the addition, because a sum of float16 models may be out of range.
            mean.mul_(0.5).add_(self.theirs.tensor, alpha=0.5)
            self.staleness[0] += 1
        mean.add_(x_prev, alpha=1 - options.pull).add_(self.u, alpha=options.outer_momentum)
        self.u.copy_(mean).sub_(x_prev)
        x_prev.copy_(mean)
        self.memory.put(self.mine, self.x)
