"""Measurements of links between pairs of ranks: latency, bandwidth, and the length up to which messages are sent
eagerly (before their receive is posted)."""

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from grsgd.comm.communicator import LostRank
from grsgd.comm.driver import WaitTimeout
from grsgd.doctor.findings import Finding
from grsgd.runs.numbers import human_bytes
from grsgd.simulator.calibration.eager import eager_bytes
from grsgd.simulator.calibration.pairs import Effort, Pair, answer_pair, measure_pair

GROUP = "links"
MAX_PAIRS = 10
"""Largest number of pairs of ranks that are measured."""
EFFORT = Effort({8: 200, 2**20: 20}, 2, 0.3, least_share=0.5)
PAIR_SECONDS = 5.0
"""Seconds that a rank waits for a message of the other rank of the measured pair."""
UNEVEN = 10
"""Limit of a ratio: the median bandwidth of all pairs of ranks on two hosts, divided by the bandwidth of one of these
pairs. A pair of ranks whose ratio is above `UNEVEN` counts as slow."""
MIN_COMPARED = 4
"""Smallest number of measured pairs of ranks on different hosts for which each pair's bandwidth is compared with their
median bandwidth."""
RDMA_BANDWIDTH = 1e9
"""Bandwidth, in bytes per second, that every InfiniBand link exceeds."""


class PairRequest(NamedTuple):
    """Request to measure the link between a pair of ranks."""

    ranks: tuple[int, int]
    one_host: bool
    with_eager: bool
    """Whether to measure, in addition, up to which length messages are eager (sent before their receive is posted)."""


class MeasuredPair(NamedTuple):
    """Measurement of the link between a pair of ranks."""

    link: PairRequest
    latency: float
    """Seconds that a message of 8 bytes takes."""
    bandwidth: float
    """Bandwidth of messages of 1 MiB, in bytes per second."""
    eager: int | None
    """Size in bytes of the longest eager message (sent before its receive is posted); None if the size was not
    measured."""
    error: str = ""
    """Reason why the pair could not be measured; "" if the pair was measured."""


def plan(hosts: Sequence[str]) -> list[PairRequest]:
    """Return the pairs of ranks to measure, at most `MAX_PAIRS`. ``hosts`` has one text per rank, which identifies the
    rank's host.

    All pairs of ranks are measured if their number is at most `MAX_PAIRS`. In larger jobs the first two ranks of each
    host are a pair, and so are the first ranks of successive hosts.
    """
    n = len(hosts)
    pairs = [(a, b) for a in range(n) for b in range(a + 1, n)]
    if len(pairs) > MAX_PAIRS:
        members: dict[str, list[int]] = {}
        for rank, host in enumerate(hosts):
            members.setdefault(host, []).append(rank)
        firsts = [ranks[0] for ranks in members.values()]
        within = [(ranks[0], ranks[1]) for ranks in members.values() if len(ranks) > 1]
        between = [tuple(sorted(pair)) for pair in zip(firsts, firsts[1:], strict=False)]
        share = MAX_PAIRS if not between else MAX_PAIRS // 2
        if not between:  # all ranks are on one host
            within += [pair for pair in zip(range(n), range(1, n), strict=False) if pair not in within]
        pairs = [*within[:share], *between]
    links, seen = [], set()
    for a, b in pairs[:MAX_PAIRS]:
        one_host = hosts[a] == hosts[b]
        links.append(PairRequest((a, b), one_host, one_host not in seen))
        seen.add(one_host)
    return links


def measure(driver, comm, link: PairRequest) -> MeasuredPair:
    """Measure the link between the ranks of the pair ``link``; to be called on the first rank, while the second rank
    runs `answer`. An error of the measurement is not raised, but returned as text in the result."""
    _, other = link.ranks
    try:
        pair: Pair = driver.run(measure_pair(comm, other, link.one_host, EFFORT))
        eager = eager_bytes(driver, comm, other, True, 1 / pair.bandwidth) if link.with_eager else None
    except (WaitTimeout, LostRank) as error:
        return MeasuredPair(link, 0.0, 0.0, None, str(error))
    return MeasuredPair(link, pair.latency, pair.bandwidth, eager)


def answer(driver, comm, link: PairRequest):
    """Answer the messages of `measure` on the second rank of the pair ``link``. Raises WaitTimeout if a message does
    not arrive in time, and LostRank if the first rank has died."""
    other, _ = link.ranks
    driver.run(answer_pair(comm, other, link.one_host, EFFORT))
    if link.with_eager:
        eager_bytes(driver, comm, other, False, 0.0)


def findings(measured: Sequence[MeasuredPair], ranks: int, has_rdma: bool) -> list[Finding]:
    """Return the findings about the ``measured`` pairs of a job of ``ranks`` ranks.

    ``has_rdma`` says whether all hosts have an active InfiniBand port.
    """
    pairs = ranks * (ranks - 1) // 2
    if ranks == 1:
        return [Finding(GROUP, "pairs", "none: `grsgd run -n 4 -m grsgd doctor` measures links between ranks")]
    which = "all" if len(measured) >= pairs else "first ranks of a host, and first ranks of neighbouring hosts"
    found = [Finding(GROUP, "pairs", f"{len(measured)} of {pairs} measured: {which}")]
    between = [one.bandwidth for one in measured if not one.link.one_host and not one.error]
    usual = statistics.median(between) if len(between) >= MIN_COMPARED else 0.0
    found += [of_pair(one, usual, has_rdma) for one in measured]
    for one in measured:
        if one.eager is not None:
            where = "within a host" if one.link.one_host else "between hosts"
            value = f"messages up to {human_bytes(one.eager)} leave before their receive is posted"
            found.append(Finding(GROUP, f"eager limit {where}", value if one.eager else "no message is eager"))
    return found


def of_pair(one: MeasuredPair, usual: float, has_rdma: bool) -> Finding:
    """Return the finding about the measured pair ``one``. If the pair's ranks are on two hosts, the pair's bandwidth is
    compared with ``usual``, the median bandwidth in bytes per second."""
    a, b = one.link.ranks
    name, where = f"ranks {a} and {b}", "one host" if one.link.one_host else "two hosts"
    if one.error:
        remedy = (
            "let MPI use a network that connects all hosts and that no firewall blocks: for Open MPI "
            "`--mca btl_tcp_if_include NETWORK`, for MPICH `-iface INTERFACE`"
        )
        return Finding(GROUP, name, f"{where}: {one.error}", remedy)
    value = f"{where}: {1e6 * one.latency:,.1f} us, {8 * one.bandwidth / 1e9:.3g} Gbit/s"
    remedy = ""
    if not one.link.one_host and has_rdma and one.bandwidth < RDMA_BANDWIDTH:
        remedy = "messages do not use InfiniBand: load an MPI library that was built with UCX or libfabric"
    elif not one.link.one_host and one.bandwidth * UNEVEN < usual:
        remedy = f"this link is over {UNEVEN} times slower than the others: leave out one of the two hosts"
    return Finding(GROUP, name, value, remedy)
