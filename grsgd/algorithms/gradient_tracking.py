"""Gradient tracking: every rank follows the mean gradient of all (Nedic, Olshevsky, Shi 2017, DIGing)."""

from dataclasses import replace

from pydantic import Field

from grsgd.algorithms.base import Algorithm, Options, Traits
from grsgd.comm import topology
from grsgd.models.mixing import mix
from grsgd.models.replica import views


class GradientTrackingOptions(Options):
    topology: str = Field("ring", **topology.OPTION)


class GradientTracking(Algorithm, name="gradient_tracking"):
    """Beside its model x each rank mixes a tracker y, to which it adds how its gradient has changed::

        send x and y to the neighbours, receive theirs          # meanwhile:
        g = grad(x)
        y = sum_j W[i, j] y_j + g - g_prev                      # y = g in the first step
        x = sum_j W[i, j] x_j - eta y;  g_prev = g

    The trackers of all ranks sum to their gradients, so each comes near to the mean gradient, and models to one
    optimum, however the ranks' data differ. Sends 2M to each neighbour per step, 4M on a ring. Waits for the slower
    neighbour.
    """

    paper = (
        "Nedic, Olshevsky, Shi 2017, Achieving geometric convergence for distributed optimization over time-varying "
        "graphs; with stochastic gradients: Pu, Nedic 2021, Distributed stochastic gradient tracking methods"
    )
    traits = Traits(
        synchronous=True, family="gossip", in_background=True, rests_between_steps=True, survives_deaths="together"
    )
    Options = GradientTrackingOptions
    remembers = ("k", "y", "g")

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.k = 0
        self.topology = topology.build(self.options.topology, self.comm.size)
        self.y, self.g = self.x.like(), self.x.like()
        self.received = {
            j: (self.x.like(), self.x.like()) for j in self.topology.in_neighbours(self.comm.rank)
        }

    @classmethod
    def traits_of(cls, options):
        survives = topology.is_for_any_number(options.topology) and cls.traits.survives_deaths
        return replace(cls.traits, survives_deaths=survives)

    @classmethod
    def check(cls, options, ranks):
        super().check(options, ranks)
        topology.build(options.topology, ranks).require_stochastic("row", "column")

    def before_backward(self):
        self.exchange = self.driver.start(self.exchange_with_neighbours())

    def exchange_with_neighbours(self):
        """Background schedule: model first, then tracker, in both directions."""
        i, k = self.comm.rank, self.k
        receiving = [
            self.comm.Irecv(flat.array, j) for j in self.topology.in_neighbours(i, k) for flat in self.received[j]
        ]
        sending = [
            self.comm.Isend(flat.array, j) for j in self.topology.out_neighbours(i, k) for flat in (self.x, self.y)
        ]
        yield receiving + sending

    def step(self):
        yield self.exchange
        i, W = self.comm.rank, self.topology.matrix(self.k)
        neighbours = self.topology.in_neighbours(i, self.k)
        self.k += 1
        if self.comm.size == 1:
            self.update()
            return
        own, weights = float(W[i, i]), [float(W[i, j]) for j in neighbours]
        mix(self.y.tensor, own, [(w, self.received[j][1].tensor) for w, j in zip(weights, neighbours, strict=True)])
        self.follow_gradient()
        if not neighbours:  # in this step
            self.update()
            return
        # What mixing changes, of x before the update, in place of a model that has been received.
        change, *others = (self.received[j][0].tensor for j in neighbours)
        mix(change, weights[0], [*zip(weights[1:], others, strict=True), (own - 1, self.x.tensor)])
        self.update()
        self.x.tensor.add_(change)
        self.staleness[0] += len(neighbours)

    def follow_gradient(self):
        """Add to the tracker how this rank's gradient has changed, and put it in the gradient's place."""
        trained = self.replica.trained
        for p, y, g in zip(trained, views(self.y.tensor, trained), views(self.g.tensor, trained), strict=True):
            y.sub_(g)
            if p.grad is not None and p.grad.is_sparse:
                raise RuntimeError(f"gradient_tracking: the gradient of {self.replica.name_of(p)} is sparse")
            if p.grad is None:  # a rank's sample may not use all of the model
                g.zero_()
                p.grad = y.clone()
                continue
            g.copy_(p.grad)
            y.add_(g)
            p.grad.copy_(y)
