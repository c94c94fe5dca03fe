"""Prediction of the duration of a step with any redundancy: the seconds of computing, waiting, coding and sending, from
measurements without redundancy.

The division of a step into computing, waiting, coding and sending was designed in this project. The model of the CSSGD
paper (`coding.time_model.paper_step_seconds`) leaves out the wait for the slowest rank, the time of coding, and the
number of packets. The parts of a step do not overlap, as in `grsgd.comm.coded.scheme`. A rank first computes its blocks
and waits for the slowest rank. After the wait for the slowest rank, a rank adds up its blocks, encodes and sends
packets, and decodes received packets.
"""

from math import comb
from statistics import fmean
from typing import NamedTuple

import numpy as np

from coding.codec_seconds import CodecSeconds
from coding.cost import BYTES_PER_ELEMENT, cost_in_bytes, redundancy


class Computing(NamedTuple):
    """Measured seconds that each rank takes to compute one block, without redundancy. The seconds are measured in steps
    that all ranks begin together.

    ``gradients``: seconds that each rank takes for the gradient of a block, of shape [steps, ranks]. ``per_block``: the
    part of each rank's seconds per block that does not depend on the number of samples, of shape [ranks]. ``slowdown``:
    factor of shape [ranks] by which each rank computes slower in the run than in the measurement. ``delays``: seconds
    by which steps of the run are prolonged in addition to the computation, of shape [any number of steps, ranks].
    """

    gradients: np.ndarray
    per_block: np.ndarray
    slowdown: np.ndarray
    delays: np.ndarray


class Toll(NamedTuple):
    """Seconds to send a packet, or a byte: ``once`` seconds, plus ``each`` seconds for each receiver."""

    once: float
    each: float

    @classmethod
    def of(cls, one: float, all_others: float, n: int) -> "Toll":
        """Return the `Toll` (seconds per sending, and seconds per receiver) that follows from two measured times of
        sending, in a run with ``n`` ranks.

        ``one``: seconds of sending to one receiver. ``all_others``: seconds of sending to all n - 1 other ranks. On a
        switch ``all_others`` is n - 1 times ``one``; on a network with multicast ``all_others`` equals ``one``. Both
        attributes of the returned `Toll` are at least 0.
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
    """Seconds that packets take with one transport when all ranks send at once.

    ``exchange``: seconds for the first short packet of each rank. ``packet``: seconds for every further short packet of
    a rank. ``byte``: seconds for each byte of a rank's packets. ``is_shared``: whether transfers of all ranks share a
    medium. The time of sending follows from the mean number of bytes over the ranks if ``is_shared`` is True, else from
    the largest number of bytes of any rank. ``sends_copies``: whether a rank sends a packet once per receiver.
    """

    exchange: Toll
    packet: Toll
    byte: Toll
    is_shared: bool
    sends_copies: bool


NOTHING_SENT = PacketSeconds(NO_TOLL, NO_TOLL, NO_TOLL, False, False)
"""Seconds of packets in a run with one rank, which sends no packets."""


class StepParts(NamedTuple):
    """Predicted seconds of the four parts of a step: computing, waiting, coding and sending.

    ``computing``: seconds that a rank computes, as a mean over the ranks. ``waiting``: seconds that the slowest rank
    computes longer than the mean of all ranks.
    """

    computing: float
    waiting: float
    coding: float
    sending: float


def own_blocks(scheme: str, n: int, r: int) -> int:
    """Return the number of blocks whose gradients a rank computes per step."""
    return comb(n - 1, r - 1) if scheme in ("coded", "uncoded") else 1


def computing_seconds(scheme: str, n: int, r: int, measured: Computing) -> tuple[float, float]:
    """Return the seconds that a rank computes per step, on average, and the seconds of the slowest rank.

    Each of the two returned times is a mean over the delays, and a median over the measured steps. A single prolonged
    step has little influence on the returned times, because they are medians over the steps. With redundancy r, the
    wait for a slow rank is r times as long.
    """
    times, blocks = float(redundancy(scheme, n, r)), own_blocks(scheme, n, r)
    samples = np.maximum(measured.gradients - measured.per_block, 0)
    seconds = measured.slowdown * (times * samples + blocks * measured.per_block)
    prolonged = seconds[:, None, :] + measured.delays
    return float(np.median(prolonged.mean((1, 2)))), float(np.median(prolonged.max(2).mean(1)))


def coding_seconds(scheme: str, n: int, r: int, length: int, measured: CodecSeconds) -> float:
    """Return the seconds per step that the busiest rank takes to add up its blocks of ``length`` elements, to encode
    packets, and to decode packets."""
    cost = cost_in_bytes(scheme, n, r, length)
    encoded, decoded = max(cost.sent) / BYTES_PER_ELEMENT, max(cost.received) / BYTES_PER_ELEMENT
    added = own_blocks(scheme, n, r) * length
    return added * measured.add + encoded * measured.encode + decoded * measured.decode


def sending_seconds(scheme: str, n: int, r: int, length: int, measured: PacketSeconds) -> float:
    """Return the seconds that sending all packets of a step takes, for blocks of ``length`` elements."""
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
    """Return the predicted seconds of each part of a step with redundancy ``r``. ``codec`` must be measured with
    packets of redundancy ``r``."""
    mean, slowest = computing_seconds(scheme, n, r, computing)
    coding = coding_seconds(scheme, n, r, length, codec)
    return StepParts(mean, slowest - mean, coding, sending_seconds(scheme, n, r, length, packets))
