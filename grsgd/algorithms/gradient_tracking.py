"""Gradient tracking: every rank estimates the mean gradient of all ranks, and updates its model with the estimate
(Nedic, Olshevsky, Shi 2017, DIGing).

A schedule is a generator that yields each object it waits for.
"""

from dataclasses import replace

from pydantic import Field

from grsgd.algorithms.base import Options
from grsgd.algorithms.dpsgd import DPSGD
from grsgd.algorithms.outer_state import OUTER_STATE_MEANING, OuterState, outer_memory
from grsgd.comm.topologies import topology
from grsgd.lazy import LazyModule
from grsgd.models.mixing import blocks, follow, mix
from grsgd.models.replica import views

torch = LazyModule("torch")


class GradientTrackingOptions(Options):
    topology: str = Field("ring", **topology.OPTION)
    outer_state: OuterState | None = Field(None, description=OUTER_STATE_MEANING)


class GradientTracking(DPSGD, name="gradient_tracking"):
    """Each rank mixes its model x with its neighbours' models, and its tracker y with its neighbours' trackers. A rank
    adds the change of its gradient to its tracker::

        send x and y to the neighbours, receive theirs          # meanwhile:
        g = grad(x)
        y = sum_j W[i, j] y_j + g - g_prev                      # y = g in the first step
        x = sum_j W[i, j] x_j - eta y;  g_prev = g

    The sum of all ranks' trackers y is the sum of all gradients, so each tracker approaches the mean gradient. The
    models of all ranks reach the same optimum even if the ranks' data differ. A rank sends 2M (M: bytes of the model)
    to each neighbour per step, 4M on a ring. In each step a rank waits for its slowest neighbour.
    """

    paper = (
        "Nedic, Olshevsky, Shi 2017, Achieving geometric convergence for distributed optimization over time-varying "
        "graphs; with stochastic gradients: Pu, Nedic 2021, Distributed stochastic gradient tracking methods"
    )
    # With bfloat16, the errors of rounding to 16 bits would add up in the trackers.
    traits = replace(DPSGD.traits, label="", trains_bfloat16=False)
    Options = GradientTrackingOptions
    remembers = ("k", "y", "g")

    def __init__(self, options, replica, optimizer, context):
        super().__init__(options, replica, optimizer, context)
        self.memory = outer_memory(self.x, options.outer_state)
        self.room = self.memory.room(self.x)
        self.y, self.g = (self.memory.like(self.x) for _ in range(2))
        self.received_y = {j: self.memory.like(self.x) for j in self.received}
        follow(*self.y.tensor.new_zeros(3, 1))  # this call compiles the loop before the first step

    @classmethod
    def arrays_held(cls, options, ranks):
        return 2 + 2 * cls.most_neighbours(options, ranks)

    @classmethod
    def arrays_apart(cls, options, ranks):
        received = cls.most_neighbours(options, ranks)
        return received, 3 + received

    @property
    def exchange_number(self):
        return self.k

    def before_backward(self):
        self.exchange = self.driver.start(self.exchange_with_neighbours())

    def exchange_with_neighbours(self):
        """Generator, run in the background, that sends this rank's model and tracker to its neighbours, and receives
        their models and trackers."""
        i, k = self.comm.rank, self.k
        receiving = [
            self.comm.Irecv(received[j].array, j)
            for j in self.topology.in_neighbours(i, k)
            for received in (self.received, self.received_y)
        ]
        sending = [
            self.comm.Isend(flat.array, j) for j in self.topology.out_neighbours(i, k) for flat in (self.x, self.y)
        ]
        yield receiving + sending

    def step(self):
        yield self.exchange
        if self.comm.size > 1:
            yield from self.update_tracker()
        yield from super().step()

    def update_tracker(self):
        """Generator that mixes the trackers of the neighbours, adds the change of this rank's gradient to its tracker,
        and replaces the gradient by the tracker."""
        i, W, trained = self.comm.rank, self.topology.matrix(self.k), self.replica.trained
        neighbours = self.topology.in_neighbours(i, self.k)
        weights = [float(W[i, j]) for j in neighbours]
        flats = (self.y, self.g, *(self.received_y[j] for j in neighbours))
        for p in trained:
            if p.grad is not None and p.grad.is_sparse:
                raise RuntimeError(f"gradient_tracking: the gradient of {self.replica.name_of(p)} is sparse")
            if p.grad is None:  # the samples of this step do not use the parameter
                p.grad = torch.zeros_like(p)
        grads = [p.grad for p in trained]
        held = yield from self.memory.take_all(grads, self.room)
        for of_parameter in zip(held, *(views(flat.tensor, trained) for flat in flats), strict=True):
            for grad, y, g, *received in blocks(*of_parameter):
                mix(y, float(W[i, i]), list(zip(weights, received, strict=True)))
                follow(y, g, grad)
        self.memory.put_all(held, grads)
