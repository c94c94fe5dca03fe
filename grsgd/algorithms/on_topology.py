"""Base class of algorithms whose ranks exchange models with their neighbours in the graph that the option ``topology``
names."""

from dataclasses import replace
from functools import cached_property

from grsgd.algorithms.base import Algorithm
from grsgd.comm.topologies import topology
from grsgd.comm.topologies.topology import Topology


class OnTopology(Algorithm, name=None):
    """Base class of algorithms whose ranks exchange models with their neighbours in a graph. The options of a class
    derived from `OnTopology` need the field ``topology: str = Field("ring", **topology.OPTION)``.

    If the graph exists for one number of ranks only, the trait ``survives_deaths`` is False in place of ``"together"``.
    """

    @cached_property
    def topology(self) -> Topology:
        return topology.build(self.options.topology, self.comm.size)

    @classmethod
    def traits_of(cls, options):
        traits = super().traits_of(options)
        if traits.survives_deaths == "together" and not topology.is_for_any_number(options.topology):
            return replace(traits, survives_deaths=False)
        return traits

    @classmethod
    def check(cls, options, ranks):
        super().check(options, ranks)
        cls.check_topology(topology.build(options.topology, ranks))

    @staticmethod
    def most_neighbours(options, ranks: int) -> int:
        """Return the largest number of in-neighbours of any of ``ranks`` ranks, where the in-neighbours of all steps
        are counted together."""
        graph = topology.build(options.topology, ranks)
        return max(len(graph.in_neighbours(rank)) for rank in range(ranks))

    @classmethod
    def check_topology(cls, graph: Topology):
        """Raise TopologyError if the algorithm does not work on ``graph``. By default an algorithm works on any
        graph."""
