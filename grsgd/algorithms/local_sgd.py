"""Local SGD, with the outer step of SlowMo or BMUF, and post-local SGD."""

from pydantic import Field

from grsgd.algorithms.base import Options, Traits
from grsgd.algorithms.by_allreduce import ByAllreduce
from grsgd.comm.allreduce import VARIANT_MEANING, Variant


class LocalSGDOptions(Options):
    H: int = Field(8, ge=1, description="number of local steps between two averages of all models")
    post_local: int = Field(
        0, ge=0, description="number of first steps after each of which all models are averaged (post-local SGD)"
    )
    beta: float = Field(0.0, ge=0, lt=1, description="slow momentum of the outer step; 0.7 in the SlowMo paper")
    alpha: float = Field(1.0, gt=0, description="slow learning rate of the outer step")
    variant: Variant = Field("ring", description=VARIANT_MEANING)


class LocalSGD(ByAllreduce, name="local_sgd"):
    """Each rank takes H local steps, and after every H steps all ranks average their models::

        x = x - eta grad(x);  k = k + 1
        if k % H == 0:
            xbar = allreduce(x) / n
            u = beta u + (x_prev - xbar) / eta          # SlowMo, BMUF: momentum of the averages
            x = x_prev - alpha eta u;  x_prev = x

    With the default values beta = 0 and alpha = 1, the outer step sets x to the mean of all models. The momentum of
    each rank's own optimizer is not averaged. With the option variant = ring, each of n ranks sends 2(n-1)/(nH) M per
    step (M: bytes of the model). Every H steps all ranks wait for the slowest rank.
    """

    paper = (
        "Stich 2019, Local SGD converges fast and communicates little; post-local: Lin, Stich, Patel, Jaggi 2020; "
        "SlowMo: Wang, Tantia, Ballas, Rabbat 2020; BMUF: Chen, Huo 2016"
    )
    traits = Traits(
        synchronous=True,
        family="local",
        only_allreduces=True,
        rests_between_steps=True,
        survives_deaths="together",
        trains_bfloat16=True,
    )
    Options = LocalSGDOptions
    remembers = ("k", "u", "x_prev")

    def __init__(self, options, replica, optimizer, context):
        super().__init__(options, replica, optimizer, context)
        self.xbar, self.buffers = self.x.like(), self.replica.buffers.like()
        """Copies of the model's parameters and buffers, which are averaged in place of the model. The model stays
        unchanged if the run is stopped while the copies are averaged."""
        self.slow = self.options.beta != 0 or self.options.alpha != 1
        if self.slow:
            self.u, self.x_prev = self.x.wide().tensor, self.x.wide().tensor

    @classmethod
    def arrays_held(cls, options, ranks):
        return 1 if (options.beta, options.alpha) == (0, 1) else 3

    @classmethod
    def arrays_in_32_bits(cls, options, ranks):
        return (0 if (options.beta, options.alpha) == (0, 1) else 2), 0

    def start(self):
        if self.slow:
            self.x_prev.copy_(self.x.tensor)
        self.xbar = yield from self.in_place(self.xbar)

    def step(self):
        self.update()
        self.k += 1
        if self.comm.size > 1 and (self.k % self.options.H == 0 or self.k <= self.options.post_local):
            yield from self.average_with_all()
            if self.slow:
                self.outer_step()

    def average_with_all(self):
        xbar, buffers = self.xbar, self.buffers
        xbar.tensor.copy_(self.x.tensor)
        buffers.tensor.copy_(self.replica.buffers.tensor)
        yield from self.allreduce(xbar.array)
        yield from self.replica.average_buffers(self.allreduce, buffers)
        self.x.tensor.copy_(xbar.tensor)
        self.replica.buffers.tensor.copy_(buffers.tensor)

    def outer_step(self):
        xbar, x_prev, u = self.xbar.tensor, self.x_prev, self.u
        eta = self.optimizer.param_groups[0]["lr"]
        if eta == 0:  # a warm-up begins with learning rate 0, so no model has changed yet
            return
        u.mul_(self.options.beta).add_(x_prev - xbar, alpha=1 / eta)
        x_prev.sub_(u, alpha=self.options.alpha * eta)
        self.x.tensor.copy_(x_prev)
