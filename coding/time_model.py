"""Models of the duration of a step, which give the best redundancy: the model of the CSSGD paper, and a model with the
exact costs.

The CSSGD paper is Li, Xie, Mao, Xu, Zhu, Zhang 2021, and its model is T = r Tcalc + Tcomm / r. The module
`coding.predicted_step` predicts the duration of a step from measurements.
"""

from collections.abc import Sequence
from statistics import fmean

from coding.cost import cost_in_models, redundancy

MEDIA = {
    "shared": lambda cost: cost.once,
    "switch": lambda cost: max(map(max, cost.sent, cost.received)),
    "point-to-point": lambda cost: max(map(max, cost.copies, cost.received)),
    "shared-point-to-point": lambda cost: cost.per_receiver,
}
"""Functions of a `Cost`, by the name of the network's medium. Each function returns the amount of data on which the
time of sending depends, in units of M (the size of a gradient).

``shared``: the amount that all ranks together send. ``switch``: the amount at the busiest port of a switch that
multicasts. ``point-to-point``: the amount at the busiest port of a switch if a packet is sent once per receiver.
``shared-point-to-point``: the amount that all ranks together send if a packet is sent once per receiver.
"""


def paper_step_seconds(r: int, computing: float, communicating: float) -> float:
    """Return the seconds of a step in the model of the CSSGD paper (section 3.2.4).

    ``computing``, ``communicating``: seconds that SSGD by multicast computes and communicates per step. The redundancy
    r is best exactly if r(r-1) <= communicating / computing <= r(r+1).
    """
    return r * computing + communicating / r


def step_seconds(
    scheme: str, n: int, r: int, computing: float, transfer: float, medium: str = "shared", per_packet: float = 0.0
) -> float:
    """Return the seconds of a step in which computing and sending do not overlap, by the costs of `coding.cost`.

    ``computing``: seconds that a rank computes per step without redundancy. ``transfer``: seconds to send one gradient.
    ``medium``: a key of `MEDIA`. ``per_packet``: additional seconds for each packet that a rank sends.
    """
    cost = cost_in_models(scheme, n, r)
    amount = float(MEDIA[medium](cost))
    return float(redundancy(scheme, n, r)) * computing + amount * transfer + max(cost.packets) * per_packet


def least_step_seconds(seconds: Sequence[float], silent: int = 0) -> float:
    """Return the least seconds of a step that all ranks begin together and that ends without the slowest ``silent``
    ranks.

    ``seconds``: seconds that each of n ranks computes, including redundancy. The step cannot end before the (n -
    silent)-th least of the ranks' seconds (Lee, Lam, Pedarsani, Papailiopoulos, Ramchandran 2018).
    """
    return sorted(seconds)[len(seconds) - silent - 1]


def mean_step_seconds(steps: Sequence[Sequence[float]], r: int = 1, silent: int = 0) -> float:
    """Return the mean of `least_step_seconds` over ``steps``.

    ``steps[k][i]``: seconds that rank i takes for step k without redundancy. With redundancy r, rank i takes r times as
    long for a step. Late ranks begin the next step later than other ranks, so real steps may take longer than the
    returned seconds.
    """
    return fmean(least_step_seconds([r * each for each in seconds], silent) for seconds in steps)
