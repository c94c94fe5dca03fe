"""How long a step takes with each redundancy, predicted part by part from what was measured without any.

The parts are ours: the paper's model (`coding.time_model.paper_step_seconds`) has no slowest rank, no coding and no
packets. Nothing overlaps, as in `grsgd.comm.coded.scheme`: a rank computes its blocks, waits for the slowest, adds up
and encodes, sends, and decodes.
"""

from math import comb
from statistics import fmean
from typing import NamedTuple

import numpy as np

from coding.codec_seconds import CodecSeconds
from coding.cost import BYTES_PER_ELEMENT, cost_in_bytes, redundancy


class Computing(NamedTuple):
    """Seconds in which the ranks compute without redundancy, one block each, measured in steps that all begin
    together.

    ``gradients``: of shape [steps, ranks]; ``per_block``: of shape [ranks], what of these every block takes, however
    few samples it has. What makes steps of the run longer: ``slowdown``, a factor, of shape [ranks], and ``delays`` of
    steps of the run, of shape [any number, ranks], which do not depend on what is computed.
    """

    gradients: np.ndarray
    per_block: np.ndarray
    slowdown: np.ndarray
    delays: np.ndarray


class Toll(NamedTuple):
    """Seconds that something takes ``once``, and besides for ``each`` of its receivers."""

    once: float
    each: float

    @classmethod
    def of(cls, one: float, all_others: float, n: int) -> "Toll":
        """Return that of n ranks of which something takes so long to one receiver, and so long to all n - 1.

        On a switch the second is n - 1 times the first, on a medium that multicasts as long. Neither part is negative.
        """
        if n < 3:
            return cls(all_others, 0.0)
        each = (all_others - one) / (n - 2)
        if each <= 0:
            return cls(all_others, 0.0)
        return cls(one - each, each) if each <= one else cls(0.0, all_others / (n - 1))

    def to(self, receivers: float) -> float:
        return self.once + self.each * receivers


NO_TOLL = Toll(0.0, 0.0)


class PacketSeconds(NamedTuple):
    """Seconds that packets take when all ranks send at once, by one transport.

    ``exchange``: one short packet of each rank; ``packet``: every further one; ``byte``: each byte of a rank's packets.
    ``is_shared``: whether transfers of all ranks share a medium, so that what all send together counts, and not what
    the busiest does; ``sends_copies``: whether a packet leaves its sender once for every receiver.
    """

    exchange: Toll
    packet: Toll
    byte: Toll
    is_shared: bool
    sends_copies: bool


NOTHING_SENT = PacketSeconds(NO_TOLL, NO_TOLL, NO_TOLL, False, False)
"""Of one rank."""


class StepParts(NamedTuple):
    """The seconds of a step: what a rank computes on average, how much longer the slowest takes, and so on."""

    computing: float
    waiting: float
    coding: float
    sending: float


def own_blocks(scheme: str, n: int, r: int) -> int:
    """Return how many blocks a rank computes."""
    return comb(n - 1, r - 1) if scheme in ("coded", "uncoded") else 1


def computing_seconds(scheme: str, n: int, r: int, measured: Computing) -> tuple[float, float]:
    """Return how long a rank computes in a step, on average, and how long the slowest does.

    The mean over the delays, and the median over the steps that were measured: one of them that something else has
    made long counts no more than another. A rank that takes twice as long for a block is waited for r times.
    """
    times, blocks = float(redundancy(scheme, n, r)), own_blocks(scheme, n, r)
    samples = np.maximum(measured.gradients - measured.per_block, 0)
    seconds = measured.slowdown * (times * samples + blocks * measured.per_block)
    prolonged = seconds[:, None, :] + measured.delays
    return float(np.median(prolonged.mean((1, 2)))), float(np.median(prolonged.max(2).mean(1)))


def coding_seconds(scheme: str, n: int, r: int, length: int, measured: CodecSeconds) -> float:
    """Return how long the busiest rank adds up its blocks of ``length`` elements, encodes and decodes in a step."""
    cost = cost_in_bytes(scheme, n, r, length)
    encoded, decoded = max(cost.sent) / BYTES_PER_ELEMENT, max(cost.received) / BYTES_PER_ELEMENT
    added = own_blocks(scheme, n, r) * length
    return added * measured.add + encoded * measured.encode + decoded * measured.decode


def sending_seconds(scheme: str, n: int, r: int, length: int, measured: PacketSeconds) -> float:
    """Return how long the packets of a step take, of blocks of ``length`` elements."""
    cost = cost_in_bytes(scheme, n, r, length)
    if not cost.once:
        return 0.0
    over = fmean if measured.is_shared else max
    received = max(over(cost.received), over(cost.copies) if measured.sends_copies else 0)
    exchanges, receivers = 1 + (scheme == "grouped-rs"), cost.per_receiver / cost.once
    further = max(max(cost.packets) - exchanges, 0)
    latencies = exchanges * measured.exchange.to(receivers) + further * measured.packet.to(receivers)
    return latencies + over(cost.sent) * measured.byte.once + received * measured.byte.each


def predicted_step(
    scheme: str, n: int, r: int, length: int, computing: Computing, codec: CodecSeconds, packets: PacketSeconds
) -> StepParts:
    """Return how long each part of a step takes with redundancy r; ``codec``: that of packets of this r."""
    mean, slowest = computing_seconds(scheme, n, r, computing)
    coding = coding_seconds(scheme, n, r, length, codec)
    return StepParts(mean, slowest - mean, coding, sending_seconds(scheme, n, r, length, packets))
