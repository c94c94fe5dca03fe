"""CHOCO-SGD: gossip in which ranks send compressed differences of their models."""

from dataclasses import replace

from pydantic import Field

from grsgd.algorithms.base import Options, Traits
from grsgd.algorithms.dpsgd import neighbour_exchange
from grsgd.algorithms.on_topology import OnTopology
from grsgd.algorithms.outer_state import OUTER_STATE_MEANING, OuterState, outer_memory
from grsgd.comm.compression.compressors import CompressionOptions, Kind, make_compressor, payload_share
from grsgd.comm.topologies import topology


class ChocoSGDOptions(CompressionOptions, Options):
    topology: str = Field("ring", **topology.OPTION)
    compression: Kind = Field(
        "top-k",
        description="compression of the sent differences: the k largest values, k random values, or all values rounded",
    )
    ratio: float | None = Field(0.1, gt=0, le=1, description="top-k, random-k: share of the values that is sent")
    outer_state: OuterState | None = Field(None, description=OUTER_STATE_MEANING)
    gamma: float = Field(
        0.3,
        gt=0,
        le=1,
        description="step size of mixing: per step a rank's model moves by gamma times the difference between the "
        "mean of its neighbourhood's estimates and its own estimate",
    )


class ChocoSGD(OnTopology, name="choco_sgd"):
    """Every rank keeps an estimate xhat of its own model x, and its neighbours know this estimate as well. Per step a
    rank sends its neighbours the compressed difference between its model and its estimate::

        x = x - eta grad(x)
        q = compressed(x - xhat);  xhat = xhat + q
        send q to the neighbours, receive theirs
        z = z + sum_j W[i, j] q_j - q            # so z = sum_j W[i, j] xhat_j - xhat; W: the topology's mixing matrix
        x = x + gamma z

    The values that the compression leaves out of a message are sent in later steps. So the ranks' models converge to
    one model if gamma is small enough. The coarser the compression is, the smaller gamma must be. If all ranks compute
    the same gradients with both algorithms, the mean of all models is the same in CHOCO-SGD as in D-PSGD. A rank sends
    one compressed difference to each neighbour per step, after the rank has computed its gradient. In each step a rank
    waits for its slowest neighbour.
    """

    paper = (
        "Koloskova, Stich, Jaggi 2019, Decentralized stochastic optimization and gossip algorithms with compressed "
        "communication"
    )
    traits = Traits(synchronous=True, family="gossip", rests_between_steps=True, survives_deaths="together")
    Options = ChocoSGDOptions
    remembers = ("k", "xhat", "z")

    def __init__(self, options, replica, optimizer, context):
        super().__init__(options, replica, optimizer, context)
        self.key = context.seed, self.comm.rank
        self.memory = outer_memory(self.x, options.outer_state)
        self.q, self.xhat, self.z = (self.memory.like(self.x) for _ in range(3))
        self.compressor = make_compressor(options, self.q.tensor)
        self.payload = self.compressor.payload()
        self.received = {j: self.compressor.payload() for j in self.topology.in_neighbours(self.comm.rank)}

    @classmethod
    def traits_of(cls, options):
        return replace(super().traits_of(options), label=f"{cls.name} {options.compression}")

    @classmethod
    def arrays_held(cls, options, ranks):
        return 3 + (1 + cls.most_neighbours(options, ranks)) * payload_share(options)

    @classmethod
    def check_topology(cls, graph):
        graph.require_fixed_symmetric_weights()

    def start(self):
        """Set xhat, the neighbours' estimate of this rank's model, to the model at the beginning of the run. All ranks
        begin with the same model, so every rank knows the first estimates of its neighbours' models."""
        self.xhat.tensor.copy_(self.x.tensor)

    def step(self):
        self.update()
        xhat, z, q = self.xhat.tensor, self.z.tensor, self.q.tensor
        i, W, neighbours = self.comm.rank, self.topology.matrix(0), self.topology.in_neighbours(self.comm.rank)
        held = yield from self.memory.take(self.x, self.q)
        self.compressor.encode_difference(held.tensor, xhat, self.payload.tensor, (*self.key, self.k), scratch=q)
        self.k += 1
        incoming = {j: self.received[j].array for j in neighbours}
        yield from neighbour_exchange(self.comm, self.payload.array, neighbours, incoming)
        self.compressor.add(self.payload.tensor, [(1.0, xhat), (float(W[i, i]) - 1, z)], scratch=q)
        for j in neighbours:
            self.compressor.add(self.received[j].tensor, [(float(W[i, j]), z)], scratch=q)
        held = yield from self.memory.take(self.x, self.q)
        held.tensor.add_(z, alpha=self.options.gamma)
        self.memory.put(held, self.x)
        self.staleness[0] += len(neighbours)
