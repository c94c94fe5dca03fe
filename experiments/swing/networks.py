"""The networks on which all-reduces are compared, with the cables that join groups of ranks."""

import math
from collections.abc import Callable
from typing import NamedTuple

from grsgd.simulator.cabling.cable import Cable
from grsgd.simulator.network import NetworkSpec

BANDWIDTH, LATENCY = "100gbit", "500ns"
"""Bandwidth and latency of each cable, except for the cables between leaves and spine of the tapered tree."""
TAPER = 4
"""Rate at which all ranks of a leaf together can send, divided by the rate of the leaf's cable to the spine."""


class CabledNetwork(NamedTuple):
    """A network, with the number of ranks that use it.

    shape: shape of a torus; None for any other network. is_global: function that returns whether a cable joins groups
    of ranks, as all cables of a torus do.
    """

    title: str
    spec: NetworkSpec
    ranks: int
    is_global: Callable[[Cable], bool]
    shape: tuple[int, ...] | None = None


def torus(*shape: int) -> CabledNetwork:
    text = "x".join(map(str, shape))
    return CabledNetwork(f"torus {text}", network(f"torus:{text}"), math.prod(shape), lambda cable: True, shape)


def dragonfly(a: int, p: int, h: int, ranks: int) -> CabledNetwork:
    """Return a dragonfly network with ``a`` routers per group and ``p`` ranks per router."""
    spec = network(f"dragonfly:a={a},p={p},h={h}")
    return CabledNetwork(f"dragonfly, groups of {a * p}", spec, ranks, joins_groups)


def fat_tree(k: int, ranks: int) -> CabledNetwork:
    """Return a fat tree of switches, whose pods are connected with full bandwidth."""
    return CabledNetwork(f"fat tree, pods of {k * k // 4}", network(f"fat-tree:k={k}"), ranks, ends_at("core"))


def tapered(of_leaf: int, ranks: int) -> CabledNetwork:
    """Return a tree of leaves with ``of_leaf`` ranks each.

    The cable from a leaf to the spine carries a quarter of the rate of the leaf's ranks.
    """
    leaves = [range(begin, min(begin + of_leaf, ranks)) for begin in range(0, ranks, of_leaf)]
    uplink = f"{of_leaf * 100 / TAPER}gbit"
    cables = [{"from": f"leaf {number}", "to": list(leaf)} for number, leaf in enumerate(leaves)]
    cables.append({"from": "spine", "to": [f"leaf {number}" for number in range(len(leaves))], "bandwidth": uplink})
    return CabledNetwork(f"tapered tree, leaves of {of_leaf}", network("cables", cable=cables), ranks, ends_at("spine"))


def network(medium: str, **more) -> NetworkSpec:
    return NetworkSpec(medium=medium, bandwidth=BANDWIDTH, latency=LATENCY, name=medium, **more)


def joins_groups(cable: Cable) -> bool:
    """Return True if a cable of a dragonfly connects routers of two groups."""
    ends = [place.removeprefix("router ").partition(".")[0] for place in (cable.source, cable.dest)]
    return cable.source.startswith("router") and cable.dest.startswith("router") and ends[0] != ends[1]


def ends_at(name: str) -> Callable[[Cable], bool]:
    return lambda cable: cable.source.startswith(name) or cable.dest.startswith(name)


TORI = (torus(8, 8), torus(4, 16), torus(4, 4, 4), torus(6, 6), torus(16, 16))
GROUPED = (
    dragonfly(4, 2, 2, 64),
    dragonfly(5, 2, 2, 64),
    dragonfly(4, 3, 3, 64),
    tapered(8, 64),
    tapered(10, 64),
    fat_tree(8, 128),
)
SETTINGS = {setting.title: setting for setting in (*TORI, *GROUPED)}
