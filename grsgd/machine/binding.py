"""Division of a host's cores among the ranks on the host, and binding of each rank to its cores.

If several ranks of a host may run on exactly the same cores, they divide these cores among themselves. If a launcher
has given each rank its own cores, the ranks keep these cores.
"""

import os
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from grsgd.errors import ConfigError
from grsgd.machine.cores import allowed_cores, cores_in_words, numa_nodes, with_siblings

BIND = "GRSGD_BIND"
"""Environment variable that says whether ranks bind themselves to cores. The allowed values of the environment variable
are `WAYS`."""
AUTO, ON, OFF = WAYS = ("auto", "on", "off")
"""``auto``: ranks bind themselves only in a Slurm allocation that owns all cores on which its ranks may run. Cores
outside of an allocation may be needed by other programs. ``on``: ranks always bind themselves, if the host has at least
one core for each rank. ``off``: ranks never bind themselves."""
PROGRESS_CORES = 4
"""Least number of cores of a rank at which one core is left to the thread that sends and receives messages. With fewer
than `PROGRESS_CORES` cores, a whole core would be a larger share of the computing power than the thread for messages
needs."""


class Sharing(NamedTuple):
    """Cores on which one rank runs, and the reason why the rank runs on these cores."""

    cores: frozenset[int]
    """Numbers of the cores on which the rank runs."""
    reason: str
    """Text for the run file that says how the rank got its cores."""

    @property
    def is_new(self) -> bool:
        """Return whether the rank is not yet bound to ``cores`` and must bind itself."""
        return self.reason == SHARED


SHARED, GIVEN = "bound by the rank itself", "given by the launcher or the batch system"
ALL_MINE, CROWDED = "not bound, the only rank on these cores", "not bound, more ranks than cores"
SWITCHED_OFF, NO_ALLOCATION = f"not bound, {BIND}={OFF}", "not bound, outside of an allocation of Slurm"
SPARE = "not bound, a spare process"
TOO_MANY = "not bound, the allocation has fewer cores than its ranks may use"


def way(environment: Mapping[str, str] = os.environ) -> str:
    """Return the value of GRSGD_BIND in ``environment``, or ``auto`` if GRSGD_BIND is not set. Raises ConfigError if
    the value of GRSGD_BIND is not one of `WAYS`."""
    value = environment.get(BIND) or AUTO
    if value not in WAYS:
        raise ConfigError(f"{BIND} = {value}: must be one of {', '.join(WAYS)}")
    return value


def sharing(
    number: int,
    allowed: Sequence[frozenset[int]],
    nodes: Sequence[int],
    environment: Mapping[str, str] = os.environ,
    system: Mapping[int, frozenset[int]] | None = None,
) -> Sharing:
    """Return the cores on which one rank of a host must run, and the reason for these cores.

    Parameters
    ----------
    number
        Number of the rank among the ranks of its host.
    allowed
        Cores on which each rank of the host may run.
    nodes
        NUMA node of each rank's GPU; -1 if unknown.
    environment
        Environment variables of the rank's process.
    system
        Cores of each NUMA node, by node; by default, the NUMA nodes of this machine.
    """
    mine, how = allowed[number], way(environment)
    partners = [rank for rank, cores in enumerate(allowed) if cores == mine]
    overlaps = any(cores & mine for rank, cores in enumerate(allowed) if rank not in partners)
    if overlaps or (len(partners) == 1 and len(mine) < (os.cpu_count() or 1)):
        return Sharing(mine, GIVEN)
    if how == OFF:
        return Sharing(mine, SWITCHED_OFF)
    if how == AUTO and (reason := why_not_here(allowed, environment)):
        return Sharing(mine, reason)
    found = shares(mine, [nodes[rank] for rank in partners], numa_nodes() if system is None else system)
    if found is None:
        return Sharing(mine, CROWDED)
    share = found[partners.index(number)]
    return Sharing(share, ALL_MINE if share == mine else SHARED)


def why_not_here(allowed: Sequence[frozenset[int]], environment: Mapping[str, str]) -> str:
    """Return the reason why ranks with GRSGD_BIND = auto do not bind themselves on this host, or an empty string if
    they bind themselves."""
    if "SLURM_JOB_ID" not in environment:
        return NO_ALLOCATION
    count = environment.get("SLURM_CPUS_ON_NODE", "")
    owned = int(count) if count.isdecimal() else 0
    return TOO_MANY if len(frozenset().union(*allowed)) > owned else ""


def shares(
    cores: frozenset[int], nodes: Sequence[int], system: Mapping[int, frozenset[int]]
) -> list[frozenset[int]] | None:
    """Divide ``cores`` among ranks, and return one set of cores per rank, each with the same number of cores. Return
    None if there are more ranks than cores.

    ``nodes`` has the preferred NUMA node of each rank, or -1 for a rank without a preference. If each preferred NUMA
    node has enough cores for the ranks that prefer it, each rank gets cores of its preferred node. If some preferred
    NUMA node has too few cores, all cores are divided among all ranks, if possible so that no rank has cores of two
    nodes. If there are at least as many physical cores as ranks, all hardware threads of one physical core belong to
    the same rank.
    """
    units = physical(cores)
    if len(units) < len(nodes):
        units = [frozenset({core}) for core in sorted(cores)]
    if len(units) < len(nodes):
        return None
    of_node = by_node(units, system)
    have_room = all(nodes.count(node) <= len(of_node.get(node, ())) for node in nodes)
    places = list(nodes) if have_room else fitting(of_node, len(nodes))
    if not places:  # some rank must have cores of two NUMA nodes
        of_node, places = {0: [unit for there in of_node.values() for unit in there]}, [0] * len(nodes)
    size = min(len(of_node[node]) // places.count(node) for node in set(places))
    taken = dict.fromkeys(of_node, 0)
    found = []
    for node in places:
        first, taken[node] = taken[node], taken[node] + size
        found.append(frozenset().union(*of_node[node][first : first + size]))
    return found


def physical(cores: Collection[int]) -> list[frozenset[int]]:
    """Return, for each physical core, the set of its hardware threads that are among ``cores``, in ascending order of
    the physical cores."""
    found = {min(group): group for group in (with_siblings(core) & frozenset(cores) for core in cores)}
    return [found[first] for first in sorted(found)]


def by_node(units: Sequence[frozenset[int]], system: Mapping[int, frozenset[int]]) -> dict[int, list[frozenset[int]]]:
    """Return the ``units`` (sets of hardware threads), grouped by NUMA node. Units that belong to no known NUMA node
    are listed under the number -1."""
    found: dict[int, list[frozenset[int]]] = {}
    for unit in units:
        node = next((node for node, cores in system.items() if unit & cores), -1)
        found.setdefault(node, []).append(unit)
    return dict(sorted(found.items()))


def fitting(of_node: Mapping[int, Sequence[frozenset[int]]], ranks: int) -> list[int]:
    """Return one NUMA node for each of ``ranks`` ranks, so that all ranks get equally many cores and no rank gets cores
    of two nodes. Return an empty list if no division of the cores gives all ranks equally many cores of one node
    each."""
    size = sum(map(len, of_node.values())) // ranks
    slots = [node for node, units in of_node.items() for _ in range(len(units) // size)]
    return slots[:ranks] if len(slots) >= ranks else []


def bind(share: Sharing) -> Sharing:
    """Bind the calling thread, and the threads that it starts later, to the cores in ``share``. Return the cores on
    which the calling thread may run after the binding. If the operating system refuses the binding, the thread's cores
    stay unchanged."""
    if not share.is_new:
        return share
    try:
        os.sched_setaffinity(0, share.cores)
    except OSError as error:
        return Sharing(allowed_cores(), f"not bound, the system refuses: {error.strerror}")
    return share


def describe(share: Sharing, system: Mapping[int, frozenset[int]] | None = None) -> str:
    """Return the cores of a rank, their NUMA nodes and the reason for these cores, in one line of text for the run
    file."""
    system = numa_nodes() if system is None else system
    nodes = [str(node) for node, cores in system.items() if cores & share.cores]
    on_nodes = f" of NUMA node{'s' * (len(nodes) > 1)} {', '.join(nodes)}" if nodes else ""
    return f"core{'s' * (len(share.cores) > 1)} {cores_in_words(share.cores)}{on_nodes}, {share.reason}"


def computing_threads(cores: int) -> int:
    """Return how many threads compute on a rank that has ``cores`` cores. If ``cores`` is at least `PROGRESS_CORES`,
    one core is left to the thread that sends and receives messages."""
    return cores - 1 if cores >= PROGRESS_CORES else max(cores, 1)
