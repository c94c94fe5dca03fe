"""Exact amounts of data that the ranks send per exchange of gradients with each scheme, in bytes or in units of M, the
size of one gradient.

In `Cost.once` a packet to several receivers counts once, as on a shared medium or with true multicast. In
`Cost.per_receiver` a packet to several receivers counts once per receiver, as with unicast, trees and relays. The table
below has the costs of the schemes for n ranks and redundancy r, in units of M. C(n, r) is the binomial coefficient.

| scheme         | sent by a rank | received by a rank | once          | per receiver | source                    |
|----------------|----------------|--------------------|---------------|--------------|---------------------------|
| ring           | 2(n-1)/n       | 2(n-1)/n           | 2(n-1)        | 2(n-1)       | Patarasuk, Yuan 2009      |
| ssgd-unicast   | n-1            | n-1                | n(n-1)        | n(n-1)       | gradients summed locally  |
| ssgd-multicast | 1              | n-1                | n             | n(n-1)       | gradients summed locally  |
| per-block      | C(n,r)/n       | (n-1)C(n,r)/n      | C(n,r)        | (n-1)C(n,r)  | CSSGD, (30)               |
| uncoded        | C(n-1,r-1)/r   | C(n-1,r)           | C(n,r)        | n C(n-1,r)   | CSSGD, (29)               |
| coded          | C(n-1,r)/r     | C(n-1,r)           | n C(n-1,r)/r  | n C(n-1,r)   | CSSGD, (20)-(28)          |
| grouped-direct | q/n            | q-1                | q             | n(q-1)       | sums before sending       |
| grouped-rs     | q/n            | (n+q-2)/n          | q             | n+q-2        | sums before sending       |
| tolerant-s     | 1/(r-s)        | (n-1)/(r-s)        | n/(r-s)       | n(n-1)/(r-s) | `coding.tolerant`         |

The source CSSGD is the paper by Li, Xie, Mao, Xu, Zhu, Zhang 2021. With ``per-block`` every block of the batch is
computed by one rank and sent in its own packet. With ``uncoded`` every block is computed by r ranks, each of which
sends one of the block's r slices. With r = n each rank knows all blocks, so ``uncoded`` and ``coded`` send nothing. The
schemes ``grouped-direct`` and ``grouped-rs`` were designed in this project. A grouped scheme divides n ranks into q
groups, where q is n/r rounded up (r: redundancy). If the groups of a grouped scheme differ in size, the table of costs
has the mean cost over the ranks. With a single group (q = 1) the grouped schemes send nothing, because each rank
computes the whole batch. With ``tolerant-s`` a step can end without the messages of s silent ranks, where s is less
than the redundancy r. With ``tolerant-s`` each of n ranks needs the messages of n - s - 1 other ranks to end a step.
"""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache, partial
from math import comb, lcm

from coding.partition import sizes
from coding.placement import GroupedPlacement, number_of_groups

BYTES_PER_ELEMENT = 4
"""Number of bytes of one element of a gradient, which is an int32 or a float32."""


@dataclass(frozen=True)
class Cost:
    """Amounts of data that each rank sends and receives in one exchange of gradients. All tuples of a `Cost` have one
    entry per rank. The amounts are numbers of elements; the method `times` converts the amounts to bytes or to
    multiples of a gradient's size.

    ``sent``: amount that each rank sends, if a packet to several receivers counts once. ``copies``: amount that each
    rank sends, if a packet counts once per receiver. ``received``: amount that each rank receives. ``packets``: number
    of messages that each rank sends, if a message to several receivers counts once.
    """

    sent: tuple
    copies: tuple
    received: tuple
    packets: tuple[int, ...]

    @property
    def once(self):
        """Return the amount that all ranks together send, if a packet to several receivers counts once."""
        return sum(self.sent)

    @property
    def per_receiver(self):
        """Return the amount that all ranks together send, if a packet counts once per receiver."""
        return sum(self.received)

    def times(self, unit) -> "Cost":
        """Return a copy of this cost in which the amounts sent and received are multiplied by ``unit``."""
        amounts = (tuple(unit * amount for amount in each) for each in (self.sent, self.copies, self.received))
        return Cost(*amounts, self.packets)


def cost_in_bytes(scheme: str, n: int, r: int, length: int) -> Cost:
    """Return the exact cost in bytes of ``scheme`` for gradients of ``length`` elements, including padding and slices
    or chunks of unequal length."""
    return counting(scheme)(n, r, length).times(BYTES_PER_ELEMENT)


@lru_cache(maxsize=1024)
def cost_in_models(scheme: str, n: int, r: int) -> Cost:
    """Return the exact cost of ``scheme`` in fractions of M, the size of one gradient, for gradients that divide into
    equal slices and chunks without padding."""
    length = lcm(*range(1, n + 1))
    return counting(scheme)(n, r, length).times(Fraction(1, length))


def counting(scheme: str) -> Callable[[int, int, int], Cost]:
    """Return the function that computes the cost in elements of ``scheme``: a key of `SCHEMES`, or ``tolerant-1``,
    ``tolerant-2`` and so on."""
    name, _, silent = scheme.rpartition("-")
    return partial(tolerant, silent=int(silent)) if name == "tolerant" else SCHEMES[scheme]


def redundancy(scheme: str, n: int, r: int) -> Fraction:
    """Return the part of the batch that a rank computes with ``scheme``, as a multiple of 1/n of the batch."""
    if scheme.startswith("grouped"):
        return Fraction(n, number_of_groups(n, r))
    return Fraction(r if scheme in ("uncoded", "coded") or scheme.startswith("tolerant") else 1)


def ring(n: int, r: int, length: int) -> Cost:
    """Return the cost in elements of a ring all-reduce, without padding. Rank i sends all chunks except chunk i+1 in
    the reduce-scatter, and all chunks except chunk i+2 in the all-gather."""
    chunks = sizes(length, n)
    sent = [2 * length - chunks[(i + 1) % n] - chunks[(i + 2) % n] if n > 1 else 0 for i in range(n)]
    received = [sent[i - 1] for i in range(n)]
    return Cost(tuple(sent), tuple(sent), tuple(received), (2 * (n - 1),) * n)


def ssgd_unicast(n: int, r: int, length: int) -> Cost:
    everything = ((n - 1) * length,) * n
    return Cost(everything, everything, everything, (n - 1,) * n)


def ssgd_multicast(n: int, r: int, length: int) -> Cost:
    everything = ((n - 1) * length,) * n
    sends = int(n > 1)
    return Cost((sends * length,) * n, everything, everything, (sends,) * n)


def per_block(n: int, r: int, length: int) -> Cost:
    """Return the cost in elements if each of C(n, r) blocks is sent in its own packet. Each rank has consecutive
    blocks, and the numbers of blocks per rank differ by at most one."""
    blocks = sizes(comb(n, r), n) if n > 1 else [0]
    return Cost(
        tuple(count * length for count in blocks),
        tuple(count * (n - 1) * length for count in blocks),
        tuple((sum(blocks) - count) * length for count in blocks),
        tuple(blocks),
    )


def uncoded(n: int, r: int, length: int) -> Cost:
    """Return the cost in elements of the scheme ``uncoded``, in which ranks send slices of blocks without coding. For
    C(i, p) C(n-1-i, r-1-p) blocks, rank i is number p, counted from 0, among the r ranks that hold the block."""
    if r == n:
        return Cost((0,) * n, (0,) * n, (0,) * n, (0,) * n)
    slices = sizes(length, r)
    sent = [sum(comb(i, p) * comb(n - 1 - i, r - 1 - p) * slices[p] for p in range(r)) for i in range(n)]
    copies = tuple((n - r) * amount for amount in sent)
    return Cost(tuple(sent), copies, (comb(n - 1, r) * length,) * n, (comb(n - 1, r - 1),) * n)


def coded(n: int, r: int, length: int) -> Cost:
    """Return the cost in elements of C(n-1, r) coded packets per rank, each to r other ranks. All coded packets have
    the length of the longest slice."""
    packets = comb(n - 1, r)
    sent = packets * -(-length // r)
    return Cost((sent,) * n, (r * sent,) * n, (r * sent,) * n, (packets,) * n)


def grouped_direct(n: int, r: int, length: int) -> Cost:
    placement = GroupedPlacement(n, number_of_groups(n, r))
    outside = [n - len(placement.members(placement.group(i))) for i in range(n)]
    parts = [end - begin for begin, end in (placement.part(i, length) for i in range(n))]
    sent = [part * (others > 0) for part, others in zip(parts, outside, strict=True)]
    copies = [part * others for part, others in zip(parts, outside, strict=True)]
    packets = tuple(int(others > 0) for others in outside)
    return Cost(tuple(sent), tuple(copies), ((placement.q - 1) * length,) * n, packets)


def grouped_rs(n: int, r: int, length: int) -> Cost:
    """Return the cost in elements of the scheme ``grouped-rs``, in which every group sends each chunk of its gradient
    to the rank that owns the chunk. The owner of a chunk sums the chunk over all groups and multicasts the sum. If
    there is only one group of ranks, nothing is sent."""
    placement = GroupedPlacement(n, number_of_groups(n, r))
    if placement.q == 1:
        return Cost((0,) * n, (0,) * n, (0,) * n, (0,) * n)
    chunks = sizes(length, n)
    sent, copies, packets = list(chunks), [(n - 1) * chunk for chunk in chunks], [1] * n
    for owner in range(n):
        for group in range(placement.q):
            if group != placement.group(owner):
                sender = placement.sender(group, owner)
                sent[sender] += chunks[owner]
                copies[sender] += chunks[owner]
                packets[sender] += 1
    received = [(placement.q - 1) * chunk + length - chunk for chunk in chunks]
    return Cost(tuple(sent), tuple(copies), tuple(received), tuple(packets))


def tolerant(n: int, r: int, length: int, silent: int) -> Cost:
    """Return the cost in elements of one message from each rank to all other ranks. A message has the length of a
    gradient divided by ``r - silent``, rounded up."""
    message = -(-length // (r - silent)) * (n > 1)
    everything = ((n - 1) * message,) * n
    return Cost((message,) * n, everything, everything, (int(n > 1),) * n)


SCHEMES: dict[str, Callable[[int, int, int], Cost]] = {
    "ring": ring,
    "ssgd-unicast": ssgd_unicast,
    "ssgd-multicast": ssgd_multicast,
    "per-block": per_block,
    "uncoded": uncoded,
    "coded": coded,
    "grouped-direct": grouped_direct,
    "grouped-rs": grouped_rs,
}
"""Functions ``cost(n, r, length)``, by the name of the scheme. Each function returns the `Cost` of its scheme in
elements.

The costs of ``ring``, ``ssgd-unicast`` and ``ssgd-multicast`` do not depend on the redundancy r. The grouped schemes
make `number_of_groups` (n, r) groups of ranks. `SCHEMES` does not include the schemes ``tolerant-s``, which tolerate
silent ranks.
"""
