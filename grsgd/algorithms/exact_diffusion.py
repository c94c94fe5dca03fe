"""Exact diffusion, also called D2 (Yuan et al. 2019, Tang et al. 2018)."""

from pydantic import Field

from grsgd.algorithms.base import Options, Traits
from grsgd.algorithms.dpsgd import neighbour_exchange
from grsgd.algorithms.on_topology import OnTopology
from grsgd.algorithms.outer_state import OUTER_STATE_MEANING, OuterState, outer_memory
from grsgd.comm.topologies import topology
from grsgd.lazy import LazyModule
from grsgd.models.mixing import blocks, mix

torch = LazyModule("torch")


class ExactDiffusionOptions(Options):
    topology: str = Field("ring", **topology.OPTION)
    outer_state: OuterState | None = Field(None, description=OUTER_STATE_MEANING)


class ExactDiffusion(OnTopology, name="exact_diffusion"):
    """Each rank mixes its model with its neighbours' models, after a correction by the change of its model in the
    previous mixing::

        psi = x - eta grad(x)
        phi = psi + x - psi_prev                 # psi_prev = x in the first step
        send phi to the neighbours, receive theirs
        x = sum_j (I + W)[i, j] / 2 phi_j        # W: the topology's mixing matrix
        psi_prev = psi

    In D-PSGD the models end at a distance from the optimum if the ranks' data differ, and this distance grows with the
    learning rate. With exact diffusion the distance from the optimum comes only from the gradients' noise. If all ranks
    compute the same gradients with both algorithms, the mean of all models is the same in exact diffusion as in D-PSGD.
    A rank sends M (the bytes of the model) to each neighbour per step, 2M on a ring, after the rank has computed its
    gradient. In each step a rank waits for its slowest neighbour.
    """

    paper = (
        "Yuan, Ying, Zhao, Sayed 2019, Exact diffusion for distributed optimization and learning; "
        "D2: Tang, Lian, Yan, Zhang, Liu 2018, D2: Decentralized training over decentralized data"
    )
    traits = Traits(synchronous=True, family="gossip", rests_between_steps=True, survives_deaths="together")
    Options = ExactDiffusionOptions
    remembers = ("psi",)

    def __init__(self, options, replica, optimizer, context):
        super().__init__(options, replica, optimizer, context)
        self.memory = outer_memory(self.x, options.outer_state)
        self.received = {j: self.memory.like(self.x) for j in self.topology.in_neighbours(self.comm.rank)}
        self.phi, self.psi = (self.memory.like(self.x) for _ in range(2))

    @classmethod
    def check_topology(cls, graph):
        graph.require_fixed_symmetric_weights()

    @classmethod
    def arrays_held(cls, options, ranks):
        return 2 + cls.most_neighbours(options, ranks)

    def start(self):
        self.psi.tensor.copy_(self.x.tensor)

    def before_backward(self):
        self.taking = self.memory.take(self.x, self.phi)

    def step(self):
        phi, psi = self.phi.tensor, self.psi.tensor
        held = yield from self.taking
        torch.sub(held.tensor, psi, out=phi)
        self.update()
        held = yield from self.memory.take(self.x, self.psi)
        for x_block, phi_block, psi_block in blocks(held.tensor, phi, psi):
            psi_block.copy_(x_block)
            phi_block.add_(psi_block)
        i, W = self.comm.rank, self.topology.matrix(0)
        neighbours = self.topology.in_neighbours(i)
        incoming = {j: self.received[j].array for j in neighbours}
        yield from neighbour_exchange(self.comm, self.phi.array, neighbours, incoming)
        of_neighbours = [(float(W[i, j]) / 2, self.received[j].tensor) for j in neighbours]
        mixed = self.memory.result(self.x, self.phi)
        mix(phi, (1 + float(W[i, i])) / 2, of_neighbours, out=mixed.tensor)
        self.memory.put(mixed, self.x)
        self.staleness[0] += len(neighbours)
