"""Facts and findings about the hosts of the ranks, and about the cores and NUMA nodes on which each rank may run."""

import os
import platform
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from grsgd.control_groups import cpu_quota
from grsgd.doctor.findings import MAX_NAMED, Finding, by_ranks
from grsgd.machine.cores import allowed_cores, cores_in_words, machine, numa_nodes
from grsgd.text import ranks_in_words

GROUP = "places"


class PlaceFacts(NamedTuple):
    """Facts about the host and the cores of one rank."""

    host: str
    """Name of the rank's host."""
    machine: str
    """Text that differs between two machines, even if both machines have one host name."""
    cores: frozenset[int]
    """Cores on which this rank may run."""
    all_cores: int
    """Number of all cores of the rank's host."""
    numa: tuple[int, ...]
    """Numbers of the NUMA nodes of the rank's cores."""
    quota: float | None
    """Processor time to which a control group limits this rank, as a number of cores; None without a limit."""
    threads: str
    """Value of the environment variable OMP_NUM_THREADS; "" if it is not set."""


def facts() -> PlaceFacts:
    """Return the facts about the host and the cores of this process."""
    cores, quota = allowed_cores(), cpu_quota()
    return PlaceFacts(
        platform.node(),
        machine(),
        cores,
        os.cpu_count() or len(cores),
        tuple(node for node, of_node in numa_nodes().items() if cores & of_node),
        quota and quota.cores,
        os.environ.get("OMP_NUM_THREADS", ""),
    )


def findings(ranks: Sequence[PlaceFacts], environment: Mapping[str, str] = os.environ) -> list[Finding]:
    """Return the findings about the hosts and cores of all ranks."""
    kinds = ["bound" if len(place.cores) < place.all_cores else "not bound" for place in ranks]
    binding = [f"{k}, {len(p.cores)} of {p.all_cores} cores" for k, p in zip(kinds, ranks, strict=True)]
    nodes = [", ".join(map(str, place.numa)) or "unknown" for place in ranks]
    return [
        hosts(ranks, environment),
        cores(ranks, kinds),
        Finding(GROUP, "binding", by_ranks(binding)),
        Finding(GROUP, "NUMA nodes", by_ranks(nodes)),
        quota(ranks),
        threads(ranks),
    ]


def hosts(ranks: Sequence[PlaceFacts], environment: Mapping[str, str]) -> Finding:
    """Return the finding about the hosts of the job's ranks. The finding reports a fault if two hosts have one name.
    The finding also reports a fault if all ranks are on one node of an allocation, although there are enough ranks for
    all nodes.

    Nodes without a rank are no fault if ranks are on several nodes, because they may be spare nodes for restarts.
    """
    by_host: dict[tuple[str, str], list[int]] = {}
    for rank, place in enumerate(ranks):
        by_host.setdefault((place.host, place.machine), []).append(rank)
    named = [f"{host} ({ranks_in_words(found, MAX_NAMED)})" for (host, _), found in by_host.items()]
    value = f"{len(by_host)}: {', '.join(named[:MAX_NAMED])}" + (" and more" if len(named) > MAX_NAMED else "")
    remedy, nodes = "", environment.get("SLURM_JOB_NUM_NODES", "")
    if len({host for host, _ in by_host}) < len(by_host):
        remedy = "several hosts have one name: give each host its own name, or MPI may take them for one host"
    elif nodes.isdecimal() and int(nodes) > len(by_host):
        value += f"; the allocation has {nodes} nodes"
        if len(by_host) == 1 and len(ranks) >= int(nodes):
            remedy = "all ranks are on one node of the allocation: start them with `srun`, or give mpiexec all hosts"
    return Finding(GROUP, "hosts", value, remedy)


def cores(ranks: Sequence[PlaceFacts], kinds: Sequence[str]) -> Finding:
    """Return the finding about the cores on which the job's ranks may run. The finding reports a fault if more ranks
    share a set of cores than the set has cores."""
    value = by_ranks([f"{place.host}: {cores_in_words(place.cores)}" for place in ranks])
    for machine_, allowed in dict.fromkeys((place.machine, place.cores) for place in ranks):
        within = [r for r, place in enumerate(ranks) if place.machine == machine_ and place.cores <= allowed]
        if len(within) > len(allowed):
            what = f"{ranks_in_words(within, MAX_NAMED)} share {len(allowed)} core{'s' * (len(allowed) > 1)}"
            is_bound = kinds[within[0]] == "bound"
            remedy = (
                "bind each rank to its own cores: `mpiexec --bind-to core`, `srun --cpu-bind=cores`, or ask the batch "
                "system for more cores per task"
                if is_bound
                else "start fewer ranks per host, or ask for more cores"
            )
            return Finding(GROUP, "cores", f"{value}; {what}", remedy)
    return Finding(GROUP, "cores", value)


def quota(ranks: Sequence[PlaceFacts]) -> Finding:
    """Return the finding about limits of control groups on processor time. The finding reports a fault if a rank gets
    less processor time than one core gives."""
    remedy = ""
    for host, limit in {(place.host, place.quota) for place in ranks if place.quota is not None}:
        if limit < sum(place.host == host and place.quota == limit for place in ranks):
            remedy = (
                "a rank gets less than a core of processor time: raise the container's limit (`docker run --cpus`), or "
                "start fewer ranks"
            )
    limits = ["none" if place.quota is None else f"{place.quota:g} cores" for place in ranks]
    return Finding(GROUP, "processor quota", by_ranks(limits), remedy)


def threads(ranks: Sequence[PlaceFacts]) -> Finding:
    """Return the finding about the environment variable OMP_NUM_THREADS on all ranks. The finding reports a fault if
    ranks would use more threads than they have cores."""
    remedy = ""
    for place in ranks:
        there = sum(other.machine == place.machine and other.cores == place.cores for other in ranks)
        if place.threads.isdecimal() and int(place.threads) > max(len(place.cores) // there, 1):
            remedy = f"set OMP_NUM_THREADS={max(len(place.cores) // there, 1)}: ranks have more threads than cores"
    unset = "not set: `grsgd train` computes with 1 thread"
    return Finding(GROUP, "OMP_NUM_THREADS", by_ranks([place.threads or unset for place in ranks]), remedy)
